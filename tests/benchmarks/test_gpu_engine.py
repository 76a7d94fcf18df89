"""Rows of the whole engine, as far as they can be measured and judged where there is no GPU."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.gpu import arrivals, engine_rows, peer, stand_ins, trust
from benchmarks.gpu.busy import marked, share
from benchmarks.gpu.engine import figures
from benchmarks.gpu.engine_rows import _one_of_few
from benchmarks.gpu.figure import Figure, Unsupported, WrongResult
from benchmarks.gpu.measure import OUT_OF_TIME, measure
from benchmarks.gpu.models import checkpoint
from benchmarks.gpu.serving import Served, Stream
from benchmarks.gpu.shapes import Arrivals
from benchmarks.gpu.size import FULL
from benchmarks.report import Row

from .tiny import TINY, tiny_stage

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_on_the_cpu_without_packages_that_a_gpu_machine_lacks(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.engine_cases", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_rows_on_cudas_path_need_torch_triton_transformers_peft_and_safetensors_alone() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.cuda_engine_cases"],
        cwd=ROOT, env=environment | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def measured(figure: Figure) -> Row:
    rows: list[Row] = []
    measure([figure], tiny_stage(), 1e9, rows.append)
    return rows[0]


def test_what_layers_add_is_scaled_so_that_roundings_stay_small(tmp_path: Path) -> None:
    model = replace(TINY.large, name="wide", tied=False, layers=8, hidden=256)
    tensors = load_file(checkpoint(model, torch.device("cpu"), tmp_path) / "model-00001.safetensors")
    ends = load_file(tmp_path / model.name / "model-00000.safetensors")
    stds = {name: float(tensor.float().std()) for name, tensor in (tensors | ends).items() if tensor.dim() == 2}
    wanted = {"embed_tokens": 1.0, "o_proj": 0.02 / 4, "down_proj": 0.02 / 4}
    for name, std in stds.items():
        assert std == pytest.approx(wanted.get(name.split(".")[-2], 0.02), rel=0.05), name


def test_a_peer_that_takes_too_long_is_taken_for_faster_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Manager:
        def __enter__(self) -> "Manager":
            return self

        def __exit__(self, *error: object) -> None:
            return None

        def add_request(self, prompt: list[int], request_id: str, **settings: int) -> str:
            return request_id

        def get_result(self, timeout: float) -> Any:
            time.sleep(0.05)
            return SimpleNamespace(is_finished=lambda: False)

    monkeypatch.setattr(peer, "LONGEST_SECONDS", 0.2)
    loaded = SimpleNamespace(continuous_batching_context_manager=lambda generation_config: Manager())
    rate = peer._answer(loaded, [([1, 2], 30), ([3], 70)])
    assert 100 / 1.0 < rate < 100 / 0.2


def test_rows_that_compare_with_another_measure_it_no_second_time() -> None:
    stage = tiny_stage()
    for rows in (engine_rows.adapted_rows, engine_rows.slope_rows, engine_rows.short_rows):
        with pytest.raises(Unsupported, match="what it is compared with was not measured in this process"):
            rows(stage)
    assert figures(TINY)[-1].what.endswith("transformers' continuous batching"), "nobody waits behind the peer"


def spoil_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = trust.reference
    monkeypatch.setattr(trust, "reference", lambda *given: reference(*given) * 1.2)


def spoil_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Served._take

    def spoiled(served: Served, message: Any) -> None:
        for entry in message.logprobs or ():
            message.logprobs = [msgspec.structs.replace(entry, logprob=entry.logprob * 1.2)]
        take(served, message)

    monkeypatch.setattr(Served, "_take", spoiled)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [(spoil_reference, "prompts beside transformers"), (spoil_decodes, "decodes beside prompts")],
)
def test_an_engine_that_says_something_else_has_no_speed(
    spoil: Callable[[pytest.MonkeyPatch], None], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    row = measured(figures(TINY)[0])
    assert row.value is None and row.note.startswith(f"WRONG RESULT: the base: {what}"), row


def test_who_does_not_open_an_engine_waits_for_who_does() -> None:
    row = measured(figures(TINY)[1])
    assert (row.value, row.note) == (None, "the row that opens its engine was not measured")


def test_what_takes_longer_than_what_is_left_is_not_begun() -> None:
    long, short = (Figure(f"{seconds}", "x", None, lambda stage: 1.0, seconds=seconds) for seconds in (8.0, 3.0))
    moments, rows = iter([0.0, 5.0, 5.0]), list[Row]()
    measure([long, short], tiny_stage(), 10.0, rows.append, lambda: next(moments))
    assert [(row.value, row.note) for row in rows] == [(None, OUT_OF_TIME), (1.0, "")]


class Ticking:
    """Time that goes by as somebody looks at it."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now


