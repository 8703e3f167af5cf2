"""Keys of HuggingFace configs that do not change shapes, bytes or FLOPs, so that only the others are worth a note."""

PREFIXES = (
    "_",
    "aux_loss",
    "beam",
    "bos_",
    "decoder_start",
    "diversity",
    "do_sample",
    "dropout",
    "early_stopping",
    "embd_",
    "encoder_no_repeat",
    "eos_",
    "exponential_decay",
    "finetuning",
    "forced_",
    "id2label",
    "image_",
    "initializer",
    "is_",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat",
    "num_beam",
    "num_return",
    "output_",
    "pad_",
    "prefix",
    "problem",
    "pruned",
    "remove_invalid",
    "repetition",
    "return_",
    "router_aux",
    "router_jitter",
    "router_z",
    "sep_",
    "summary_",
    "suppress",
    "task_",
    "temperature",
    "tf_",
    "tie_encoder",
    "time_step",
    "tokenizer",
    "top_k",
    "top_p",
    "torchscript",
    "transformers",
    "typical",
    "unk_",
    "use_bfloat16",
    "use_cache",
    "use_mamba_kernels",
    "video_",
    "vision_",
    "audio_",
)

SUFFIXES = ("_dropout", "_eps", "_epsilon", "_token_id", "_token_index", "_coef", "_pdrop", "_scaling_factor")

NAMES = frozenset(
    """
    architectures auto_map model_type chunk_size_feed_forward add_cross_attention cross_attention_hidden_size
    bad_words_ids activation_function hidden_act hidden_activation mlp_hidden_act mamba_hidden_act pretraining_tp
    ep_size n_group topk_group norm_topk_prob scoring_func topk_method seq_aux rope_interleave rope_theta
    indexer_rope_interleave swiglu_limit rescale_prenorm_residual residual_in_fp32 num_logits_to_keep
    attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar rope_local_base_freq cache_implementation
    ignore_index boi_token_index eoi_token_index mm_tokens_per_image projector_hidden_act multimodal_projector_bias
    spatial_merge_size text_config vision_config audio_config attn_scale floor_scale attn_temperature_tuning nope
    embedding_multiplier residual_multiplier attention_multiplier logits_scaling lm_head_multiplier
    attn_pdrop resid_pdrop layer_norm_epsilon scale_attn_weights reorder_and_upcast_attn scale_attn_by_inverse_layer_idx
    router_z_loss_coef input_jitter_noise routed_scaling_factor first_k_dense_replace_bias mamba_chunk_size chunk_size
    hidden_dropout init_std layerdrop do_layer_norm_before dropout attention_dropout norm_expert_weight use_qk_norm_eps
    initial_context_length rope_ratio dtype torch_dtype hidden_dim_multiplier auto_class max_window_layers
    use_sliding_window mlp_only_layers intermediate_size_bias qk_nope_head_norm original_max_position_embeddings
    interleave_moe_layer mamba_d_ssm_bias use_unified_vision_chunk media_placeholder_token_id use_bidirectional_attention
    """.split()
)


def harmless(key: str) -> bool:
    """Whether `key` says nothing that this project models."""
    return key in NAMES or key.startswith(PREFIXES) or key.endswith(SUFFIXES)
