"""What can be served at all: blocks of each kind of group at the end of a request."""

import pytest

from sim.event.servable import blocks_at_end, servable_tokens
from sim.memory.shape import CacheShape, GroupShape


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
