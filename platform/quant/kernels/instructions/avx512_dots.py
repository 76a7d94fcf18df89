# mypy: allow-untyped-decorators
"""Dot products in the vector registers of AVX-512: pairs of bfloat16 (BF16), fours of bytes (VNNI). The data lies as
matrix registers have it (`dots.py`); a row's word is broadcast on its way from memory to the multiplier.

The instructions are written as assembly: LLVM's names for them take other types from one version to the next.
"""

from collections.abc import Iterator
from typing import Any, Final

import llvmlite.binding
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..layouts.int16_activations import Products, bring_scales_near
from .dot_shapes import BFLOAT16, BYTES, HALF_BYTE, INTEGER, ROWS
from .vectors import FLOATS, INT, LANES, WORDS, Code, each_case, features

llvmlite.binding.initialize_native_asmparser()

_known: Final = set(features.split(","))
HAS_BFLOAT16: Final = "+avx512bf16" in _known and LANES == 16
HAS_INTEGERS: Final = "+avx512vnni" in _known and LANES == 16
INSTRUCTIONS: Final = {BFLOAT16: "vdpbf16ps", INTEGER: "vpdpbusd", HALF_BYTE: "vpdpbusd"}
SUMS: Final = {BFLOAT16: FLOATS, INTEGER: WORDS, HALF_BYTE: WORDS}
STEP_BYTES: Final = {BFLOAT16: 2 * BYTES, INTEGER: 2 * BYTES, HALF_BYTE: BYTES}
"""Of weights, by kind of product."""
TILE: Final = 8
"""Most rows whose sums are in registers at a time."""
TILES: Final = (1, 2, 4, TILE)
"""Numbers of rows."""
SHARES: Final = (16, 17)
"""A full tile that brings every other line of the weights near, where another one brings the rest: a first tile that
brought all of them would ask memory for more than it gives, and the second for nothing."""
PAIRS: Final = 16
"""Words of a row in one step."""
AHEAD: Final = 12 * BYTES
"""Bytes of weights that are on their way to the first-level cache."""


@njit(inline="always")
def ready(rows: int) -> None:
    """Nothing: vector registers are always ready."""


@njit(inline="always")
def done() -> None:
    """Nothing."""


