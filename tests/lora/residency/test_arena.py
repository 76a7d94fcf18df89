"""Arena: extents never overlap, nothing is lost, and what is freed can be had again."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from loraplex.lora.residency.arena import Arena

SIZE = 1000


@given(
    alignment=st.sampled_from([1, 8]),
    steps=st.lists(st.one_of(st.integers(1, 300), st.floats(0, 1, exclude_max=True)), max_size=80),
)
@settings(max_examples=300)
def test_extents_are_disjoint_and_nothing_is_lost(alignment: int, steps: list[int | float]) -> None:
    """An integer allocates, a fraction releases the extent at that place of the list."""
    arena = Arena(SIZE, alignment)
    taken: dict[int, int] = {}
    for step in steps:
        if isinstance(step, int):
            _allocate(arena, taken, step)
        elif taken:
            offset = sorted(taken)[int(step * len(taken))]
            del taken[offset]
            arena.release(offset)
        assert arena.check_integrity() == []
        assert arena.used == sum(map(arena.rounded, taken.values()))
    arena.release_all(taken)
    assert arena.allocate(arena.size) == 0, "neighbours were not joined"


def _allocate(arena: Arena, taken: dict[int, int], size: int) -> None:
    gaps = _gaps(taken, arena)
    offset = arena.allocate(size)
    fitting = [gap for gap in gaps if gap[0] >= arena.rounded(size)]
    assert (offset is None) == (not fitting)
    if offset is not None:
        assert offset % arena.alignment == 0
        assert min(fitting)[0] == {start: gap for gap, start in gaps}[offset], "not the tightest gap"
        taken[offset] = size


def _gaps(taken: dict[int, int], arena: Arena) -> list[tuple[int, int]]:
    position, gaps = 0, []
    for offset, size in [*sorted(taken.items()), (arena.size, 0)]:
        if offset > position:
            gaps.append((offset - position, position))
        position = offset + arena.rounded(size)
    return gaps


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_allocate_all_takes_all_or_nothing(sizes: list[int]) -> None:
    arena = Arena(SIZE)
    offsets = arena.allocate_all(sizes)
    if sum(sizes) > SIZE:
        assert offsets is None
    if offsets is None:
        assert arena.used == 0
    else:
        assert arena.used == sum(sizes)
        ends = sorted((offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    assert arena.check_integrity() == []


def test_check_integrity_sees_damage() -> None:
    arena = Arena(SIZE)
    arena.allocate(100)
    arena._taken[0] = 90
    assert arena.check_integrity()