class PlannedAhead:
    """An engine whose steps take a second: what comes while one runs begins with the one after the next."""

    def __init__(self, clock: Ticking, cut: bool = False) -> None:
        self.engine: Any = SimpleNamespace(info=SimpleNamespace(vocab_size=50), core=self)
        self.cut = cut
        self._clock = clock
        self._live: list[tuple[int, Stream]] = []
        self._steps = 0

    def has_work(self) -> bool:
        return any(len(stream.tokens) < stream.max_tokens for _, stream in self._live)

    def add(self, prompt: list[int], answer: int) -> Stream:
        stream = Stream(prompt, answer - self.cut)
        self._live.append((self._steps, stream))
        return stream

    def step(self) -> None:
        self._steps += 1
        self._clock.now += 1
        for begun, stream in self._live:
            if self._steps - begun > 1 and len(stream.tokens) < stream.max_tokens:
                stream.first = stream.first or self._clock.now
                stream.tokens.append(1)

    def clear(self) -> None:
        assert not self.has_work()


def test_a_request_waits_from_the_moment_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a step, the next that is planned already, and its own; long prompts count for nothing."""
    monkeypatch.setattr(arrivals, "time", Ticking())
    come: Any = Arrivals(requests=300, apart=2, short=4, long=9, one_in=5, answer=6)
    waited = arrivals.wait_of_short(cast(Served, PlannedAhead(cast(Any, arrivals).time)), come, 1.0)
    assert 2.7 < waited < 3.1
    with pytest.raises(WrongResult, match="another length"):
        arrivals.wait_of_short(cast(Served, PlannedAhead(cast(Any, arrivals).time, cut=True)), come, 1.0)
    assert come.streams == 3


def test_bytes_of_adapters_count_once_in_a_wave() -> None:
    size = replace(FULL, crowd=3)
    one, two = (size.little.adapter_bytes(rank) for rank in size.ranks[:2])
    assert engine_rows._bytes_read(size, [0, 0, 4, 1, 1]) == [2 * one, two]


class At(float):
    def seconds_until(self, other: "At") -> float:
        return other - self


def test_both_populations_have_the_same_ranks() -> None:
    (everyone, few), ranks = FULL.population, FULL.ranks
    for place in range(everyone):
        stand_in = _one_of_few(place, few, len(ranks))
        assert stand_in < few and ranks[stand_in % len(ranks)] == ranks[place % len(ranks)]
    assert {_one_of_few(place, few, len(ranks)) for place in range(few)} == set(range(few))


def test_the_busy_share_is_what_lies_within_steps() -> None:
    assert share([(At(1), At(3)), (At(3), At(4)), (At(6), At(7))]) == pytest.approx(4 / 6)
    moments = [At(moment) for moment in range(5)]
    assert share(list(pairwise(moments))) == 1.0


class Steps:
    """A runner whose device is idle while the host prepares a step for 3 s, and computes it for 1 s."""

    depth = 1

    def __init__(self) -> None:
        self.now = 0.0
        self.graphs: Any = self

    def submit(self, plan: object) -> None:
        self.now += 3
        self.graphs.run("key", None)

    def run(self, key: object, launch: object) -> None:
        self.now += 1


def test_a_device_that_waits_for_the_host_is_not_busy() -> None:
    runner = Steps()
    in_flight = SimpleNamespace(_runner=runner)
    with marked(in_flight, lambda: At(runner.now)) as spans:
        for _ in range(2):
            in_flight._runner.submit(None)
    assert share(spans) == pytest.approx(2 / 5) and runner.graphs is runner


@pytest.mark.parametrize("package", [stand_ins, msgspec])
def test_the_stand_in_does_what_the_engine_takes_of_msgspec(package: Any) -> None:
    class Base(package.Struct, tag=True):  # type: ignore[misc]
        pass

    class Thing(Base, kw_only=True):
        name: str
        parts: list[int] = []  # noqa: RUF012
        size: float = 1.0

    class Place(package.Struct, frozen=True):  # type: ignore[misc]
        x: int
        y: int = 2

    replace = getattr(package, "structs", package).replace
    one, other = Thing(name="a"), Thing(name="a")
    one.parts.append(1)
    assert other.parts == [] and one != other and Thing.__struct_fields__ == ("name", "parts", "size")
    assert replace(one, size=2.0).parts == [1]
    assert Place(1) == Place(1, 2) and {Place(1): "found"}[Place(x=1)] == "found"
    with pytest.raises(AttributeError):
        Place(1).x = 2
    for wrong in ({}, {"name": "a", "colour": "red"}):
        with pytest.raises(TypeError):
            Thing(**wrong)
    with pytest.raises((TypeError, AttributeError)):
        one.colour = "red"


def test_an_engine_that_cannot_be_imported_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import serving

    monkeypatch.setitem(sys.modules, "loraplex.engine.startup.build", None)
    with pytest.raises(Unsupported, match="needs the package"):
        serving._import_engine()
