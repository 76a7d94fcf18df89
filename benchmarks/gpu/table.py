"""The GPU's tables of docs/performance.md, made from benchmarks/results/gpu-*.json."""

import json
from pathlib import Path
from typing import Any, Final

from ..page import table_of
from ..report import RESULTS, Row
from .catalog import GROUPS, parts
from .size import FULL, QUICK

SIZES: Final = {"full": FULL, "quick": QUICK}
"""The first of them that has a file is shown, with the rows of its sizes."""
SUFFIXES: Final = {"llama": "", "families": "-families", "experts": "-experts"}


def render(results: Path = RESULTS, group: str = "llama") -> str:
    """Figures that no file has are not measured."""
    files = {results / f"gpu-{length}{SUFFIXES[group]}.json": size for length, size in SIZES.items()}
    found = next((path for path in files if path.exists()), None)
    size = FULL if found is None else files[found]
    content: dict[str, Any] = {"rows": []} if found is None else json.loads(found.read_text())
    measured = {row.pop("what"): row for row in content["rows"]}
    every = parts(size)
    figures = [figure for name in GROUPS[group] for figure in every[name]]
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
