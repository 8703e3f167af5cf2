"""What engine versions do differently, as named switches: facts of a profile (`conf/engine`), not settings.

A switch that is a defect of the real engine says so: it is on where that version is replayed, and off by default.
"""

from dataclasses import dataclass, field


@dataclass
class SchedulingRules:
    """Switches of the scheduler.

    Admission:

    - `skip_oversized`: without chunked prefill, a prompt that exceeds the rest of the budget is passed over.
    - `aside_reversed`: those passed over come back to the front of the queue in reversed order (a defect).
    - `lookahead_at_admission`: slots for drafts are reserved at admission, not only once a request runs.
    - `pads_admissions`: an admission of one token is padded to a row with drafts, so that the batch stays uniform.
    - `watermark`: a share of the blocks can be kept free at admission (`engine.scheduler_options.watermark`).

    Long prefills:

    - `threshold_when_alone`: `long_prefill_token_threshold` also cuts a request that is the only one.

    Preemption:

    - `ghost_rows`: a victim already counted in this call keeps its row and its share of the budget (a defect): its
      tokens count as computed although its blocks are gone, and the next request misses its turn.
    - `missed_turn`: a victim that stands earlier in running and has no row in this call makes the next request miss
      its turn (a defect).
    - `self_preemption_ends_pass`: no request after one that preempted itself is served in this call.
    - `drains_stale`: the output under way for a preempted request changes no counters, and the request is passed over
      until it has arrived; otherwise the request may resume at once.

    Drafts:

    - `drafts_in_prefill`: drafts proposed after an unfinished prefill ride with its last chunk, and drafts outlive a
      preemption.
    - `trimmed_not_computed`: tokens cut off at a stop do not count as computed.
    - `register_accepted`: with drafts, full blocks become findable with the output (as always where batches are
      scheduled ahead), not with the next allocation.

    Pipelines:

    - `decode_stagger`: scheduled ahead, a request decodes once in as many calls as there are stages.
    """

    skip_oversized: bool = False
    aside_reversed: bool = False
    lookahead_at_admission: bool = False
    pads_admissions: bool = False
    watermark: bool = False
    threshold_when_alone: bool = True
    ghost_rows: bool = False
    missed_turn: bool = False
    self_preemption_ends_pass: bool = False
    drains_stale: bool = False
    drafts_in_prefill: bool = False
    trimmed_not_computed: bool = False
    register_accepted: bool = False
    decode_stagger: bool = False


@dataclass
class ConnectorRules:
    """Switches of the scheduler's part in KV that comes from, or goes to, another instance.

    - `aside`: where requests wait that a call passed over: with the others (`none`); in a queue of their own (`all`),
      which goes first, or by priority the more urgent of both heads; or only `loads` do, which always go first.
    - `reserves_prefills`: a load takes no blocks that prefills under way and other loads still need.
    - `polls_held`: the loop goes on as long as blocks are held for a reader; otherwise they stay until the next
      arrival.
    - `frees_aborted_loads`: the blocks of a load that is aborted are free at once, although it is still written to
      them (a defect).
    - `reports_failed_loads`: a load that fails as a whole is heard of, and computed here or ended with an error.
    - `lease_s`: so long after the end of a prefill (with `renews_lease`, after it has last heard of the reader) a
      prefill instance frees blocks that nobody has read (0: not known).
    - `leaves_windows`: of a request that ends, what lies before its windows is free first: not at all (empty), or as of
      its `computed` or its `known` tokens.
    """

    aside: str = "none"
    reserves_prefills: bool = False
    polls_held: bool = False
    frees_aborted_loads: bool = False
    reports_failed_loads: bool = False
    lease_s: float = 0.0
    renews_lease: bool = False
    leaves_windows: str = ""


@dataclass
class CacheRules:
    """Switches of the block pool and its prefix cache.

    - `unhashed_blocks_first`: freed blocks without a prefix hash are reused first.
    - `counts_admitted_only`: look-ups are counted when the request is admitted; otherwise on every try, so that a
      blocked head of the queue counts in every call.
    - `common_prefix`: the blocks that all running requests share are counted (for cascade attention).
    - `windows_need_all`: an admission is tested as if a window needed blocks for the whole input; a group that has more
      than it needs makes up for another.
    - `window_capped_input`: the test for the full input knows that a window needs no more than itself and the tokens
      under way.
    - `chunks_keep_registered`: chunked-local attention keeps the last block that has a hash although its chunk is over.
    - `windows_wait_for_output`: scheduled ahead, a window moves only with the tokens whose output has been processed.
    - `external_by_group`: for KV from elsewhere, each group takes its blocks before the next one claims its hits.
    - `one_window_kind`: prefixes are looked up in full attention and one other kind, of one block size.
    - `eagle_drops_once`: for an EAGLE drafter all kinds together give up one block of a hit (each is searched one block
      further); otherwise each gives up one.
    - `registration`: which full blocks of a sliding window become findable: `all`, or only those that a hit can need
      which ends at an `aligned` length (whole blocks in all groups), or at a `sparse` few of them: the end of the
      prompt, and where another prompt was seen to part from it. The last two register whole aligned lengths only.
    """

    unhashed_blocks_first: bool = False
    counts_admitted_only: bool = False
    common_prefix: bool = False
    windows_need_all: bool = False
    window_capped_input: bool = False
    chunks_keep_registered: bool = False
    windows_wait_for_output: bool = False
    external_by_group: bool = False
    one_window_kind: bool = False
    eagle_drops_once: bool = False
    registration: str = "all"


