"""The table of docs/models.md: `python -m docs.models_table` runs the tests of families and writes what passed.

As a plugin it writes the table after a longer run: `make test ARGS="-p docs.models_table"`.
"""

import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from loraplex.engine.model.families.find import architectures
from tests.engine.model.families import parity

PAGE = Path(__file__).with_name("models.md")
BEGIN, END = "<!-- table: docs/models_table.py writes it -->\n", "<!-- end of the table -->\n"
TESTS = "tests/engine/model/families"
PASSED: Final[dict[str, list[parity.Shown]]] = defaultdict(list)
"""What the checks of passed tests have shown, by architecture."""
FAILED: Final[list[str]] = []
"""Tests of families."""


def pytest_runtest_setup() -> None:
    parity.SHOWN.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    report.shown = [tuple(shown) for shown in parity.SHOWN]  # a report is all that a worker sends
    return report


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed and report.nodeid.startswith(TESTS):
        FAILED.append(report.nodeid)
    if report.when == "call" and report.passed:
        for shown in report.shown:
            PASSED[shown[0]].append(parity.Shown(*shown))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    if FAILED:
        print(f"\n{PAGE.name} stays as it is: {', '.join(FAILED)}")
    else:
        write(PASSED)


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
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "docs.models_table", TESTS, *sys.argv[1:]]))


if __name__ == "__main__":
    main()
