"""Who drafts: heads built from the model they draft for, their memory, and what is refused in one sentence."""

from dataclasses import replace

import pytest

from sim.deployment.compile import compile_plan
from sim.deployment.conf import DeploymentConf
from sim.deployment.settings import load_engine
from sim.deployment.speculation import KEY, SpeculationConf
from sim.hardware.read import load_device
from sim.memory.budget import memory_budget
from sim.model.drafters import eagle3_heads, eagle_head, medusa_heads, mtp_modules
from sim.model.read import load_model
from sim.model.shards import Shards
from sim.scheduler.find import check_scheduler
from sim.workload.acceptance import AcceptanceConf


LLAMA, DEEPSEEK, QWEN = load_model("llama-3.1-8b"), load_model("deepseek-v3"), load_model("qwen3-30b-a3b")
HALF = AcceptanceConf(rate=0.5)


def conf_with(method="eagle", tokens=3, version="0.10.2", engine="vllm", acceptance=HALF, **changes):
    speculation = SpeculationConf(method, tokens, acceptance=acceptance, **changes)
    return replace(load_engine(engine, version), speculation=speculation)


def compiled(model, conf, device="h100-sxm", **deployment):
    hardware, shape = load_device(device), DeploymentConf(**deployment)
    plan = compile_plan(model, hardware, conf, shape)
    return plan, memory_budget(model, hardware, plan.engine, shape)


def test_heads_have_the_size_of_the_published_ones():
    """Llama-3.1-8B's EAGLE head: one layer (218.1 M) and the projection 2 h -> h (33.6 M).

    EAGLE-3's: 3 h -> h (50.3 M), and 2 h in place of h into query, key and value (4096 x 6144 = 25.2 M more).
    """
    layer, h = 218.1e6, 4096
    assert sum(x.params(h) for x in eagle_head(LLAMA).layers) == pytest.approx(layer + 2 * h * h, rel=1e-3)
    first, later = eagle3_heads(LLAMA, 32000)
    wide = h * (32 + 2 * 8) * 128
    assert first.layers[0].params(h) == pytest.approx(layer + wide + 3 * h * h, rel=1e-3)
    assert later.layers[0].params(h) == pytest.approx(layer + wide, rel=1e-3)
    assert first.lm_head(1).params == 32000 * h
    heads = medusa_heads(LLAMA, 3)
    assert sum(x.params(h) for x in heads.layers) == pytest.approx(3 * (h * h + LLAMA.padded_vocab * h), rel=1e-3)
    (module,) = mtp_modules(DEEPSEEK)
    assert module.layers == DEEPSEEK.draft_layers and module.is_moe


def test_the_drafter_takes_memory_and_kv():
    plain, of_head = compiled(LLAMA, load_engine("vllm", "0.10.2"))[1], compiled(LLAMA, conf_with())[1]
    weights = of_head.stage.value("drafter")
    assert weights == pytest.approx(2 * sum(x.params(4096) for x in eagle_head(LLAMA).layers), rel=0.01)
    # 33 layers share a block in place of 32, and what the head takes is gone
    assert of_head.bytes_per_block == plain.bytes_per_block * 33 / 32
    left = plain.available_bytes - weights
    assert of_head.num_blocks == pytest.approx(left / of_head.bytes_per_block, abs=100)
    assert compiled(LLAMA, conf_with("ngram"))[1].num_blocks == plain.num_blocks


def test_passes_and_graphs_follow_the_drafts():
    plan, _ = compiled(LLAMA, conf_with(tokens=4, version="0.33.0"))
    assert (plan.draft.passes, plan.draft.of_rows, plan.draft.graphs) == (3, False, True)
    assert plan.arrays.query_tokens == plan.draft.first.query_tokens == 5
    assert plan.draft.later.query_tokens == 1
    assert {5, 10, 20} <= set(plan.engine.graph_sizes)  # 1, 2 and 4 rows of 1 + 4 tokens
    assert plan.engine.async_scheduling
    heads, _ = compiled(LLAMA, conf_with("medusa", version="0.33.0"))
    assert (heads.draft.passes, heads.draft.of_rows, heads.draft.graphs) == (0, True, False)
    assert not heads.engine.async_scheduling
    small, budget = compiled(LLAMA, conf_with("draft_model", version="0.19.0", draft_model="llama-3.2-1b"))
    assert small.draft.passes == 2 and len(budget.layout.groups) == 1
    none, _ = compiled(LLAMA, load_engine("vllm", "0.33.0"))
    assert none.draft is None and none.engine.speculation is None and none.arrays.query_tokens == 1


