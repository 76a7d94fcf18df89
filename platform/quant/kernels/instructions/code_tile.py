# mypy: allow-untyped-decorators
"""The LLVM code of one tile of y = x W^T with W as codes, by dot products of bfloat16 in vector registers: codes are
expanded on their way from memory to the multiplier, where the rows of the tile share them.
"""

from itertools import product
from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..layouts.expand import EXPANDED, FLOAT4, FLOAT8, INT4, INT8, PAIRS, RUN_BYTES, SCALE_BYTES, Expansion, Scaling
from .avx512_dots import dot
from .dot_shapes import BFLOAT16, BYTES, STEP
from .tile import PANEL
from .vectors import FLOATS, INT, LANES, each_case

TILE_ROWS: Final = (1, 2, 4, 8, 16)
TILE_VECTORS: Final = (2, 2, 2, 2, 1)
"""Of outputs, for each number of rows: one panel's, as memory is read faster in one stream than in two."""
LAST: Final = len(TILE_ROWS) - 1
KINDS: Final = (INT4, INT8, FLOAT8, FLOAT4)
CASES: Final = (*product(KINDS, (1, 2), range(LAST + 1)), (EXPANDED, 1, LAST), (EXPANDED, 2, LAST))
"""Kind of code, addends, and number of the tile."""
AHEAD: Final = 12 * 1024
"""Bytes of a panel's codes on their way to the first-level cache."""
SCALES_AHEAD: Final = 1024
"""Bytes of scales: too few of them pass by for the processor to see a stream."""


@njit
def choose_case(kind: int, addends: int, rows: int) -> int:
    """Index in CASES of the smallest tile that holds so many rows."""
    if kind == EXPANDED:
        return len(CASES) - 3 + addends
    tile = 0
    while TILE_ROWS[tile] < rows:
        tile += 1
    return (kind * 2 + addends - 1) * len(TILE_ROWS) + tile


@njit
def vectors_of(case: int) -> int:
    """Vectors of outputs that the tile of a case has."""
    return 1 if case >= len(CASES) - 2 else TILE_VECTORS[case % len(TILE_ROWS)]


class _Strip:
    """Addresses and columns of one vector of outputs. Its codes lie `pitch` bytes apart."""

    def __init__(
        self, builder: Any, kind: int, panel: Any, lane: Any, places: list[Any], runs: Any, groups: Any
    ) -> None:
        """The vector from `lane` of a panel on; `places`: of all codes, scales, zeros, bias and y, and y's columns."""
        add, mul = builder.add, builder.mul
        codes, scales, zeros, bias, y, columns = places
        first, first_group = (add(mul(panel, size), lane) for size in (INT(PANEL), mul(groups, INT(PANEL))))
        self.pitch = 4 * LANES if kind == EXPANDED else RUN_BYTES
        start = mul(lane, runs) if kind == EXPANDED else lane
        self.codes = add(codes, add(mul(mul(panel, runs), INT(RUN_BYTES)), mul(start, INT(4))))
        self.scales = add(scales, mul(first_group, INT(SCALE_BYTES[kind])))
        self.zeros = add(zeros, first_group)
        self.bias, self.y = (add(place, mul(first, INT(4))) for place in (bias, y))
        self.columns = builder.sub(columns, first)


