"""`python -m benchmarks.gpu` where there is no GPU: what it needs, what it says, what it keeps."""

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import together
from benchmarks.gpu.apart import GRACE_SECONDS
from benchmarks.gpu.catalog import GROUPS, QUICK_SECONDS, QUICK_TOTAL_SECONDS, parts
from benchmarks.gpu.clock import Call, checked_graph
from benchmarks.gpu.figure import Figure, Stage, Unsupported, WrongResult
from benchmarks.gpu.measure import OUT_OF_TIME, measure
from benchmarks.gpu.size import FULL, QUICK
from benchmarks.gpu.table import render
from benchmarks.report import Row, write
from tests.interpreted import run_interpreted

from .tiny import TINY, beside, tiny_stage

ROOT = Path(__file__).resolve().parents[2]


def test_all_parts_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("triton_gpu_cases.py"))


def test_it_needs_no_package_but_torch_and_triton_and_not_even_to_be_installed() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.without_packages"],
        cwd=ROOT, env=environment | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--full"])
    assert command.main(lambda: False) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_without_a_compiler_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each of Triton's kernels would fail by itself, after minutes."""
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--quick"])
    monkeypatch.setenv("CC", "no-such-compiler")
    assert command.main(lambda: True) == 2
    assert "Triton lacks a C compiler" in capsys.readouterr().err
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main(lambda: True) == 2
    assert "Triton lacks a C compiler: nothing was measured. Debian and Ubuntu: apt" in capsys.readouterr().err


def test_neither_quick_nor_full_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu"])
    with pytest.raises(SystemExit):
        command.main(lambda: False)


def raising(error: Exception) -> Figure:
    def fail(stage: Stage) -> float:
        raise error

    return Figure(type(error).__name__, "x", 1.0, fail)


def test_each_outcome_has_its_row_and_is_counted() -> None:
    figures = [
        Figure("right", "x", 0.5, lambda stage: 0.75),
        raising(WrongResult("off by 0.3 of the largest, 0.02 is allowed")),
        raising(RuntimeError("an illegal memory access\nwas encountered")),
        raising(Unsupported("no float8")),
        raising(torch.OutOfMemoryError("tried to allocate")),
        Figure("no number", "x", None, lambda stage: float("nan")),
        Figure("later", "x", 1.0, None, note="not yet"),
    ]
    rows: list[Row] = []
    assert measure(figures, tiny_stage(), 1e9, rows.append) == 3
    assert [(row.value, row.met) for row in rows] == [(0.75, True)] + [(None, None)] * 6
    assert [row.note for row in rows] == [
        "",
        "WRONG RESULT: off by 0.3 of the largest, 0.02 is allowed",
        "FAILED: RuntimeError: an illegal memory access",
        "no float8",
        "the card has too little free memory",
        "FAILED: nan is no figure",
        "not yet",
    ]


def test_what_the_time_does_not_allow_is_not_measured() -> None:
    moments = iter([0.0, 0.0, 6.0, 12.0])
    figures = [Figure(name, "x", None, lambda stage: 1.0) for name in ("first", "second", "third")]
    rows: list[Row] = []
    assert measure(figures, tiny_stage(), 10.0, rows.append, lambda: next(moments)) == 0
    assert [(row.value, row.note) for row in rows] == [(1.0, ""), (1.0, ""), (None, OUT_OF_TIME)]