class _Tile(Code):
    """Writes the LLVM code of one tile [rows, 32] of sums."""

    def __init__(self, builder: Any, kind: int, shape: int, used: Any) -> None:
        """`shape`: of TILES or SHARES."""
        super().__init__(builder)
        self.kind, self.rows, self.used = kind, min(shape, TILE), used
        self.share = SHARES.index(shape) if shape in SHARES else None
        self.cells = [(row, half) for row in range(self.rows) for half in range(2)]

    @property
    def is_far(self) -> bool:
        """Whether what it brings near is all of `following`, which only the second level has room for. A block of
        integers is short: what comes AHEAD of it is brought by two tiles in time."""
        return self.share is not None and self.kind == BFLOAT16

    def is_used(self, row: int) -> Any:
        return self.builder.icmp_signed("<", INT(row), self.used)

    def load_sums(self, start: Any, pitch: Any) -> list[Any]:
        """A row that is not used begins as the first does."""
        zero, sums = INT(0), []
        for row, half in self.cells:
            offset = self.builder.select(self.is_used(row), self.builder.mul(pitch, INT(row)), zero)
            sums.append(self.load(self.builder.add(start, offset), 64 * half, SUMS[self.kind]))
        return sums

    def store_sums(self, sums: list[Any], y: Any, stride: Any) -> None:
        for row in range(self.rows):
            with self.builder.if_then(self.is_used(row), likely=True):
                place = self.builder.add(y, self.builder.mul(stride, INT(row)))
                for half in range(2):
                    pointer = self.pointer(place, 64 * half, SUMS[self.kind])
                    self.builder.store(sums[2 * row + half], pointer, align=4)

    def add_products(self, sums: list[Any], group: tuple[Any, ...], bias: Any, y: Any) -> None:
        """The outputs of each token, whose high and low bytes are two rows; `group`: as Products has it."""
        bring_scales_near(self, *group[:2])
        for half in range(2):
            products = Products(self, half, *group)
            for token in range(self.rows // 2):
                with self.builder.if_then(self.is_used(2 * token), likely=True):
                    place = self.builder.add(y, INT(128 * token))
                    begun = self.builder.select(self.builder.icmp_signed("!=", bias, INT(0)), bias, place)
                    start, at = self.load(begun, 64 * half, FLOATS), 4 * token + half
                    result = products.add(start, products.joined(sums[at], sums[at + 2]), INT(token))
                    self.builder.store(result, self.pointer(place, 64 * half, FLOATS), align=4)

    def sweep(self, sums: list[Any], x: Any, weights: Any, steps: Any, following: Any) -> list[Any]:
        """sums + x W^T over `steps` steps."""
        step_bytes = INT(STEP_BYTES[self.kind])

        def multiply(step: Any, sums: list[Any]) -> list[Any]:
            here = self.builder.add(weights, self.builder.mul(step, step_bytes))
            if self.is_far:
                ahead = self.builder.add(following, self.builder.mul(step, step_bytes))
            else:
                ahead = self.ahead(step, steps, STEP_BYTES[self.kind], AHEAD, weights, following)
            return self.multiply(sums, here, ahead, self.builder.add(x, self.builder.mul(step, INT(BYTES))))

        return self.loop(steps, sums, multiply)

    def multiply(self, sums: list[Any], weights: Any, ahead: Any, x: Any) -> list[Any]:
        """sums + one step: weights [STEP_BYTES], x [ROWS, 64 bytes]. Brings the weights at `ahead` near."""
        for pair, halves in self.weights(weights, ahead):
            for row in range(self.rows):
                words = broadcast(self, x, row * 64 + pair * 4)
                for half in range(2):
                    at = 2 * row + half
                    sums[at] = dot_lanes(self, self.kind, sums[at], halves[half], words)
        return sums

    def weights(self, address: Any, ahead: Any) -> Iterator[tuple[int, list[Any]]]:
        """Number of each word of a row in a step, and the weights that it meets."""

        def both_halves(pair: int) -> list[Any]:
            lines = (pair * 128, pair * 128 + 64)
            for line in lines if self.share is None else lines[self.share : self.share + 1]:
                self.prefetch(self.builder.add(ahead, INT(line)), near=not self.is_far)
            return [self.load(address, line, WORDS) for line in lines]

        if self.kind != HALF_BYTE:
            for pair in range(PAIRS):
                yield pair, both_halves(pair)
            return
        low, four = ir.Constant(WORDS, [0x0F0F0F0F] * LANES), ir.Constant(WORDS, [4] * LANES)
        for pair in range(PAIRS // 2):
            both = both_halves(pair)
            yield pair, [self.builder.and_(word, low) for word in both]
            yield pair + PAIRS // 2, [self.builder.and_(self.builder.lshr(word, four), low) for word in both]


def dot(code: Code, kind: int, total: Any, weights: Any, x: Any, offset: int) -> Any:
    """total + weights times the word at x + offset, which every lane gets."""
    function_type = ir.FunctionType(SUMS[kind], [SUMS[kind], WORDS, INT])
    text = f"{INSTRUCTIONS[kind]} {offset}($3){{1to16}}, $2, $0"
    return code.builder.asm(function_type, text, "=v,0,v,r,~{memory}", [total, weights, x], side_effect=True)


def broadcast(code: Code, x: Any, offset: int) -> Any:
    """The word at x + offset in every lane, for several dot products: one read of memory for all of them."""
    function_type = ir.FunctionType(WORDS, [INT])
    return code.builder.asm(function_type, f"vpbroadcastd {offset}($1), $0", "=v,r,~{memory}", [x], side_effect=True)


def dot_lanes(code: Code, kind: int, total: Any, weights: Any, words: Any) -> Any:
    """total + weights times words, lane by lane."""
    function_type = ir.FunctionType(SUMS[kind], [SUMS[kind], WORDS, WORDS])
    text = f"{INSTRUCTIONS[kind]} $3, $2, $0"
    return code.builder.asm(function_type, text, "=v,0,v,v", [total, weights, words], side_effect=True)


@njit
def _is_shared(rows: int) -> bool:
    """Whether two full tiles pass the weights."""
    return rows > TILE + TILES[-2]


@njit
def _following(rows: int, row: int, following: int) -> int:
    """What the tile from `row` on brings near, or its share of that; later ones find it there."""
    return following if row == 0 or (row == TILE and _is_shared(rows)) else 0


@njit
def _shape(rows: int, row: int, following: int) -> int:
    """Of the tile from `row` on: of SHARES, or the smallest of TILES that holds the rows."""
    used = rows - row
    if following and _is_shared(rows):
        return SHARES[0] + row // TILE
    return TILE if used > 4 else 4 if used > 2 else used


@intrinsic
def _multiply(
    typing: Any, shape: Any, used: Any, start: Any, pitch: Any, x: Any, weights: Any, steps: Any, y: Any,
    stride: Any, following: Any,
) -> Any:  # fmt: skip
    """y [used, 32] = start + x W^T over `steps` steps, as dots.multiply_bfloat16; shape: of TILES or SHARES."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape, used, start, pitch, x, weights, steps, y, stride, following = arguments
        for one in each_case(builder, shape, (*TILES, *SHARES)):
            tile = _Tile(builder, BFLOAT16, one, used)
            tile.store_sums(tile.sweep(tile.load_sums(start, pitch), x, weights, steps, following), y, stride)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), generate


@intrinsic
def _add(
    typing: Any, kind: Any, shape: Any, used: Any, x: Any, weights: Any, steps: Any, following: Any, scales: Any,
    zeros: Any, row_scales: Any, row_sums: Any, bias: Any, y: Any,
) -> Any:  # fmt: skip
    """As dots.add_integers, for `used` rows; kind: INTEGER or HALF_BYTE, shape: of TILES but 1, or SHARES."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, shape, used, x, weights, steps, following, *group, bias, y = arguments
        for one_kind in each_case(builder, kind, (INTEGER, HALF_BYTE)):
            for one in each_case(builder, shape, (*TILES[1:], *SHARES)):
                tile = _Tile(builder, one_kind, one, used)
                nothing = [ir.Constant(WORDS, [0] * LANES)] * len(tile.cells)
                tile.add_products(tile.sweep(nothing, x, weights, steps, following), tuple(group), bias, y)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 13), generate


@njit
def multiply_bfloat16(
    rows: int, usual: int, start: int, pitch: int, x: int, x_block: int, weights: int, steps: int, y: int,
    stride: int, following: int,
) -> None:  # fmt: skip
    """As dots.multiply_bfloat16."""
    for row in range(0, rows, TILE):
        used, source = min(rows - row, TILE), x + row // ROWS * x_block + row % ROWS * 64
        begun, place, after = start + row * pitch, y + row * stride, _following(rows, row, following)
        _multiply(_shape(rows, row, after), used, begun, pitch, source, weights, steps, place, stride, after)


@njit
def _add_rows(
    kind: int, rows: int, x: int, x_block: int, weights: int, steps: int, following: int, scales: int, zeros: int,
    row_scales: int, row_sums: int, bias: int, y: int,
) -> None:  # fmt: skip
    for row in range(0, rows, TILE):
        used, source, token = min(rows - row, TILE), x + row // ROWS * x_block + row % ROWS * 64, row // 2
        own, total, place = row_scales + token * 4, row_sums + token * 4, y + token * 128
        after = _following(rows, row, following)
        _add(
            kind, _shape(rows, row, after), used, source, weights, steps, after, scales, zeros, own, total, bias, place
        )


@njit
def add_integers(
    rows: int, usual: int, x: int, x_block: int, weights: int, steps: int, following: int, scales: int, zeros: int,
    row_scales: int, row_sums: int, bias: int, y: int, sums: int,
) -> None:  # fmt: skip
    """As dots.add_integers."""
    _add_rows(INTEGER, rows, x, x_block, weights, steps, following, scales, zeros, row_scales, row_sums, bias, y)


@njit
def add_half_bytes(
    rows: int, usual: int, x: int, x_block: int, weights: int, steps: int, following: int, scales: int, zeros: int,
    row_scales: int, row_sums: int, bias: int, y: int, sums: int,
) -> None:  # fmt: skip
    """As dots.add_integers, of weights in half bytes."""
    _add_rows(HALF_BYTE, rows, x, x_block, weights, steps, following, scales, zeros, row_scales, row_sums, bias, y)
