"""docs/performance.md and docs/performance-machines.md say what benchmarks/results has."""

import json
from pathlib import Path

import pytest

from benchmarks.page import replaced, table_of
from benchmarks.report import RESULTS, Row, write
from benchmarks.tables import GROUPS, TABLES, made, render


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_the_page_is_up_to_date(path: Path) -> None:
    assert made(path) == path.read_text(), "run python -m benchmarks.tables"


def test_every_result_is_in_a_table() -> None:
    kept = {path.stem for path in RESULTS.glob("*.json") if not path.stem.startswith("gpu-")}
    shown = [table for tables in TABLES.values() for table in tables]
    assert kept == {f"{name}-{capability}" for group, capability in shown for name in GROUPS[group]}


def test_a_table_has_the_rows_of_its_files_and_says_what_measured_them(tmp_path: Path) -> None:
    machine = {"processor": "a processor", "capability": "AVX2", "threads": 2, "torch": "2.13", "rounds": 5}
    first, second, third = GROUPS["quant"]
    write(tmp_path / f"{first}-avx2.json", [Row("speed", 1.25, "x", 0.95), Row("time", 2.0, "ms", 1.0, False)], machine)
    write(tmp_path / f"{second}-avx2.json", [Row("bytes", 3.0, "MB")], machine)
    write(tmp_path / f"{third}-avx2.json", [], machine | {"processor": "another"})
    write(tmp_path / f"{third}-avx512.json", [Row("of another capability", 1.0, "x")], machine)
    days = [json.loads((tmp_path / f"{name}-avx2.json").read_text())["when"][:10] for name in (first, third)]
    assert render("quant", "avx2", tmp_path).splitlines() == [
        f"- `{first}-avx2`, `{second}-avx2`: a processor, AVX2, 2 threads, torch 2.13, 5 rounds, {days[0]}",
        f"- `{third}-avx2`: another, AVX2, 2 threads, torch 2.13, 5 rounds, {days[1]}",
        "",
        "| figure | measured | goal | |",
        "|---|---|---|---|",
        "| speed | 1.25 x | ≥ 0.95 | met |",
        "| time | 2 ms | ≤ 1 | missed |",
        "| bytes | 3 MB |  |  |",
    ]


def test_a_page_without_the_marks_is_no_page() -> None:
    with pytest.raises(AssertionError, match="has lost the marks of lora"):
        replaced("# Performance\n", "lora", "\n".join(table_of([])))
