"""Rows with a figure and its goal: printed as a table, kept as JSON under benchmarks/results."""

import json
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

RESULTS = Path(__file__).resolve().parent / "results"
MARKS = {None: "", True: "met", False: "missed"}


@dataclass(frozen=True)
class Row:
    what: str
    value: float | None
    """None: not measured, for want of the device."""
    unit: str
    goal: float | None = None
    at_least: bool = True
    """Whether the goal is a floor (True) or a ceiling."""
    note: str = ""
    """Why there is no value."""

    @property
    def met(self) -> bool | None:
        if self.goal is None or self.value is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    @property
    def goal_words(self) -> str:
        return "" if self.goal is None else f"{'>=' if self.at_least else '<='} {self.goal:g}"

    @property
    def value_words(self) -> str:
        return "not measured" if self.value is None else f"{self.value:.4g} {self.unit}"


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def show(name: str, rows: list[Row]) -> None:
    from rich.console import Console  # a machine that measures its GPU alone need not have it
    from rich.table import Table

    table = Table(title=name, title_justify="left")
    for heading in ("what", "measured", "goal", ""):
        table.add_column(heading, justify="right" if heading in ("measured", "goal") else "left")
    for row in rows:
        table.add_row(row.what, row.value_words, row.goal_words, MARKS[row.met])
    Console().print(table)


def line_of(row: Row) -> str:
    """The row as plain text, with its note."""
    parts = (row.value_words, row.goal_words, MARKS[row.met], row.note)
    return f"{row.what}: {', '.join(part for part in parts if part)}"


def publish(name: str, rows: list[Row], notes: dict[str, object]) -> Path:
    """Print the rows and write them, beside those of processors of other capabilities; returns the file."""
    show(name, rows)
    measured_on = machine() | notes
    path = RESULTS / f"{name}-{str(measured_on['capability']).lower()}.json"
    write(path, rows, measured_on)
    return path


def write(path: Path, rows: list[Row], measured_on: dict[str, object]) -> None:
    """All rows, in one step: who reads the file while it is rewritten has the old or the new one."""
    path.parent.mkdir(exist_ok=True)
    content = {
        "name": path.stem,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": measured_on,
        "rows": [asdict(row) | {"met": row.met} for row in rows],
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()
