"""The GPU's table of docs/performance.md, made from benchmarks/results/gpu-*.json."""

import json
from pathlib import Path
from typing import Any, Final

from ..page import table_of
from ..report import RESULTS, Row
from .catalog import parts
from .size import FULL, QUICK

FILES: Final = {"gpu-full.json": FULL, "gpu-quick.json": QUICK}
"""The first of them that exists is shown, with the rows of its sizes."""


def render(results: Path = RESULTS) -> str:
    """Figures that no file has are not measured."""
    found = next((results / name for name in FILES if (results / name).exists()), None)
    size = FULL if found is None else FILES[found.name]
    content: dict[str, Any] = {"rows": []} if found is None else json.loads(found.read_text())
    measured = {row.pop("what"): row for row in content["rows"]}
    figures = [figure for part in parts(size).values() for figure in part]
    rows = [
        Row(figure.what, known.get("value"), figure.unit, figure.goal, figure.at_least, known.get("note", ""))
        for figure in figures
        for known in [measured.get(figure.what, {"note": figure.note})]
    ]
    return "\n".join([_source(found, content), "", *table_of(rows), ""])


def _source(found: Path | None, content: dict[str, Any]) -> str:
    if found is None:
        return "No card has run it yet."
    machine = content["machine"]
    return (
        f"{machine['card']}, torch {machine['torch']}, triton {machine['triton']}, {content['when']} (`{found.name}`)."
    )
