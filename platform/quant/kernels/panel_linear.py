# mypy: allow-untyped-decorators
"""y = x W^T + bias with W kept in 16 or 32 bits and all arithmetic in fp32, compiled by numba for the CPU it runs on.

Shapes: x [M, K] fp32, W [N, K], bias [N] fp32, y [M, N] fp32.

numba has no 16-bit floats: uint16 stands for bfloat16 bits, int16 for float16 bits. W is stored as panels of PANEL
outputs, two inputs side by side, so that a sweep over a panel reads memory in order:
    uint16            [panels, K/2, PANEL, 2]      one 32-bit word holds both inputs: a shift and a mask widen it
    int16, float32    [panels, K/2, 2, PANEL]

The micro-kernel keeps a tile of y, rows x PANEL, in registers and runs over a block of K. Each output is one chain of
fused multiply-adds in the order of K, started from the bias: a row's result does not depend on M, bit for bit.
"""

from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils, config
from numba.extending import intrinsic

_features: Final = config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()
LANES: Final = 16 if "+avx512f" in _features else 8 if "+avx2" in _features else 4
VECTORS: Final = 2
PANEL: Final = LANES * VECTORS
ROWS: Final = 4 if LANES == 8 else 12
"""Rows of the largest tile: what the vector registers hold."""
BLOCK: Final = 128
"""Pairs of inputs in one block of K: its weights and one tile's activations fit the first-level cache."""

_FLOAT, _INT, _INT32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_FLOATS, _WORDS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT32, LANES)
_HALVES, _MASK = ir.VectorType(ir.HalfType(), LANES), ir.VectorType(ir.IntType(1), LANES)


def pack_weight(weight: np.ndarray) -> np.ndarray:
    """W [N, K] -> panels; zeros where N or K do not fill them."""
    outputs, inputs = weight.shape
    pairs, panels = (inputs + 1) // 2, -(-outputs // PANEL)
    padded = np.zeros((panels * PANEL, pairs * 2), weight.dtype)
    padded[:outputs, :inputs] = weight
    split = padded.reshape(panels, PANEL, pairs, 2)
    return np.ascontiguousarray(split.transpose((0, 2, 1, 3) if weight.dtype == np.uint16 else (0, 2, 3, 1)))


def scratch_size(m: int, k: int) -> int:
    """Floats of scratch that panel_linear needs."""
    return (m + ROWS) * (k + 1)


