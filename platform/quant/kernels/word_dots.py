# mypy: allow-untyped-decorators
"""Products of integers where the processor has dot products of 16-bit words only (AVX2): a row's digits are such words
(`digits.py`), and codes become words in the registers. The data lies as `dots.py` says, for panels of 16 outputs.

An output's four codes are one lane; shifted and masked they are two pairs of words, of the inputs 0 and 2, and 1 and 3.
"""

from collections.abc import Iterator
from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .digits import AS_WORDS, STEP, Products, bring_scales_near
from .dot_shapes import BYTES, HALF_BYTE, INTEGER, ROWS
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
AHEAD: Final = 8 * BYTES
"""Bytes of weights that are on their way to the first-level cache."""
PAIRS_OF_WORDS: Final = ir.VectorType(ir.IntType(16), 2 * LANES)


class _Tile(Code):
    """Writes the LLVM code of one tile [tokens, PANEL] of sums."""

    def __init__(self, builder: Any, kind: int, tokens: int) -> None:
        super().__init__(builder)
        self.kind, self.tokens = kind, tokens

    def sweep(self, x: Any, weights: Any, steps: Any, following: Any) -> list[Any]:
        """x W^T over `steps` steps."""
        nothing = [ir.Constant(WORDS, [0] * LANES)] * (self.tokens * VECTORS)

        def multiply(step: Any, sums: list[Any]) -> list[Any]:
            here = self.builder.add(weights, self.builder.mul(step, INT(STEP_BYTES[self.kind])))
            ahead = self.ahead(step, steps, STEP_BYTES[self.kind], AHEAD, weights, following)
            return self._multiply(sums, here, ahead, self.builder.add(x, self.builder.mul(step, INT(BYTES))))

        return self.loop(steps, nothing, multiply)

    def add_products(self, sums: list[Any], used: Any, group: tuple[Any, ...], bias: Any, y: Any) -> None:
        """The outputs of the first `used` tokens; `group`: as Products has it."""
        bring_scales_near(self, *group[:2])
        for vector in range(VECTORS):
            products = Products(self, vector, *group)
            for token in range(self.tokens):
                with self.builder.if_then(self.builder.icmp_signed("<", INT(token), used), likely=True):
                    place = self.builder.add(y, INT(token * PANEL * 4))
                    begun = self.builder.select(self.builder.icmp_signed("!=", bias, INT(0)), bias, place)
                    start = self.load(begun, vector * LANES * 4, FLOATS)
                    result = products.add(start, sums[token * VECTORS + vector], INT(token))
                    self.builder.store(result, self.pointer(place, vector * LANES * 4, FLOATS), align=4)

    def _multiply(self, sums: list[Any], weights: Any, ahead: Any, x: Any) -> list[Any]:
        """sums + one step. Brings the weights at `ahead` near."""
        for word, vectors in self._weights(weights, ahead):
            for token in range(self.tokens):
                digits = self.splat(self.load(x, token * 2 * STEP + 4 * word, INT32), WORDS)
                for vector in range(VECTORS):
                    cell = token * VECTORS + vector
                    sums[cell] = self.builder.add(sums[cell], self._dot(vectors[vector], digits))
        return sums

    def _weights(self, address: Any, ahead: Any) -> Iterator[tuple[int, list[Any]]]:
        """Number of each pair of words of a row in a step, and the weights that it meets."""
        parts = (0, 8) if self.kind == INTEGER else (0, 8, 4, 12)
        bits = 0x00FF00FF if self.kind == INTEGER else 0x000F000F
        for lane in range(LANE_WORDS * 2 // len(parts)):
            self.prefetch(self.builder.add(ahead, INT(lane * PANEL * 4)), near=True)
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


@njit
def _tile_tokens(used: int) -> int:
    """The smallest of TILES that holds so many tokens."""
    return TOKENS if used > 2 else used


@intrinsic
def _add(
    typing: Any, kind: Any, tile_tokens: Any, used: Any, x: Any, weights: Any, steps: Any, following: Any, scales: Any,
    zeros: Any, row_scales: Any, row_sums: Any, bias: Any, y: Any,
) -> Any:  # fmt: skip
    """As dots.add_integers, for `used` tokens; kind: INTEGER or HALF_BYTE, tile_tokens: of TILES."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, tile_tokens, used, x, weights, steps, following, *group, bias, y = arguments
        for one in each_case(builder, kind, (INTEGER, HALF_BYTE)):
            for tokens in each_case(builder, tile_tokens, TILES):
                tile = _Tile(builder, one, tokens)
                tile.add_products(tile.sweep(x, weights, steps, following), used, tuple(group), bias, y)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 13), generate


@njit
def _add_tokens(
    kind: int, rows: int, x: int, x_block: int, weights: int, steps: int, following: int, scales: int, zeros: int,
    row_scales: int, row_sums: int, bias: int, y: int,
) -> None:  # fmt: skip
    for token in range(0, rows // 2, TOKENS):
        used, row = min(rows // 2 - token, TOKENS), 2 * token
        source, place = x + row // ROWS * x_block + row % ROWS * STEP, y + token * PANEL * 4
        own, total, after = row_scales + token * 4, row_sums + token * 4, following if token == 0 else 0
        _add(kind, _tile_tokens(used), used, source, weights, steps, after, scales, zeros, own, total, bias, place)


@njit
def add_integers(
    rows: int, usual: int, x: int, x_block: int, weights: int, steps: int, following: int, scales: int, zeros: int,
    row_scales: int, row_sums: int, bias: int, y: int, sums: int,
) -> None:  # fmt: skip
    """As dots.add_integers."""
    _add_tokens(INTEGER, rows, x, x_block, weights, steps, following, scales, zeros, row_scales, row_sums, bias, y)


@njit
def add_half_bytes(
    rows: int, usual: int, x: int, x_block: int, weights: int, steps: int, following: int, scales: int, zeros: int,
    row_scales: int, row_sums: int, bias: int, y: int, sums: int,
) -> None:  # fmt: skip
    """As dots.add_integers, of weights in half bytes."""
    _add_tokens(HALF_BYTE, rows, x, x_block, weights, steps, following, scales, zeros, row_scales, row_sums, bias, y)
