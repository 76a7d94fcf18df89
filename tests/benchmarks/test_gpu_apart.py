"""What becomes of a run in which a figure ends its process, hangs it or leaves its device unusable."""

import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import report
from benchmarks.gpu import apart, card
from benchmarks.gpu.apart import measure_apart
from benchmarks.gpu.figure import Figure, Stage
from benchmarks.gpu.measure import OUT_OF_TIME
from benchmarks.report import Row

from ..fork_server import fork_server
from .tiny import tiny_stage


@pytest.fixture(autouse=True, scope="module")
def server() -> Iterator[None]:
    with fork_server("benchmarks.gpu.catalog"):
        yield


def process_id(stage: Stage) -> float:
    return os.getpid()


def end_process(stage: Stage) -> float:
    os._exit(3)


def end_by_signal(stage: Stage) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hang(stage: Stage) -> float:
    while True:
        time.sleep(1)


def spoil_device(stage: Stage) -> float:
    apart._usable = lambda device: False
    raise RuntimeError("an illegal memory access")


DEEDS = {deed.__name__: deed for deed in (process_id, end_process, end_by_signal, hang, spoil_device)}


def open_part(deeds: Sequence[str]) -> tuple[list[Figure], Stage]:
    """What hangs has the least patience, all else as much as any machine needs."""
    figures = [
        Figure(f"{place} {deed}", "", None, DEEDS[deed], seconds=0.0 if deed == "hang" else 60.0)
        for place, deed in enumerate(deeds)
    ]
    return figures, tiny_stage()


def run_apart(allowed: float, *deeds: str, least_patience: float = 60.0) -> tuple[list[Row], int]:
    rows: list[Row] = []
    figures, _ = open_part(deeds)
    broken = measure_apart(partial(open_part, deeds), figures, allowed, rows.append, least_patience)
    assert [row.what for row in rows] == [figure.what for figure in figures]
    return rows, broken


def test_the_rows_behind_one_that_ended_its_process_come_from_the_next() -> None:
    rows, broken = run_apart(
        300.0, "process_id", "end_process", "process_id", "process_id", "spoil_device", "process_id", "end_by_signal"
    )
    assert [row.note for row in rows] == [
        "",
        "FAILED: its process ended with exit status 3",
        "",
        "",
        "FAILED: RuntimeError: an illegal memory access",
        "",
        "FAILED: its process ended with signal 9",
    ]
    first, _, second, again, _, third, _ = (row.value for row in rows)
    assert second == again and len({first, second, third, os.getpid()}) == 4 and broken == 3


def test_a_row_that_hangs_is_ended() -> None:
    rows, broken = run_apart(300.0, "hang", "process_id", least_patience=1.0)
    assert rows[0].note == "FAILED: it was ended after 1 s without a result" and rows[1].value and broken == 1
    assert not multiprocessing.active_children()


def test_a_part_ends_soon_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "GRACE_SECONDS", 0.0)
    rows, broken = run_apart(2.0, "hang", "process_id")
    assert rows[0].note.startswith("FAILED: it was ended after") and broken == 1
    assert (rows[1].value, rows[1].note) == (None, OUT_OF_TIME)


def test_the_command_itself_has_its_figures_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run as `python -m benchmarks.gpu`, whose module no other process finds under the name it has then: each row says
    what its own call met where there is no device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(card, "describe", lambda device: {"card": "a card"})
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--quick", "--only", "card"])
    monkeypatch.delitem(sys.modules, "benchmarks.gpu.__main__", raising=False)
    with pytest.raises(SystemExit):
        runpy.run_module("benchmarks.gpu", run_name="__main__", alter_sys=True)
    rows = json.loads((tmp_path / "gpu-quick-card.json").read_text())["rows"]
    assert len(rows) == 3
    assert all(row["value"] or "CUDA" in row["note"] or "NVIDIA" in row["note"] for row in rows), rows
