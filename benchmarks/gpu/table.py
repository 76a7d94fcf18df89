"""The table of docs/performance.md, made from benchmarks/results/gpu-*.json: `python -m benchmarks.gpu.table`."""

import json
from pathlib import Path
from typing import Any, Final

from ..report import MARKS, RESULTS, Row
from .catalog import parts
from .size import FULL, QUICK

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN: Final = "<!-- made by `python -m benchmarks.gpu.table` -->\n"
END: Final = "<!-- end -->\n"
FILES: Final = {"gpu-full.json": FULL, "gpu-quick.json": QUICK}
"""The first of them that exists is shown, with the rows of its sizes."""


def render(results: Path = RESULTS) -> str:
    """What stands between BEGIN and END; figures that no file has are not measured."""
    found = next((results / name for name in FILES if (results / name).exists()), None)
    size = FULL if found is None else FILES[found.name]
    content: dict[str, Any] = {"rows": []} if found is None else json.loads(found.read_text())
    measured = {row.pop("what"): row for row in content["rows"]}
    figures = [figure for part in parts(size).values() for figure in part]
    rows = [
        _line(Row(figure.what, known.get("value"), figure.unit, figure.goal, figure.at_least, known.get("note", "")))
        for figure in figures
        for known in [measured.get(figure.what, {"note": figure.note})]
    ]
    heading = ["| figure | measured | goal | |", "|---|---|---|---|"]
    return "\n".join([_source(found, content), "", *heading, *rows, ""])


def _source(found: Path | None, content: dict[str, Any]) -> str:
    if found is None:
        return "No card has run it yet."
    machine = content["machine"]
    return (
        f"{machine['card']}, torch {machine['torch']}, triton {machine['triton']}, {content['when']} (`{found.name}`)."
    )


def _line(row: Row) -> str:
    remark = ", ".join(part for part in (MARKS[row.met], row.note) if part)
    return f"| {row.what} | {row.value_words} | {row.goal_words.replace('>=', '≥').replace('<=', '≤')} | {remark} |"


def replace_table(page: str, table: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE} has lost its marks"
    return before + BEGIN + table + END + after


def main() -> None:
    PAGE.write_text(replace_table(PAGE.read_text(), render()))


if __name__ == "__main__":
    main()
