"""Rows with a figure and its goal: printed as a table, kept as JSON under benchmarks/results."""

import json
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Row:
    what: str
    value: float | None
    """None: not measured, for want of the device."""
    unit: str
    goal: float | None = None
    at_least: bool = True
    """Whether the goal is a floor (True) or a ceiling."""

    @property
    def met(self) -> bool | None:
        if self.goal is None or self.value is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def show(name: str, rows: list[Row]) -> None:
    table = Table(title=name, title_justify="left")
    for heading in ("what", "measured", "goal", ""):
        table.add_column(heading, justify="right" if heading in ("measured", "goal") else "left")
    for row in rows:
        goal = "" if row.goal is None else f"{'>=' if row.at_least else '<='} {row.goal:g}"
        mark = {None: "", True: "met", False: "missed"}[row.met]
        value = "not measured" if row.value is None else f"{row.value:.4g} {row.unit}"
        table.add_row(row.what, value, goal, mark)
    Console().print(table)


def publish(name: str, rows: list[Row], notes: dict[str, object]) -> Path:
    """Print the rows and write them; returns the file."""
    show(name, rows)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "name": name,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine() | notes,
        "rows": [asdict(row) | {"met": row.met} for row in rows],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()