class Recorded:
    """A graph's double, of calls that write to memory of their own."""

    def __init__(self, lost: int, call: Callable[[], None]) -> None:
        """lost: replays that do nothing."""
        call()
        self._lost, self._call = lost, call

    def replay(self) -> None:
        self._lost -= 1
        if self._lost < 0:
            self._call()


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_a_torch_without_scales_for_rows_has_no_row_and_says_why(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch 2.11 on a CPU."""

    def refuse(*given: object, **named: object) -> None:
        raise error("scale must be one number\nraised somewhere")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    rows: list[Row] = []
    assert measure(parts(TINY)["card"][-1:], tiny_stage(), 1e9, rows.append) == 0
    reason = f"torch {torch.__version__} has no float8 product with a scale for each row on a cpu"
    assert (rows[0].value, rows[0].note) == (None, f"{reason}: scale must be one number")


@pytest.mark.parametrize("result", [torch.arange(1.0, 5.0), torch.arange(4, dtype=torch.int32)], ids=str)
def test_a_graph_that_computes_nothing_has_no_speed(result: torch.Tensor) -> None:
    memory = torch.empty_like(result)
    calls: list[Call] = [lambda: None, lambda: (memory.copy_(result), "and more")]
    checked_graph(calls, partial(Recorded, 0))
    assert torch.equal(memory, result)
    with pytest.raises(WrongResult, match="a captured call is off by"):
        checked_graph(calls, partial(Recorded, 1))
    checked_graph(calls[:1], partial(Recorded, 1))


def test_what_went_wrong_holds_no_memory() -> None:
    """An engine's is most of the card's, and the next engine needs it."""

    class Memory:
        pass

    held: list[weakref.ref[Memory]] = []

    def fail(stage: Stage) -> together.Rows:
        memory = Memory()
        held.append(weakref.ref(memory))
        raise torch.OutOfMemoryError("tried to allocate")

    figures = [Figure(f"{place}", "x", None, partial(together.pick, fail, "one", True)) for place in range(2)]
    rows: list[Row] = []
    measure(figures, tiny_stage(), 1e9, rows.append)
    assert {row.note for row in rows} == {"the card has too little free memory"}
    assert len(held) == 1 and held[0]() is None


def test_rows_are_kept_when_the_run_is_cut_off(tmp_path: Path) -> None:
    def cut(stage: Stage) -> float:
        raise KeyboardInterrupt

    figures = [Figure("first", "x", None, lambda stage: 2.0), Figure("second", "x", None, cut)]
    path = tmp_path / "gpu-quick.json"
    with pytest.raises(KeyboardInterrupt):
        command.run(beside(tiny_stage()), {"card": figures}, QUICK_SECONDS, path, {"card": None})
    assert [(row["what"], row["value"]) for row in json.loads(path.read_text())["rows"]] == [("first", 2.0)]


def test_figures_have_names_of_their_own_and_their_parts_a_time() -> None:
    every = parts(QUICK)
    for figures in (every, parts(FULL)):
        names = [figure.what for part in figures.values() for figure in part]
        assert len(set(names)) == len(names)
    assert set(QUICK_SECONDS) == set(every) == {name for group in GROUPS.values() for name in group}
    for group in GROUPS.values():
        assert sum(QUICK_SECONDS[name] for name in group) <= QUICK_TOTAL_SECONDS - 30
    assert QUICK_TOTAL_SECONDS + GRACE_SECONDS <= 8 * 60


def test_all_but_the_last_engine_fit_into_the_minutes_of_quick_as_predicted() -> None:
    *others, last = [figure.seconds for figure in parts(QUICK)["engine"] if figure.seconds]
    assert sum(others) <= QUICK_SECONDS["engine"] < sum(others) + last
    for name in ("families", "mixtures"):
        assert sum(figure.seconds for figure in parts(QUICK)[name]) <= QUICK_SECONDS[name]


def test_the_table_shows_what_a_file_has(tmp_path: Path) -> None:
    card, attention = (parts(FULL)[name][0] for name in ("card", "attention"))
    rows = [
        Row(card.what, 4321.0, card.unit),
        Row(attention.what, None, attention.unit, attention.goal, note="WRONG RESULT: off by 0.3"),
    ]
    write(tmp_path / "gpu-quick.json", rows, {"card": "a card", "torch": "2.11", "triton": "3.6"})
    table = render(tmp_path)
    assert table.startswith("a card, torch 2.11, triton 3.6, ")
    assert f"| {card.what} | 4321 GB/s |  |  |" in table
    assert f"| {attention.what} | not measured | ≥ 0.8 | WRONG RESULT: off by 0.3 |" in table
    assert table.count("not measured") == sum(len(parts(QUICK)[name]) for name in GROUPS["llama"]) - 1
    quick, full = (parts(size)["engine"][-3].what for size in (QUICK, FULL))
    assert quick != full and quick in table and full not in table, "the rows of its sizes"
    write(tmp_path / "gpu-full.json", rows, {"card": "a card", "torch": "2.11", "triton": "3.6"})
    assert full in render(tmp_path) and quick not in render(tmp_path)


def test_other_families_have_a_run_a_file_and_a_table_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs: list[tuple[list[str], str]] = []

    def note(measure: object, chosen: dict[str, list[Figure]], seconds: object, path: Path, *more: object) -> int:
        runs.append((list(chosen), path.name))
        return 0

    for name, value in {"run": note, "missing_tools": list, "start_server": lambda: None}.items():
        monkeypatch.setattr(command, name, value)
    monkeypatch.setattr(command, "describe", lambda device: {})
    for words in ([], ["--families"], ["--experts"], ["--only", "kinds"], ["--families", "--only", "delta", "kinds"]):
        monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--quick", *words])
        assert command.main(lambda: True) == 0
    assert runs == [
        (list(GROUPS["llama"]), "gpu-quick.json"),
        (list(GROUPS["families"]), "gpu-quick-families.json"),
        (list(GROUPS["experts"]), "gpu-quick-experts.json"),
        (["kinds"], "gpu-quick-kinds.json"),
        (["kinds", "delta"], "gpu-quick-kinds-delta.json"),
    ]
    count = sum(len(parts(FULL)[name]) for name in GROUPS["families"])
    table = render(tmp_path, "families")
    assert table.startswith("No card has run it yet.") and table.count("not measured") == count
    rows = [Row(parts(FULL)["kinds"][0].what, 0.81, "x", 0.8)]
    write(tmp_path / "gpu-quick-families.json", rows, {"card": "a card", "torch": "2.11", "triton": "3.6"})
    assert render(tmp_path, "families").count("not measured") == count - 1
    assert render(tmp_path).startswith("No card has run it yet.")
