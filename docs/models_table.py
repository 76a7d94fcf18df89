"""The table of docs/models.md: `python -m docs.models_table` runs the tests of families and writes what passed."""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from loraplex.engine.model.families.find import architectures
from tests.engine.model.families import parity

PAGE = Path(__file__).with_name("models.md")
BEGIN, END = "<!-- table: docs/models_table.py writes it -->\n", "<!-- end of the table -->\n"
TESTS = "tests/engine/model/families"


class Passed:
    """Keeps what the checks of passed tests have shown."""

    def __init__(self) -> None:
        self.shown: dict[str, list[parity.Shown]] = defaultdict(list)
        """By architecture."""

    def pytest_runtest_setup(self) -> None:
        parity.SHOWN.clear()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            for shown in parity.SHOWN:
                self.shown[shown.architecture].append(shown)


def table(shown: dict[str, list[parity.Shown]]) -> str:
    columns = ("Architecture", "On the hub", "Adapters on", "Stored as", "Rounded to", "Keys and values", "CPU", "CUDA")
    rows = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    hub = {found.name: found.family.hub.get(found.name, ()) for found in architectures().values()}
    for architecture, kinds in sorted(shown.items()):
        targets = sorted({target for kind in kinds for target in kind.targets})
        stored = list(dict.fromkeys(kind.stored for kind in kinds if kind.stored))
        weights = sorted({kind.weights for kind in kinds if kind.weights})
        keys = sorted({kind.keys for kind in kinds if kind.keys})
        cells = [
            f"`{architecture}`",
            ", ".join(hub.get(architecture.removesuffix("ForCausalLM"), ())),
            ", ".join(f"`{target}`" for target in targets),
            ", ".join(["floats", *stored]),
            ", ".join(weights),
            ", ".join(["floats", *keys]),
            "run",
            "not run",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def write(shown: dict[str, list[parity.Shown]]) -> None:
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(shown)}\n\n{END}{rest.partition(END)[2]}", "utf-8")


def main() -> None:
    passed = Passed()
    code = pytest.main(["-q", "-p", "no:cacheprovider", TESTS, *sys.argv[1:]], plugins=[passed])
    if code:
        sys.exit(f"the tests of families did not pass, {PAGE.name} stays as it is")
    write(passed.shown)


if __name__ == "__main__":
    main()
