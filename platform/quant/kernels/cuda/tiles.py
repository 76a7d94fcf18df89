"""Tile sizes of the CUDA kernels and what follows from them. Numbers only: no triton is imported."""

from typing import Final, NamedTuple

from .card import Card

PANEL: Final = 64
"""Outputs whose codes lie together in memory."""
RUNS: Final = (128, 64, 32)
"""Inputs of one run, the step of every kernel: the first that no group of inputs ends within."""
MOST_SPLITS: Final = 16
LEAST_SPLIT_RUNS: Final = 4
"""Runs of one split at least, enough to have loads ahead of use."""
DENSE_ROWS: Final = 64
"""Above this many rows, dequantizing once and multiplying densely costs less than reading and decoding the weight once
for each 64 rows: on an H200, of 256 rows, it took 0.27 to 0.44 of the time."""
DENSE_BYTES: Final = 256 << 20
"""Dequantized bytes at a time: a bound on memory. Each slice is a product of its own, whose last wave of tiles leaves
multiprocessors without work."""
ADDED_ELEMENTS: Final = 1024
"""Elements that one program adds up where the inputs were split."""
CAST_ELEMENTS: Final = 64
"""Elements that a thread of the cast to float8 holds at most."""


class Tile(NamedTuple):
    """What one program of `multiply` owns: a panel of outputs and some rows. The weights take the tall side of the
    matrix units, so that one row of x uses them as well as sixteen."""

    rows: int
    warps: int
    stages: int
    """Passes of the loop whose loads are on their way, and the one in use."""
    programs: int
    """Of a multiprocessor, that keep it busy; with fewer tiles than that on the card the inputs are split."""
    runs: int = 1
    """Runs of one pass of the loop: with more, fewer instructions that only count and address."""
    registers: int | None = None
    """Of a thread, at most; None: as many as the assembler takes."""

    def shared_bytes(self, width: int) -> int:
        """With runs of `width` bytes of codes and the most inputs: codes and x of all passes but the one in use."""
        return (self.stages - 1) * self.runs * (PANEL * width + 2 * self.rows * RUNS[0])

    def limit_registers(self, width: int, card: Card) -> int | None:
        """`registers` where shared memory has no room for `programs`: the assembler else spares registers for programs
        that never come, and puts numbers on the stack."""
        return self.registers if card.resident(self.shared_bytes(width)) < self.programs else None


LEAST: Final = Tile(rows=8, warps=4, stages=3, programs=4, runs=2)
"""Half of the room for x: up to eight programs fit a multiprocessor of 227 KB, before five."""
FEW: Final = Tile(rows=16, warps=4, stages=3, programs=4, runs=2, registers=128)
MANY: Final = Tile(rows=64, warps=4, stages=3, programs=3)


def choose_tile(rows: int) -> Tile:
    return next((tile for tile in (LEAST, FEW) if rows <= tile.rows), MANY)


def choose_run(group: int | None) -> int:
    """Inputs of one run for groups of `group` inputs, None for a single group. Raises ValueError."""
    if group is None:
        return RUNS[0]
    for run in RUNS:
        if group % run == 0:
            return run
    raise ValueError(f"groups of {group} inputs: on CUDA the size of a group must be a multiple of {RUNS[-1]}")


def count_split_runs(outputs: int, rows: int, runs: int, width: int, card: Card) -> int:
    """Runs that one program of `multiply` sums, by the shapes and the card: on one card the same shapes give the same
    bits. width: bytes of the codes of one run."""
    tile = choose_tile(rows)
    tiles = -(-outputs // PANEL) * -(-rows // tile.rows)
    programs = card.processors * min(tile.programs, card.resident(tile.shared_bytes(width)))
    splits = max(1, min(MOST_SPLITS, programs // tiles, runs // LEAST_SPLIT_RUNS))
    return min(runs, -(-runs // (splits * tile.runs)) * tile.runs)


class ExactTile(NamedTuple):
    rows: int
    columns: int
    step: int
    """Inputs of one pass of the loop."""
    warps: int
    stages: int


EXACT: Final = ExactTile(rows=16, columns=16, step=32, warps=4, stages=4)
"""Of products in float32: many programs for few outputs."""