@pytest.mark.parametrize(
    ("model", "conf", "shape", "says"),
    [
        (LLAMA, conf_with("lookahead"), {}, f"{KEY}.method wants one of none, ngram"),
        (LLAMA, conf_with(tokens=None), {}, "from 1 to 64, got None"),
        (LLAMA, conf_with(tokens=65), {}, "from 1 to 64, got 65"),
        (LLAMA, conf_with("medusa", 6), {}, "more than the 5 Medusa heads can draft"),
        (LLAMA, conf_with("mtp"), {}, "llama-3.1-8b has no MTP layers"),
        (LLAMA, conf_with("draft_model", draft_model="llama-3.2-1b"), {}, "vllm 0.10.2 has no"),
        (LLAMA, conf_with("draft_model", version="0.15.0"), {}, "draft_model wants the model that drafts"),
        (LLAMA, conf_with("draft_model", version="0.15.0", draft_model="qwen3-0.6b"), {}, "128,256: a draft model has"),
        (LLAMA, conf_with(match_rate=0.5), {}, f"{KEY}.match_rate has no effect with"),
        (LLAMA, conf_with("ngram", match_rate=1.5), {}, "share from 0 to 1, got 1.5"),
        (LLAMA, conf_with(draft_vocab=1 << 20), {}, "draft_vocab wants a number from 1"),
        (LLAMA, conf_with(acceptance=AcceptanceConf(rate=1.5)), {}, "wants a chance from 0 to 1, got 1.5"),
        (LLAMA, conf_with(acceptance=AcceptanceConf()), {}, "how many drafts are accepted: set"),
        (QWEN, conf_with("eagle3"), {}, "an EAGLE head of qwen3-30b-a3b is not like one of its layers"),
        (DEEPSEEK, conf_with("eagle3", draft_model="deepseek-v3"), {}, "grouped-query attention, not for that of"),
        (LLAMA, conf_with(), {"pipeline_parallel": 2}, "not simulated with deployment.pipeline_parallel=2"),
        (QWEN, conf_with("ngram"), {"data_parallel": 2}, "where data-parallel ranks share experts"),
        (LLAMA, conf_with(engine="sglang", version="0.5.23"), {}, "sglang 0.5.23 has no"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(model, conf, shape, says):
    with pytest.raises(ValueError) as error:
        compile_plan(model, load_device("h100-sxm"), conf, DeploymentConf(**shape))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_versions_that_do_not_schedule_ahead_with_drafts_say_so():
    for conf, says in (
        (conf_with("ngram", version="0.33.0"), "drafts by ngram are made on the host"),
        (conf_with(version="0.10.2"), "does not schedule ahead with drafts"),
    ):
        with pytest.raises(ValueError, match=says):
            compiled(LLAMA, replace(conf, async_scheduling=True))


def test_schedulers_without_drafts_are_refused():
    with pytest.raises(ValueError, match="the scheduler orca has no speculative decoding"):
        check_scheduler(replace(conf_with(), scheduler="orca"))


def test_published_chances_hold_where_acceptance_says_nothing():
    published = conf_with(acceptance=AcceptanceConf(), published=[0.5, 0.4, 0.3])
    assert compiled(LLAMA, published)[0].engine.speculation.acceptance.positions == [0.5, 0.4, 0.3]
    own = conf_with(acceptance=HALF, published=[0.5, 0.4, 0.3])
    assert compiled(LLAMA, own)[0].engine.speculation.acceptance == HALF


def test_ranks_divide_the_head():
    drafter = compiled(LLAMA, conf_with())[0].engine.speculation.drafter
    whole, half = (drafter.weight_bytes(Shards.tensor(ranks)) for ranks in (1, 2))
    assert half == pytest.approx(0.5 * whole + 0.5 * 2 * 2 * 4096**2, rel=0.02)  # the projection is on every rank
