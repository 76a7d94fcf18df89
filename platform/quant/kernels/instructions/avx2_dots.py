# mypy: allow-untyped-decorators
"""Products of integers where the processor has dot products of int16 only (AVX2): activations are int16
(`int16_activations.py`), and codes become words in the registers. The data lies as `integer_linear.py` says, panels of
16 outputs.

An output's four codes are one lane; shifted and masked they are two pairs of words, of the inputs 0 and 2, and 1 and 3.
"""

from collections.abc import Iterator
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..layouts.int16_activations import AS_WORDS, PER_ROW, STEP, Products, bring_scales_near
from .dot_shapes import BYTES, HALF_BYTE, INTEGER
from .tile import PANEL, VECTORS
from .vectors import FLOATS, INT, INT32, LANES, WORDS, Code, each_case, features

HAS_INTEGERS: Final = AS_WORDS and "+avx2" in features.split(",")
TOKENS: Final = 4
"""Most tokens whose sums are in registers at a time."""
TILES: Final = (1, 2, TOKENS)
"""Numbers of tokens."""
STEP_BYTES: Final = {INTEGER: STEP * PANEL, HALF_BYTE: STEP * PANEL // 2}
"""Of weights, by kind of product."""
LANE_WORDS: Final = STEP // 4
"""Lanes of an output in a step."""
AHEAD: Final = 2048
"""Bytes of weights that are on their way to the first-level cache."""
PAIRS_OF_WORDS: Final = ir.VectorType(ir.IntType(16), 2 * LANES)


class _Tile(Code):
    """Writes the LLVM code of one tile [tokens, PANEL] of y."""

    def __init__(self, builder: Any, kind: int, tokens: int) -> None:
        super().__init__(builder)
        self.kind, self.tokens = kind, tokens

    def sweep(self, x: Any, weights: Any, steps: Any) -> list[Any]:
        """x W^T over `steps` steps, whole numbers: vectors of each token."""
        nothing = [ir.Constant(WORDS, [0] * LANES)] * (self.tokens * VECTORS)

        def multiply(step: Any, sums: list[Any]) -> list[Any]:
            here = self.builder.add(weights, self.builder.mul(step, INT(STEP_BYTES[self.kind])))
            return self._multiply(sums, here, self.builder.add(x, self.builder.mul(step, INT(BYTES))))

        return self.loop(steps, nothing, multiply)

    def add_block(self, totals: list[Any], sums: list[Any], group: tuple[Any, ...]) -> list[Any]:
        """totals, and what the sums of a block stand for; `group`: as Products has it."""
        bring_scales_near(self, *group[:2])
        added = list(totals)
        for vector in range(VECTORS):
            products = Products(self, vector, *group)
            for cell in range(vector, len(totals), VECTORS):
                added[cell] = products.add(totals[cell], sums[cell], INT(cell // VECTORS))
        return added

    def begin(self, bias: Any, used: Any, y: Any, stride: Any, columns: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """The vectors to start from, the bias, or what y holds where that is null; and where they go, masks beside."""
        cells = []
        for token in range(self.tokens):
            place = self.builder.add(y, self.builder.mul(stride, INT(token)))
            is_used = self.builder.icmp_signed("<", INT(token), used)
            for vector in range(VECTORS):
                left = self.builder.sub(self.builder.select(is_used, columns, INT(0)), INT(vector * LANES))
                lanes = self.lanes_below(left)
                cells.append((self.pointer(place, vector * LANES * 4, FLOATS), lanes))
        has_bias = self.builder.icmp_signed("!=", bias, INT(0))
        starts = []
        for cell, (pointer, mask) in enumerate(cells):
            own = self.pointer(bias, cell % VECTORS * LANES * 4, FLOATS)
            starts.append(self.masked_load(self.builder.select(has_bias, own, pointer), mask))
        return starts, cells

    def _multiply(self, sums: list[Any], weights: Any, x: Any) -> list[Any]:
        """sums + one step."""
        for word, vectors in self._weights(weights):
            for token in range(self.tokens):
                inputs = self.splat(self.load(x, token * 2 * STEP + 4 * word, INT32), WORDS)
                for vector in range(VECTORS):
                    cell = token * VECTORS + vector
                    sums[cell] = self.builder.add(sums[cell], self._dot(vectors[vector], inputs))
        return sums

    def _weights(self, address: Any) -> Iterator[tuple[int, list[Any]]]:
        """Number of each pair of words of a row in a step, and the weights that it meets."""
        parts = (0, 8) if self.kind == INTEGER else (0, 8, 4, 12)
        bits = 0x00FF00FF if self.kind == INTEGER else 0x000F000F
        for lane in range(LANE_WORDS * 2 // len(parts)):
            self.prefetch(self.builder.add(address, INT(AHEAD + lane * PANEL * 4)), near=True)
            lanes = [self.load(address, (lane * VECTORS + vector) * LANES * 4, WORDS) for vector in range(VECTORS)]
            for number, shift in enumerate(parts):
                half, pair = divmod(number, 2)
                yield 2 * (lane + half * LANE_WORDS // 2) + pair, [self._part(value, shift, bits) for value in lanes]

    def _part(self, lanes: Any, shift: int, bits: int) -> Any:
        shifted = self.builder.lshr(lanes, ir.Constant(WORDS, [shift] * LANES)) if shift else lanes
        return self.builder.and_(shifted, ir.Constant(WORDS, [bits] * LANES))

    def _dot(self, a: Any, b: Any) -> Any:
        """Sums of two products of words each."""
        words = [self.builder.bitcast(value, PAIRS_OF_WORDS) for value in (a, b)]
        return self.call("llvm.x86.avx2.pmadd.wd", WORDS, *words)


@intrinsic
def multiply_words(
    typing: Any, kind: Any, tile_tokens: Any, used: Any, x: Any, weights: Any, steps: Any, block: Any, first: Any,
    group: Any, scales: Any, zeros: Any, rows: Any, m: Any, bias: Any, y: Any, stride: Any, columns: Any,
) -> Any:  # fmt: skip
    """y [used, columns] = (bias, or y where bias is 0) + x W^T of a run of blocks.

    kind:           INTEGER or HALF_BYTE
    tile_tokens:    of TILES, no fewer than `used`
    x, weights:     addresses of the first step's activations and weights
    steps, block:   of inputs, in all and in a block; the last block may have fewer
    first, group:   number of the first block, and blocks of a group
    scales, zeros:  addresses of the panel's first group's
    rows:           address of the tokens' scales in the first block, their sums m floats further; those of the next
                    block 2 * m floats further
    stride:         of y in bytes
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, tile_tokens, used, x, weights, steps, block, first, group, scales, zeros, rows, m, *outputs = arguments
        bias, y, stride, columns = outputs
        add, sub, mul = builder.add, builder.sub, builder.mul
        blocks = builder.sdiv(add(steps, sub(block, INT(1))), block)
        for one in each_case(builder, kind, (INTEGER, HALF_BYTE)):
            for tokens in each_case(builder, tile_tokens, TILES):
                tile = _Tile(builder, one, tokens)

                def add_block(number: Any, totals: list[Any], tile: _Tile = tile, one: int = one) -> list[Any]:
                    step, panel_group = mul(number, block), mul(builder.sdiv(add(first, number), group), INT(PANEL))
                    left = sub(steps, step)
                    count = builder.select(builder.icmp_signed("<", block, left), block, left)
                    sums = tile.sweep(
                        add(x, mul(step, INT(BYTES))), add(weights, mul(step, INT(STEP_BYTES[one]))), count
                    )
                    own = add(rows, mul(mul(number, m), INT(PER_ROW * 4)))
                    places = add(scales, mul(panel_group, INT(4))), add(zeros, panel_group)
                    return tile.add_block(totals, sums, (*places, own, add(own, mul(m, INT(4)))))

                starts, cells = tile.begin(bias, used, y, stride, columns)
                for (pointer, mask), total in zip(cells, tile.loop(blocks, starts, add_block), strict=True):
                    tile.masked_store(total, pointer, mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 17), generate
