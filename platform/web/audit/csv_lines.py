"""CSV that a spreadsheet may open: no cell of it is taken for a formula."""

import csv
import io
from collections.abc import Iterable
from typing import Final

FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How what spreadsheets compute begins; an apostrophe in front makes it a text."""


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    """Lines with their ends, as RFC 4180 has them."""
    file = io.StringIO()
    csv.writer(file).writerows([_cell(value) for value in row] for row in rows)
    return file.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
