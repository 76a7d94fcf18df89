"""Tile sizes of the CUDA kernels and what follows from them. Numbers only: no triton is imported."""

from typing import Final, NamedTuple

from .card import Card, limit_registers

PANEL: Final = 64
"""Outputs whose codes lie together in memory."""
RUNS: Final = (128, 64, 32)
"""Inputs of one run, the step of every kernel: the first that no group of inputs ends within."""
LEAST_SHARE_RUNS: Final = 4
"""Runs of one program at least, enough to have loads ahead of use."""
MOST_PROGRAMS: Final = 4096
"""Of one launch that share out sums: each may begin one tile that it does not end."""
DENSE_ROWS: Final = 64
"""Above this many rows, dequantizing once and multiplying densely costs less than reading and decoding the weight once
for each 64 rows: on an H200, of 256 rows, it took 0.27 to 0.44 of the time."""
DENSE_BYTES: Final = 256 << 20
"""Dequantized bytes at a time: a bound on memory. Each slice is a product of its own, whose last wave of tiles leaves
multiprocessors without work."""
CAST_ELEMENTS: Final = 64
"""Elements that a thread of the cast to float8 holds at most."""


class Tile(NamedTuple):
    """What one program of `multiply` has in registers: some panels of outputs and some rows. The weights take the tall
    side of the matrix units, so that one row of x uses them as well as sixteen."""

    rows: int
    warps: int
    stages: int
    """Runs whose loads are on their way, and the one in use."""
    programs: int
    """Of a multiprocessor, that keep it busy."""
    panels: int = 2
    """One or two: with two, programs read x half as often."""

    def shared_bytes(self, width: int, card: Card) -> int:
        """With runs of `width` bytes of codes and the most inputs: codes and x of all runs but the one in use; x of
        that one too where matrix units read it from there."""
        x = 2 * self.rows * RUNS[0]
        return (self.stages - 1) * (self.panels * PANEL * width + x) + (x if card.multiplies_shared else 0)

    def resident(self, width: int, card: Card) -> int:
        """Programs that a multiprocessor holds at a time."""
        return min(self.programs, card.resident(self.shared_bytes(width, card)))

    @property
    def registers(self) -> int:
        """Of a thread at most, so that `programs` fit. Where shared memory has no room for as many, too: with more the
        assembler puts numbers on the stack."""
        return limit_registers(self.programs, self.warps)


LEAST: Final = Tile(rows=8, warps=4, stages=4, programs=4)
FEW: Final = Tile(rows=16, warps=4, stages=4, programs=3)
MANY: Final = Tile(rows=64, warps=4, stages=3, programs=2)
MANY_OF_ONE: Final = MANY._replace(panels=1, programs=3)
"""Where matrix units take both operands from registers, which has no room for the sums of two panels."""
MANY_OF_FEWER: Final = MANY_OF_ONE._replace(programs=2)
"""As much. From sm_120 on the assembler puts a number on the stack for the sake of a third program."""


def choose_tile(rows: int, card: Card) -> Tile:
    of_one = MANY_OF_FEWER if card.capability >= (12, 0) else MANY_OF_ONE
    many = MANY if card.multiplies_shared else of_one
    return next((tile for tile in (LEAST, FEW) if rows <= tile.rows), many)


def choose_run(group: int | None) -> int:
    """Inputs of one run for groups of `group` inputs, None for a single group. Raises ValueError."""
    if group is None:
        return RUNS[0]
    for run in RUNS:
        if group % run == 0:
            return run
    raise ValueError(f"groups of {group} inputs: on CUDA the size of a group must be a multiple of {RUNS[-1]}")


def share_out(outputs: int, rows: int, runs: int, width: int, card: Card) -> tuple[int, int]:
    """Programs of `multiply`, and runs of each, by the shapes and the card: on one card the same shapes give the same
    bits. width: bytes of the codes of one run."""
    tile = choose_tile(rows, card)
    work = runs * -(-outputs // (tile.panels * PANEL)) * -(-rows // tile.rows)
    return divide_runs(work, card.processors * tile.resident(width, card))


def divide_runs(work: int, most: int) -> tuple[int, int]:
    """(programs, at most `most`; runs of each) for `work` runs of all tiles."""
    share = -(-work // max(1, min(most, MOST_PROGRAMS, work // LEAST_SHARE_RUNS)))
    return -(-work // share), share


class ExactTile(NamedTuple):
    rows: int
    columns: int
    step: int
    """Inputs of one pass of the loop."""
    warps: int
    stages: int


EXACT: Final = ExactTile(rows=16, columns=16, step=32, warps=4, stages=4)
"""Of products in float32: many programs for few outputs."""
