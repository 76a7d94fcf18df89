"""The eight rows of a page of B pass by side by side, as streams that nothing waits for."""

from collections.abc import Callable
from typing import Any, Final

from .vector_code import INT, LANES, LINE, PAGE, VectorCode

AHEAD: Final = 256
"""Columns of each row that are on their way to the first-level cache."""
Add = Callable[..., None]
"""(rows, position, mask): add the columns of one vector to y; with a mask, only so many."""


def pass_rows(code: VectorCode, starts: tuple[Any, Any], outputs: Any, columns: Any, dtype: Any, add: Add) -> None:
    """Call `add` for the `columns` columns of B [PAGE, outputs].

    starts: addresses of the page's first column and of the next page's, which is brought near towards the end.
    """
    builder, per_line = code.builder, LINE // (dtype.bitwidth // 8)
    row_starts = [builder.mul(outputs, INT(rank)) for rank in range(PAGE)]
    rows, later = ([code.at(first, place, dtype) for place in row_starts] for first in starts)

    def lines(index: Any, sums: list[Any]) -> list[Any]:
        position = builder.mul(index, INT(per_line))
        coming = builder.add(position, INT(AHEAD))
        here = builder.icmp_signed("<", coming, columns)
        column = builder.select(here, coming, builder.sub(coming, columns))
        for row, other in zip(rows, later, strict=True):
            code.prefetch_near(code.at(builder.select(here, row, other), column, dtype))
        for vector in range(0, per_line, LANES):
            add(rows, builder.add(position, INT(vector)))
        return []

    full = builder.sdiv(columns, INT(per_line))
    code.loop(full, [], lines)
    rest = builder.mul(full, INT(per_line))
    for vector in range(0, per_line, LANES):
        first = builder.add(rest, INT(vector))
        with builder.if_then(builder.icmp_signed("<", first, columns)):
            add(rows, first, code.mask(builder.sub(columns, first)))
