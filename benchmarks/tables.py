"""The tables of docs/performance.md and docs/performance-machines.md, made from benchmarks/results/*.json:
`python -m benchmarks.tables`.
"""

import json
from pathlib import Path
from typing import Any, Final

from .gpu import table as gpu_table
from .page import MACHINES_PAGE, PAGE, replaced, table_of
from .report import RESULTS, Row

GROUPS: Final = {
    "serving": ("serving-cpu-half-billion", "serving-cpu-small", "serving-cpu-demo"),
    "lora": tuple(
        f"lora-cpu-{part}" for part in ("decode", "unused", "own-rank", "many", "http", "cold", "peft-batch", "gather")
    ),
    "quant": ("quant-weights", "quant-kv", "quant-demo"),
}
"""Files, without the processor's capability, by the table that shows them, in its order."""
TABLES: Final = {
    PAGE: [("serving", "avx512"), ("lora", "avx512"), ("quant", "avx512")],
    MACHINES_PAGE: [("lora", "avx2"), ("quant", "avx2")],
}
"""By page: group and capability."""


def render(group: str, capability: str, results: Path = RESULTS) -> str:
    """One table of all rows; above it, what measured which of them, and when."""
    rows: list[Row] = []
    sources: dict[str, list[str]] = {}
    for path in (results / f"{name}-{capability}.json" for name in GROUPS[group]):
        content = json.loads(path.read_text())
        sources.setdefault(_source(content), []).append(f"`{path.stem}`")
        rows += [_row(row) for row in content["rows"]]
    told = [f"- {', '.join(names)}: {source}" for source, names in sources.items()]
    return "\n".join([*told, "", *table_of(rows), ""])


def _source(content: dict[str, Any]) -> str:
    machine = content["machine"]
    return (
        f"{machine['processor']}, {machine['capability']}, {machine['threads']} threads, torch {machine['torch']}, "
        f"{machine['rounds']} rounds, {content['when'][:10]}"
    )


def _row(kept: dict[str, Any]) -> Row:
    return Row(kept["what"], kept["value"], kept["unit"], kept["goal"], kept["at_least"], kept.get("note", ""))


def made(path: Path) -> str:
    """The page there with all of its tables as the files have them."""
    page = path.read_text()
    for group, capability in TABLES[path]:
        page = replaced(page, f"{group}, {capability}", render(group, capability))
    if path == PAGE:
        page = replaced(page, "gpu", gpu_table.render())
        page = replaced(page, "gpu, other families", gpu_table.render(group="families"))
        page = replaced(page, "gpu, experts", gpu_table.render(group="experts"))
    return page


if __name__ == "__main__":
    for path in TABLES:
        path.write_text(made(path))
