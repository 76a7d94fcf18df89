"""The bounds that a launch of the CUDA attention takes from the shapes of a step."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loraplex.engine.attention.kernels.cuda.tiles import (
    LEAST_SPLIT,
    MOST_SPLITS,
    bound_tiles,
    choose_tile,
    count_splits,
    partial_rows,
)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=40), st.integers(1, 64))
def test_every_query_has_a_tile_of_its_sequence_within_the_bound(counts: list[int], queries: int) -> None:
    starts = [0, *accumulate(counts)]
    firsts = [start // queries + sequence for sequence, start in enumerate(starts)]
    rooms = [after - first for first, after in pairwise(firsts)]
    assert all(-(-count // queries) <= room for count, room in zip(counts, rooms, strict=True))
    assert firsts[-1] == bound_tiles(starts[-1], len(counts), queries)


@given(st.integers(1, 9000), st.integers(1, 256), st.integers(1, 5000), st.integers(1, 1 << 20))
def test_partial_results_have_room(tokens: int, sequences: int, programs: int, most_length: int) -> None:
    splits = count_splits(tokens, sequences, programs, most_length)
    assert 1 <= splits <= MOST_SPLITS and (splits == 1 or splits * LEAST_SPLIT <= most_length)
    assert splits == 1 or splits * tokens <= partial_rows(tokens)


def test_few_programs_share_long_contexts() -> None:
    assert count_splits(1, 1, 8, 131072) == 32 and count_splits(64, 64, 640, 131072) == 1
    assert count_splits(1, 1, 8, 600) == 2 and count_splits(1, 1, 8, 500) == 1
    assert count_splits(300, 9, 300, 131072) == 4 and count_splits(4096, 9, 3000, 131072) == 1


@pytest.mark.parametrize("group", [1, 3, 7, 8, 16, 33, 71, 128])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("modern", [False, True])
def test_a_tile_has_room_for_one_query_and_decodes_take_the_least(group: int, head_dim: int, modern: bool) -> None:
    for tokens, sequences in ((1, 1), (64, 64), (300, 2), (5000, 3)):
        tile = choose_tile(tokens, sequences, 2 * group, 2, head_dim, 2, modern)
        assert tile.rows >= group and tile.rows.bit_count() == tile.keys.bit_count() == 1
        assert LEAST_SPLIT % tile.keys == 0
        assert tile.rows == max(16, 1 << (group - 1).bit_length()) or group > 32 or tokens > sequences