class _Tile(Expansion):
    """Writes the LLVM code of a tile. Lists of vectors are [rows, strips], those of a row side by side."""

    def __init__(self, builder: Any, kind: int, addends: int, rows: int, strips: list[_Strip]) -> None:
        super().__init__(builder, kind)
        self.addends, self.rows, self.strips = addends, rows, strips
        self.runs = STEP // 2 // PAIRS[kind]
        """Of a step."""

    def biases(self) -> list[Any]:
        return [self.load(strip.bias, 0, FLOATS) for strip in self.strips] * self.rows

    def group_sums(self, x: Any, first: Any, runs: Any, all_runs: Any, jump: Any) -> list[Any]:
        """Of a group: `runs` runs from `first` on; x is that of the group."""
        builder = self.builder

        def multiply_run(index: Any, sums: list[Any]) -> list[Any]:
            run = builder.add(first, index)
            step, at = builder.sdiv(index, INT(self.runs)), builder.srem(index, INT(self.runs))
            inputs = builder.mul(step, INT(self.addends * BYTES)), builder.mul(at, INT(4 * PAIRS[self.kind]))
            if self.kind != EXPANDED:
                later = builder.add(run, INT(AHEAD // RUN_BYTES))
                beyond = builder.select(builder.icmp_signed(">=", later, all_runs), jump, INT(0))
                self._bring_near(builder.add(builder.mul(later, INT(RUN_BYTES)), beyond))
            return self._multiply_run(sums, run, builder.add(x, builder.add(*inputs)))

        return self.loop(runs, [ir.Constant(FLOATS, [0.0] * LANES)] * (self.rows * len(self.strips)), multiply_run)

    def _bring_near(self, offset: Any) -> None:
        for strip in self.strips:
            self.prefetch(self.builder.add(strip.codes, offset), near=True)

    def _multiply_run(self, sums: list[Any], run: Any, x: Any) -> list[Any]:
        """sums, and the products of a run, whose inputs are at x."""
        for vector, strip in enumerate(self.strips):
            codes = self.builder.add(strip.codes, self.builder.mul(run, INT(strip.pitch)))
            for pair, word in enumerate(self.words(codes)):
                for addend, row in product(range(self.addends), range(self.rows)):
                    at, place = row * len(self.strips) + vector, addend * BYTES + row * 64 + pair * 4
                    sums[at] = dot(self, BFLOAT16, sums[at], word, x, place)
        return sums

    def add_group(self, totals: list[Any], sums: list[Any], group: Any, inputs: Any, offset: Any) -> list[Any]:
        """totals, and the sums of a group scaled; `inputs`: address of the sums of the rows' inputs."""
        builder, added, first = self.builder, list(totals), self.builder.mul(group, INT(PANEL))
        for vector, strip in enumerate(self.strips):
            scales = builder.add(strip.scales, builder.mul(first, INT(SCALE_BYTES[self.kind])))
            zeros = builder.add(strip.zeros, first)
            self.prefetch(builder.add(scales, INT(SCALES_AHEAD // 4 * SCALE_BYTES[self.kind])), near=True)
            if self.kind != FLOAT4:
                self.prefetch(builder.add(zeros, INT(SCALES_AHEAD // 4)), near=True)
            scaling = Scaling(builder, self.kind, scales, zeros, self.splat(offset, FLOATS))
            for row in range(self.rows):
                at = row * len(self.strips) + vector
                added[at] = scaling.add(totals[at], sums[at], builder.add(inputs, INT(row * 4)))
        return added

    def store(self, totals: list[Any], used: Any, stride: Any) -> None:
        masks = [self.lanes_below(strip.columns) for strip in self.strips]
        for row in range(self.rows):
            with self.builder.if_then(self.builder.icmp_signed("<", INT(row), used), likely=True):
                for vector, strip in enumerate(self.strips):
                    place = self.builder.add(strip.y, self.builder.mul(stride, INT(row)))
                    total = totals[row * len(self.strips) + vector]
                    self.masked_store(total, self.pointer(place, 0, FLOATS), masks[vector])


@intrinsic
def multiply_tile(
    typing: Any, case: Any, used: Any, panel: Any, lane: Any, codes: Any, scales: Any, zeros: Any,
    bias: Any, y: Any, n: Any, steps: Any, group: Any, x: Any, inputs: Any, m: Any, offset: Any, jump: Any,
) -> Any:  # fmt: skip
    """y of `used` rows in the outputs of a tile, the sums of each group from zero on.

    case:               of CASES
    lane:               first of the panel, for tiles of fewer vectors
    codes to y, x:      addresses, y's and x's those of the first of the rows; x as `split.py` has it
    inputs:             address of the sums of the rows' inputs, [groups, m]
    offset:             that expanded codes have too much, besides their zero points
    jump:               bytes from the end of the panels to those whose codes are wanted next
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        case, used, panel, lane, *places, n, steps, group, x, inputs, m, offset, jump = arguments
        add, mul = builder.add, builder.mul
        groups = builder.sdiv(builder.sub(add(steps, group), INT(1)), group)

        def add_groups(tile: _Tile, all_runs: Any) -> list[Any]:
            def add_group(number: Any, totals: list[Any]) -> list[Any]:
                first = mul(number, group)
                left = builder.sub(steps, first)
                count = builder.select(builder.icmp_signed("<", group, left), group, left)
                here, runs = add(x, mul(first, INT(tile.addends * BYTES))), INT(tile.runs)
                sums = tile.group_sums(here, mul(first, runs), mul(count, runs), all_runs, jump)
                return tile.add_group(totals, sums, number, add(inputs, mul(mul(number, m), INT(4))), offset)

            return tile.loop(groups, tile.biases(), add_group)

        for index in each_case(builder, case, range(len(CASES))):
            kind, addends, shape = CASES[index]
            runs = mul(steps, INT(STEP // 2 // PAIRS[kind]))
            lanes = [add(lane, INT(vector * LANES)) for vector in range(TILE_VECTORS[shape])]
            strips = [_Strip(builder, kind, panel, first, [*places, n], runs, groups) for first in lanes]
            tile = _Tile(builder, kind, addends, TILE_ROWS[shape], strips)
            tile.store(add_groups(tile, runs), used, mul(n, INT(4)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 15, types.float32, types.int64), generate
