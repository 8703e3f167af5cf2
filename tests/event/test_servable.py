"""What can be served at all: blocks of each kind of group at the end of a request."""

import pytest

from sim.deployment.settings import load_engine
from sim.event.pool import EnginePool, trial_of
from sim.event.servable import Entrance, Trial, blocks_at_end, servable_tokens, served_alone
from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.vllm import make

from .conftest import make_settings, make_table


FULL, MLA, STATE = GroupShape("full", 16), GroupShape("mla", 16), GroupShape("mamba", 512)
SLIDING, CHUNKED = GroupShape("swa", 16, 40), GroupShape("chunk", 16, 64)


@pytest.mark.parametrize(
    ("group", "tokens", "blocks"),
    [
        (FULL, 48, 3),
        (FULL, 49, 4),
        (MLA, 49, 4),
        (STATE, 500, 1),
        (SLIDING, 30, 2),  # all tokens are inside the window
        (SLIDING, 100, 4),  # tokens 60 to 99: blocks 3 to 6
        (SLIDING, 104, 3),  # tokens 64 to 103: blocks 4 to 6
        (CHUNKED, 64, 4),  # the last token is the last of the first chunk
        (CHUNKED, 65, 1),  # the first of the second
        (CHUNKED, 100, 3),  # tokens 64 to 99: blocks 4 to 6
    ],
)
def test_blocks_at_the_end(group, tokens, blocks):
    assert blocks_at_end(group, tokens) == blocks


def test_groups_add_up():
    """100 prompt tokens and 1 output compute 100 tokens: 7 blocks of full attention, 4 of the window."""
    assert servable_tokens(100, 1, 512, CacheShape(11, False, (FULL, SLIDING))) == 1
    assert servable_tokens(100, 1, 512, CacheShape(10, False, (FULL, SLIDING))) is None
    assert servable_tokens(100, 900, 128, CacheShape(99, False, (FULL,))) == 28
    assert servable_tokens(128, 1, 128, CacheShape(99, False, (FULL,))) is None


def entrance(blocks, *groups, **changes):
    cache, settings = CacheShape(blocks, False, groups), make_settings(**changes)
    return Entrance(lambda: Trial(make(settings, cache)), settings, cache)


def test_what_only_a_trial_shows():
    """A window of 40 lets go of blocks as it moves, but a first chunk of 64 tokens takes 4 blocks of each group.

    100 tokens end with 7 + 4 blocks; while tokens 64 to 99 are computed, blocks 1 to 6 of the window are held: 7 + 6.
    """
    assert entrance(11, FULL, SLIDING)(100, 1) is None
    assert entrance(12, FULL, SLIDING)(100, 1) is None
    assert entrance(13, FULL, SLIDING)(100, 1) == 1
    # in chunks of 16 tokens it fits
    assert entrance(12, FULL, SLIDING, max_num_batched_tokens=16)(100, 1) == 1


def test_one_full_table_needs_no_trial(monkeypatch):
    monkeypatch.setattr("sim.event.servable.served_alone", None)
    assert entrance(7, FULL)(100, 13) == 13
    assert entrance(7, FULL)(100, 14) is None


def test_a_scheduler_may_have_its_own_rule():
    class Fussy:
        def servable_tokens(self, prompt, outputs):
            return None if prompt > 10 else min(outputs, 3)

    settings, cache = make_settings(), CacheShape(99, False, (FULL,))
    chosen = Entrance(lambda: Trial(Fussy()), settings, cache)
    assert (chosen(5, 9), chosen(11, 1)) == (3, None)


@pytest.mark.parametrize("depth", [1, 2])
def test_alone(depth):
    """49 tokens to compute need 4 blocks."""
    settings = make_settings(async_scheduling=depth == 2)
    for blocks in (3, 4):
        scheduler = make(settings, CacheShape(blocks, False, (FULL,)))
        assert served_alone(Trial(scheduler), depth, 40, 10) == (blocks == 4)


def test_a_decode_pool_is_tried_with_the_prompt_loaded():
    """As above, 13 blocks are needed to compute 100 tokens, but to load them only 7 + 4, and 1 more to decode."""
    settings = make_settings(profile=load_engine("vllm", "0.33.0").profile)
    for role, blocks, served in (("both", 12, None), ("decode", 11, 2), ("decode", 10, None)):
        pool = EnginePool(settings, make_table(), blocks + 1, (FULL, SLIDING), role=role)
        cache = CacheShape(blocks, False, (FULL, SLIDING))
        assert Entrance(lambda p=pool, c=cache: trial_of(p, c), settings, cache)(100, 2) == served
