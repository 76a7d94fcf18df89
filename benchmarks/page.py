"""Tables between marks in docs/performance.md and docs/performance-machines.md."""

from pathlib import Path
from typing import Final

from .report import MARKS, Row

_DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PAGE: Final = _DOCS / "performance.md"
MACHINES_PAGE: Final = _DOCS / "performance-machines.md"
BEGIN: Final = "<!-- {}: made by `python -m benchmarks.tables` -->\n"
END: Final = "<!-- end -->\n"
HEADING: Final = ("| figure | measured | goal | |", "|---|---|---|---|")


def replaced(page: str, name: str, table: str) -> str:
    """The page with `table` in place of what stood between the marks of `name`."""
    before, begin, rest = page.partition(BEGIN.format(name))
    _, end, after = rest.partition(END)
    assert begin and end, f"the page has lost the marks of {name}"
    return before + begin + table + end + after


def table_of(rows: list[Row]) -> list[str]:
    """Its lines."""
    return [*HEADING, *map(_line, rows)]


def _line(row: Row) -> str:
    remark = ", ".join(part for part in (MARKS[row.met], row.note) if part)
    return f"| {row.what} | {row.value_words} | {row.goal_words.replace('>=', '≥').replace('<=', '≤')} | {remark} |"
