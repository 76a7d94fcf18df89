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
    count_spare,
    count_splits,
    is_uneven,
    most_spare,
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


@given(st.integers(1, 3000), st.integers(1, 300), st.integers(1, 1 << 20), st.booleans())
def test_parts_of_decodes_have_room(sequences: int, kv_heads: int, most_length: int, uneven: bool) -> None:
    spare = count_spare(sequences, kv_heads, most_length, uneven)
    assert 0 <= spare <= most_spare(kv_heads) and (spare == 0 or sequences + spare <= partial_rows(sequences))


def test_few_sequences_share_their_keys_out_and_many_do_for_one_long_context() -> None:
    assert count_spare(1, 8, 131072, False) == 32 and count_spare(1, 2, 131072, False) == 63
    assert count_spare(15, 8, 131072, False) == 32 and count_spare(16, 8, 131072, False) == 0
    assert count_spare(1, 8, 250, False) == 0 and count_spare(256, 8, 131072, True) == 32
    assert count_spare(8, 1, 131072, False) == 64, "as many parts as merge adds up at once"
    assert is_uneven(131072, 131072 + 31 * 1024, 8) and not is_uneven(1024, 32 * 1024, 8)
    assert not is_uneven(4096, 64 * 1024, 8), "four times the mean is no more than two programs have"
    assert not is_uneven(2000, 2100, 8), "too short for another launch"


def test_few_programs_share_long_contexts() -> None:
    assert count_splits(2, 1, 8, 131072) == 32 and count_splits(65, 64, 640, 131072) == 4
    assert count_splits(2, 1, 8, 300) == 2 and count_splits(2, 1, 8, 250) == 1
    assert count_splits(300, 9, 300, 131072) == 4 and count_splits(4096, 9, 3000, 131072) == 1


@pytest.mark.parametrize("group", [1, 3, 7, 8, 16, 33, 71, 128])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("modern", [False, True])
def test_a_tile_has_room_for_one_query_and_decodes_take_the_least(group: int, head_dim: int, modern: bool) -> None:
    for tokens, sequences in ((1, 1), (64, 64), (300, 2), (5000, 3)):
        tile = choose_tile(tokens, sequences, 2 * group, 2, head_dim, 2, 16, modern)
        assert tile.rows >= group and tile.rows.bit_count() == tile.keys.bit_count() == 1
        assert LEAST_SPLIT % tile.keys == 0
        assert tile.rows == max(16, 1 << (group - 1).bit_length()) or group > 32 or tokens > sequences
