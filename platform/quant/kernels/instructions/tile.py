"""The LLVM code of one tile of y = x W^T: rows x PANEL sums in registers, over a run of inputs."""

from typing import Any, Final

from llvmlite import ir
from numba import types

from .vectors import FLOAT, FLOATS, HALVES, INT, LANES, NO_LANES, WORDS, Code

VECTORS: Final = 2
PANEL: Final = LANES * VECTORS
"""Outputs of a tile, and of a panel of weights."""
ROWS: Final = 6 if LANES == 8 else 12
"""Rows of the largest tile: what the vector registers hold."""


class Tile(Code):
    """Writes the LLVM code of one tile [rows, PANEL] of y."""

    def __init__(self, builder: Any, rows: int, used_rows: Any, used_columns: Any, y: Any, stride: Any) -> None:
        super().__init__(builder)
        self.rows, self.y, self.stride = rows, y, stride
        self.columns = [self.lanes_below(builder.sub(used_columns, INT(v * LANES))) for v in range(VECTORS)]
        self.used = [builder.icmp_signed("<", INT(row), used_rows) for row in range(rows)]

    def cells(self) -> list[tuple[Any, Any]]:
        """Pointer and mask of each vector of y in the tile."""
        rows = [self.builder.add(self.y, self.builder.mul(self.stride, INT(row * 4))) for row in range(self.rows)]
        return [
            (
                self.pointer(rows[row], v * LANES * 4, FLOATS),
                self.builder.select(self.used[row], self.columns[v], NO_LANES),
            )
            for row in range(self.rows)
            for v in range(VECTORS)
        ]

    def initial(self, bias: Any) -> list[Any]:
        """The vectors to start from: the bias, or what y holds where bias is null."""
        with self.builder.if_else(self.builder.icmp_signed("!=", bias, INT(0))) as (from_bias, from_y):
            with from_bias:
                one_row = [
                    self.masked_load(self.pointer(bias, v * LANES * 4, FLOATS), self.columns[v]) for v in range(VECTORS)
                ]
                bias_block = self.builder.block
            with from_y:
                tile = [self.masked_load(*cell) for cell in self.cells()]
                y_block = self.builder.block
        merged = [self.builder.phi(FLOATS) for _ in tile]
        for index, phi in enumerate(merged):
            phi.add_incoming(one_row[index % VECTORS], bias_block)
            phi.add_incoming(tile[index], y_block)
        return merged

    def widen(self, address: Any, dtype: Any) -> list[list[Any]]:
        """The weights of a pair of inputs as fp32: [2][VECTORS]."""
        if dtype == types.uint16:
            words = [self.load(address, v * LANES * 4, WORDS) for v in range(VECTORS)]
            low = [self.builder.shl(word, ir.Constant(WORDS, [16] * LANES)) for word in words]
            high = [self.builder.and_(word, ir.Constant(WORDS, [0xFFFF0000] * LANES)) for word in words]
            return [[self.builder.bitcast(word, FLOATS) for word in side] for side in (low, high)]
        kind = HALVES if dtype == types.int16 else FLOATS
        stored = [self.load(address, v * LANES * dtype.bitwidth // 8, kind) for v in range(2 * VECTORS)]
        floats = [self.builder.fpext(value, FLOATS) for value in stored] if kind is HALVES else stored
        return [floats[:VECTORS], floats[VECTORS:]]

    def multiply(self, sums: list[Any], weights: Any, inputs: Any, dtype: Any) -> list[Any]:
        """sums + a pair of inputs times its weights."""
        for side, vectors in enumerate(self.widen(weights, dtype)):
            for row in range(self.rows):
                scalar = self.splat(self.load(inputs, (side * self.rows + row) * 4, FLOAT), FLOATS)
                cells = range(row * VECTORS, (row + 1) * VECTORS)
                products = [self.fma(v, scalar, sums[c]) for v, c in zip(vectors, cells, strict=True)]
                sums = [*sums[: row * VECTORS], *products, *sums[(row + 1) * VECTORS :]]
        return sums

    def store(self, sums: list[Any]) -> None:
        for (pointer, mask), value in zip(self.cells(), sums, strict=True):
            self.masked_store(value, pointer, mask)