class _Tile:
    """Writes the LLVM code of one tile [rows, PANEL] of y."""

    def __init__(self, builder: Any, rows: int, used_rows: Any, used_columns: Any, y: Any, stride: Any) -> None:
        self.builder, self.rows, self.y, self.stride = builder, rows, y, stride
        limit = self.splat(builder.trunc(used_columns, _INT32), _WORDS)
        lanes = [ir.Constant(_WORDS, list(range(v * LANES, (v + 1) * LANES))) for v in range(VECTORS)]
        self.columns = [builder.icmp_signed("<", lane, limit) for lane in lanes]
        self.used = [builder.icmp_signed("<", _INT(row), used_rows) for row in range(rows)]

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, function_type, name), arguments)

    def splat(self, scalar: Any, vector: Any) -> Any:
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, _INT32(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, [0] * LANES))

    def pointer(self, address: Any, offset: int, kind: Any) -> Any:
        return self.builder.inttoptr(self.builder.add(address, _INT(offset)), kind.as_pointer())

    def load(self, address: Any, offset: int, kind: Any) -> Any:
        value = self.builder.load(self.pointer(address, offset, kind))
        value.align = 2 if kind is _HALVES else 4
        return value

    def cells(self) -> list[tuple[Any, Any]]:
        """Pointer and mask of each vector of y in the tile."""
        none = ir.Constant(_MASK, [0] * LANES)
        return [
            (
                self.pointer(
                    self.builder.add(self.y, self.builder.mul(self.stride, _INT(row * 4))), v * LANES * 4, _FLOATS
                ),
                self.builder.select(self.used[row], self.columns[v], none),
            )
            for row in range(self.rows)
            for v in range(VECTORS)
        ]

    def masked_load(self, pointer: Any, mask: Any) -> Any:
        zeros = ir.Constant(_FLOATS, [0.0] * LANES)
        return self.call(f"llvm.masked.load.v{LANES}f32.p0", _FLOATS, pointer, _INT32(4), mask, zeros)

    def initial(self, bias: Any) -> list[Any]:
        """The vectors to start from: the bias, or what y holds where bias is null."""
        with self.builder.if_else(self.builder.icmp_signed("!=", bias, _INT(0))) as (from_bias, from_y):
            with from_bias:
                one_row = [
                    self.masked_load(self.pointer(bias, v * LANES * 4, _FLOATS), self.columns[v])
                    for v in range(VECTORS)
                ]
                bias_block = self.builder.block
            with from_y:
                tile = [self.masked_load(*cell) for cell in self.cells()]
                y_block = self.builder.block
        merged = [self.builder.phi(_FLOATS) for _ in tile]
        for index, phi in enumerate(merged):
            phi.add_incoming(one_row[index % VECTORS], bias_block)
            phi.add_incoming(tile[index], y_block)
        return merged

    def widen(self, address: Any, dtype: Any) -> list[list[Any]]:
        """The weights of a pair of inputs as fp32: [2][VECTORS]."""
        if dtype == types.uint16:
            words = [self.load(address, v * LANES * 4, _WORDS) for v in range(VECTORS)]
            low = [self.builder.shl(word, ir.Constant(_WORDS, [16] * LANES)) for word in words]
            high = [self.builder.and_(word, ir.Constant(_WORDS, [0xFFFF0000] * LANES)) for word in words]
            return [[self.builder.bitcast(word, _FLOATS) for word in side] for side in (low, high)]
        kind = _HALVES if dtype == types.int16 else _FLOATS
        stored = [self.load(address, v * LANES * dtype.bitwidth // 8, kind) for v in range(2 * VECTORS)]
        floats = [self.builder.fpext(value, _FLOATS) for value in stored] if kind is _HALVES else stored
        return [floats[:VECTORS], floats[VECTORS:]]

    def multiply(self, sums: list[Any], weights: Any, inputs: Any, dtype: Any) -> list[Any]:
        """sums + a pair of inputs times its weights."""
        for side, vectors in enumerate(self.widen(weights, dtype)):
            for row in range(self.rows):
                scalar = self.splat(self.load(inputs, (side * self.rows + row) * 4, _FLOAT), _FLOATS)
                cells = range(row * VECTORS, (row + 1) * VECTORS)
                products = [
                    self.call(f"llvm.fma.v{LANES}f32", _FLOATS, v, scalar, sums[c])
                    for v, c in zip(vectors, cells, strict=True)
                ]
                sums = [*sums[: row * VECTORS], *products, *sums[(row + 1) * VECTORS :]]
        return sums

    def prefetch(self, address: Any) -> None:
        pointer = self.pointer(address, 0, ir.IntType(8))
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, _INT32(0), _INT32(2), _INT32(1))

    def loop(self, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Run body(index, sums) -> sums `count` times, at least once."""
        before, repeat, after = (
            self.builder.block,
            *(self.builder.append_basic_block(name) for name in ("repeat", "after")),
        )
        self.builder.branch(repeat)
        self.builder.position_at_end(repeat)
        index = self.builder.phi(_INT)
        sums = [self.builder.phi(_FLOATS) for _ in initial]
        results = body(index, sums)
        following = self.builder.add(index, _INT(1))
        for phi, start, result in zip([index, *sums], [_INT(0), *initial], [following, *results], strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(result, repeat)
        self.builder.cbranch(self.builder.icmp_signed("<", following, count), repeat, after)
        self.builder.position_at_end(after)
        return results

    def store(self, sums: list[Any]) -> None:
        for (pointer, mask), value in zip(self.cells(), sums, strict=True):
            self.call(f"llvm.masked.store.v{LANES}f32.p0", ir.VoidType(), value, pointer, _INT32(4), mask)


@intrinsic(prefer_literal=True)
def _multiply_tile(
    typing: Any, rows: Any, panels: Any, start: Any, pairs: Any, x: Any, y: Any, stride: Any, used_rows: Any,
    used_columns: Any, bias: Any, ahead: Any, ahead_step: Any,
) -> Any:  # fmt: skip
    """y tile = (bias, or y where bias is 0) + x tile [pairs, 2, rows] times `pairs` pairs of panels from `start` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, ahead_step = arguments
        tile = _Tile(builder, rows.literal_value, used_rows, used_columns, y, stride)
        pair_bytes = 2 * PANEL * panels.dtype.bitwidth // 8
        data = builder.ptrtoint(context.make_array(panels)(context, builder, array).data, _INT)
        weights = builder.add(data, builder.mul(start, _INT(pair_bytes)))

        def body(pair: Any, sums: list[Any]) -> list[Any]:
            tile.prefetch(builder.add(ahead, builder.mul(pair, ahead_step)))
            inputs = builder.add(x, builder.mul(pair, _INT(2 * rows.literal_value * 4)))
            return tile.multiply(sums, builder.add(weights, builder.mul(pair, _INT(pair_bytes))), inputs, panels.dtype)

        tile.store(tile.loop(pairs, tile.initial(bias), body))
        return context.get_dummy_value()

    return types.void(rows, panels, *[types.int64] * 10), generate


@intrinsic
def _floats(typing: Any, address: Any) -> Any:
    """The fp32 array at an address, as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _FLOAT.as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@njit(inline="always")
def _tile_rows(rows: int) -> int:
    """The smallest tile that holds so many rows."""
    if rows > 8:
        return ROWS
    if rows > 4:
        return min(8 if rows > 6 else 6, ROWS)
    return 4 if rows > 2 else rows


@njit
def _pack_rows(x: int, packed: int, used: int, rows: int, stride: int, first: int, count: int) -> None:
    source, target = _floats(x), _floats(packed)
    for k in range(first, first + count):
        for row in range(rows):
            target[k * rows + row] = source[row * stride + k] if row < used and k < stride else np.float32(0)


@njit
def _multiply(
    rows: int, panels: Any, start: int, pairs: int, x: int, y: int, stride: int, used_rows: int, used_columns: int,
    bias: int, ahead: int, step: int,
) -> None:  # fmt: skip
    if rows == 12:
        _multiply_tile(12, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)
    elif rows == 8:
        _multiply_tile(8, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)
    elif rows == 6:
        _multiply_tile(6, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)
    elif rows == 4:
        _multiply_tile(4, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)
    elif rows == 2:
        _multiply_tile(2, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)
    else:
        _multiply_tile(1, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)


@njit(parallel=True, cache=True)
def panel_linear(panels: Any, bias: Any, x: int, packed: int, y: int, m: int, n: int, k: int) -> None:
    """x, packed and y are addresses of fp32 arrays; packed has scratch_size(m, k) floats."""
    pairs = (k + 1) // 2
    tiles = (m + ROWS - 1) // ROWS
    blocks = (pairs + BLOCK - 1) // BLOCK
    if m == 1 and k % 2 == 0:
        packed = x
    else:
        for item in prange(tiles * blocks):
            tile, block = item // blocks, item % blocks
            first, rows = tile * ROWS, _tile_rows(m - tile * ROWS)
            count = min(pairs - block * BLOCK, BLOCK)
            _pack_rows(x + first * k * 4, packed + first * pairs * 8, m - first, rows, k, block * BLOCK * 2, count * 2)
    bias_address, data, pair_bytes = bias.ctypes.data, panels.ctypes.data, panels.itemsize * PANEL * 2
    for panel in prange((n + PANEL - 1) // PANEL):
        columns = n - panel * PANEL
        for block in range(blocks):
            start = panel * pairs + block * BLOCK
            count = min(pairs - block * BLOCK, BLOCK)
            bias_here = bias_address + panel * PANEL * 4 if block == 0 else 0
            for tile in range(tiles):
                first, rows = tile * ROWS, _tile_rows(m - tile * ROWS)
                x_here, y_here = (
                    packed + (first * pairs + block * BLOCK * rows) * 8,
                    y + (first * n + panel * PANEL) * 4,
                )
                ahead = data + (start + pairs) * pair_bytes
                step = 128
                if tiles > 1:
                    step = 64
                    ahead += (tile % 2) * count * 64
                _multiply(rows, panels, start, count, x_here, y_here, n, m - first, columns, bias_here, ahead, step)
