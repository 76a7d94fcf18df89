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
    pad_head,
    partial_rows,
)
from loraplex.quant.kernels.cuda.card import Card
from tests.cards import CARDS

H100, L4 = CARDS[90], CARDS[89]
ANY_CARD = st.sampled_from([*CARDS.values()])


@given(st.lists(st.integers(0, 200), min_size=1, max_size=40), st.integers(1, 64))
def test_every_query_has_a_tile_of_its_sequence_within_the_bound(counts: list[int], queries: int) -> None:
    starts = [0, *accumulate(counts)]
    firsts = [start // queries + sequence for sequence, start in enumerate(starts)]
    rooms = [after - first for first, after in pairwise(firsts)]
    assert all(-(-count // queries) <= room for count, room in zip(counts, rooms, strict=True))
    assert firsts[-1] == bound_tiles(starts[-1], len(counts), queries)


@given(st.integers(1, 9000), st.integers(1, 256), st.integers(1, 5000), st.integers(1, 1 << 20), ANY_CARD)
def test_partial_results_have_room(tokens: int, sequences: int, programs: int, most_length: int, card: Card) -> None:
    splits = count_splits(tokens, sequences, programs, most_length, card)
    assert 1 <= splits <= MOST_SPLITS and (splits == 1 or splits * LEAST_SPLIT <= most_length)
    assert splits == 1 or splits * tokens <= partial_rows(tokens)


@given(st.integers(1, 3000), st.integers(1, 300), st.integers(1, 1 << 20), st.booleans(), ANY_CARD)
def test_parts_of_decodes_have_room(sequences: int, kv_heads: int, most_length: int, uneven: bool, card: Card) -> None:
    spare = count_spare(sequences, kv_heads, most_length, uneven, card)
    assert 0 <= spare <= most_spare(kv_heads, card) and (spare == 0 or sequences + spare <= partial_rows(sequences))


def test_few_sequences_share_their_keys_out_and_many_do_for_one_long_context() -> None:
    assert count_spare(1, 8, 131072, False, H100) == 32 and count_spare(1, 2, 131072, False, H100) == 63
    assert count_spare(31, 8, 131072, False, H100) == 32 and count_spare(32, 8, 131072, False, H100) == 0
    assert count_spare(1, 8, 250, False, H100) == 0 and count_spare(256, 8, 131072, True, H100) == 32
    assert count_spare(8, 1, 131072, False, H100) == 64, "no more parts than that"
    assert is_uneven(131072, 131072 + 31 * 1024, 8, H100) and not is_uneven(1024, 32 * 1024, 8, H100)
    assert not is_uneven(4096, 64 * 1024, 8, H100), "four times the mean is no more than two programs have"
    assert not is_uneven(2000, 2100, 8, H100), "too short to outlast them by much"


def test_a_small_card_is_full_with_fewer_programs() -> None:
    """Of 58 multiprocessors, for 8 KV heads: 14 sequences, 14 parts of one context."""
    assert count_spare(14, 8, 131072, False, L4) == 0 and count_spare(13, 8, 131072, False, L4) == 14
    assert count_spare(1, 8, 131072, False, L4) == 14 and count_splits(2, 1, 8, 131072, L4) == 14


def test_few_programs_share_long_contexts() -> None:
    assert count_splits(2, 1, 8, 131072, H100) == 32 and count_splits(65, 64, 640, 131072, H100) == 4
    assert count_splits(2, 1, 8, 300, H100) == 2 and count_splits(2, 1, 8, 250, H100) == 1
    assert count_splits(300, 9, 300, 131072, H100) == 4 and count_splits(4096, 9, 3000, 131072, H100) == 1


@pytest.mark.parametrize("group", [1, 3, 7, 8, 16, 33, 71, 128])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_a_tile_has_room_for_one_query_and_decodes_take_the_least(group: int, head_dim: int, card: Card) -> None:
    for tokens, sequences in ((1, 1), (64, 64), (300, 2), (5000, 3)):
        tile = choose_tile(tokens, sequences, 2 * group, 2, head_dim, 2, 16, card)
        assert tile.rows >= group and tile.rows.bit_count() == tile.keys.bit_count() == 1
        assert LEAST_SPLIT % tile.keys == 0
        assert tile.rows == max(16, 1 << (group - 1).bit_length()) or group > 32 or tokens > sequences


@pytest.mark.parametrize("item_size", [1, 2, 4])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256, 512])
@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_every_tile_starts_and_two_decodes_share_a_multiprocessor(card: Card, head_dim: int, item_size: int) -> None:
    """Of eight heads for each KV head, where two steps of their keys leave the room."""
    padded = pad_head(head_dim)
    for tokens, sequences in ((1, 1), (64, 64), (300, 2), (5000, 3)):
        for group in (8, 32):
            tile = choose_tile(tokens, sequences, 2 * group, 2, head_dim, item_size, 16, card)
            programs = card.resident(tile.shared_bytes(padded, item_size))
            assert programs >= (2 if tokens == sequences and group == 8 and item_size * padded <= 1024 else 1)
            for most in (tile.registers, tile.static_registers):
                assert most is None or (most % 8 == 0 and 128 <= most <= 255)