@dataclass
class LogRules:
    """The engine's own log: its format, and what its numbers mean.

    - `format`: `vllm`, a line per interval; `sglang`, a line per prefill batch and per `decode_interval` decode
      batches; empty: none that is known.
    - `whole_prompts`: prompt throughput counts all of a prompt, otherwise not what the prefix cache held of it.
    - `joins_preempted`: the hit rate includes the look-ups of requests that had been preempted.
    - `drops_one_update`: the hit rate's window of 1,000 look-ups loses one update of the engine at a time, and updates
      without look-ups have a place in it; otherwise it loses what is beyond the limit.
    - `tells_preemptions`: a line has the preemptions of its interval, where there are any.
    - `hit_rate_once_known`: no hit rate before the first look-up; otherwise it is 0.
    """

    format: str = ""
    whole_prompts: bool = False
    joins_preempted: bool = False
    drops_one_update: bool = False
    tells_preemptions: bool = True
    hit_rate_once_known: bool = False
    decode_interval: int = 40


@dataclass
class SglangRules:
    """Switches of SGLang's scheduler; the defaults are those of 0.5.23.

    - `reserve_page`: an admission needs, and is charged, a page more than its tokens.
    - `ignore_eos_in_full`: requests that ignore EOS reserve all their outputs, not the usual share.
    - `input_bound_always`: `max_prefill_tokens` also bounds batches whose prompts are cut.
    - `full_only_with_work`: lack of tokens closes admission only if something runs or was admitted.
    - `drop_before_admission`: ended requests leave the running batch before admission counts it, not only before
      the next decode.
    - `evict_shortfall`: no more is evicted than is lacking.
    - `split_prompt`: the tree keeps prompts and outputs in nodes of their own.
    - `refresh_passes`: in every so many passes of admission that do not look at the tree, the first waiting requests
      renew what they would find (0: never).
    - `skip_ending_rows`: with overlap, a request that is about to reach its length gets no further decode row.
    """

    reserve_page: bool = True
    ignore_eos_in_full: bool = True
    input_bound_always: bool = False
    full_only_with_work: bool = True
    drop_before_admission: bool = True
    evict_shortfall: bool = True
    split_prompt: bool = True
    refresh_passes: int = 32
    skip_ending_rows: bool = True


@dataclass
class ContextRules:
    """Context parallelism that a version has; kinds of attention are `mla`, `sparse_mla` and `gqa`.

    - `prefill`, `decode`: the kinds whose prefills, and whose KV cache, it divides over ranks.
    - `combine`: how decoding ranks merge their parts of an output: `gather_scatter`, its log-sum-exp all-gathered and
      the output reduce-scattered, or `all_to_all`, both in one exchange.
    - `transfers`: whether KV that is divided can be handed over between instances: not at all (empty), where `all` of
      the tensor-parallel ranks divide it, or by `any` number of them.
    """

    prefill: list[str] = field(default_factory=list)
    decode: list[str] = field(default_factory=list)
    combine: str = "gather_scatter"
    transfers: str = ""


@dataclass
class ParallelRules:
    """What data-parallel ranks of one server do.

    - `balance`: who gets a request: `queues`, the rank with the least 4 x waiting + running as its front end knows
      them; `least_outstanding`; `round_robin`.
    - `stats_interval_s`: ranks report their queues after every turn of their loop, and the front end learns of
      them at most this often; in between it counts what it has sent as waiting.
    - `pads_eager`: ranks are padded to the largest of them in every step; otherwise only where it runs in a graph.
    - `all_to_all`: how tokens get to the experts of other ranks (`sim.deployment.exchange`).
    - `slices_sequence`: between attention and experts the tokens of a rank are divided over its tensor-parallel
      devices, where experts are whole.
    - `quantised_dispatch`: stored formats (`sim.deployment.formats.FORMATS`) of experts whose tokens are quantised
      before they are sent.
    - `gathers_dense`: dense feed-forward parts and shared experts are divided over all ranks, like the experts;
      otherwise each rank has its own.
    - `limits_divided`: the limits of a batch (`max_num_seqs`, `max_num_batched_tokens`) are those of all ranks.
    - `low_latency_tokens`: tokens of a rank that DeepEP's low-latency buffers hold; `deepep_buffer_bytes`: its buffers
      over NVLink, and over the network as much.
    - `high_throughput_graphs`: the graph mode with DeepEP's high-throughput kernels; empty: as without them.
    """

    balance: str = "queues"
    stats_interval_s: float = 0.1
    pads_eager: bool = False
    all_to_all: str = "allgather_reducescatter"
    slices_sequence: bool = True
    quantised_dispatch: list[str] = field(default_factory=list)
    gathers_dense: bool = False
    limits_divided: bool = False
    high_throughput_graphs: str = ""
    low_latency_tokens: int = 256
    deepep_buffer_bytes: float = 1073741824.0
