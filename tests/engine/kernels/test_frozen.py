"""Launches without a search: the same launches as triton's own, and never of a kernel for other arguments."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from loraplex.engine.kernels.cuda import frozen
from loraplex.engine.kernels.cuda.frozen import describe, freeze_launches
from tests.ahead_of_time import AbsentDevice

Launch = tuple[Any, ...]


class Pair(NamedTuple):
    first: Any
    second: Any


@triton.jit(do_not_specialize=["layer"])
def kernel(
    y: tl.tensor, x: tl.tensor | None, count: tl.tensor, layer: tl.tensor, factor: tl.tensor, pair: Pair,
    WIDTHS: tl.constexpr, IS_WIDE: tl.constexpr = False,
) -> None:  # fmt: skip
    tl.store(y, tl.load(x) * factor)


@triton.jit
def other(y: tl.tensor, SIZE: tl.constexpr) -> None:
    tl.store(y, SIZE)


class Triton(NamedTuple):
    """What reached the device, and what was compiled for it: a kernel and what triton told of the arguments."""

    launches: list[Launch]
    compiled: list[Any]
    searched: list[str]
    """Kernels that triton looked for."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> AbsentDevice:
    absent = AbsentDevice(90)
    monkeypatch.setattr(driver, "_active", absent)
    for function in (kernel, other):
        monkeypatch.setattr(function, "device_caches", type(function.device_caches)(function.create_binder))
    return absent


@pytest.fixture
def found(device: AbsentDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[Triton]:
    result, search, kernels = Triton([], [], []), JITFunction.run, list[Any]()

    def compile_it(function: Any, key: str, *given: Any) -> CompiledKernel:
        compiled: Any = object.__new__(CompiledKernel)
        number = len(result.compiled)
        compiled.module, compiled._module_pid, compiled.function, compiled.packed_metadata = 1, None, number, ()
        compiled.name, compiled.src = function.__name__, None
        compiled._run = lambda *launch: result.launches.append(launch)
        kernels.append(compiled)
        result.compiled.append((function.__name__, key))
        function.device_caches[driver.active.get_current_device()][0][key] = compiled
        return compiled

    def searched(function: Any, *arguments: Any, **named: Any) -> Any:
        result.searched.append(function.__name__)
        return search(function, *arguments, **named)

    monkeypatch.setattr(JITFunction, "_do_compile", compile_it)
    monkeypatch.setattr(JITFunction, "run", searched)
    yield result
    for compiled in kernels:
        compiled.module = None  # nothing that a device would have to unload


def launch(**changed: Any) -> None:
    given: dict[str, Any] = {
        "y": torch.zeros(64), "x": torch.zeros(64), "count": 32, "layer": 3, "factor": 0.5, "pair": Pair(8, None),
        "WIDTHS": (8, 16), "num_warps": 4, "enable_fp_fusion": True,
    } | changed  # fmt: skip
    arguments = [given.pop(name) for name in ("y", "x", "count", "layer", "factor", "pair")]
    kernel[2, 3](*arguments, **given)


ODD = torch.zeros(65)[1:]
CHANGES: list[dict[str, Any]] = [
    {"y": ODD}, {"x": ODD}, {"x": None}, {"y": torch.zeros(64, dtype=torch.int32)}, {"x": torch.zeros(64).double()},
    {"count": 1}, {"count": 31}, {"count": 1 << 40}, {"count": 1 << 63}, {"layer": 1 << 40}, {"factor": 2},
    {"pair": Pair(16, None)}, {"pair": Pair(1, None)}, {"pair": Pair(8, 8)}, {"pair": Pair(8, torch.zeros(4))},
    {"WIDTHS": (8, 17)}, {"IS_WIDE": True}, {"num_warps": 8}, {"enable_fp_fusion": False}, {"maxnreg": 64},
]  # fmt: skip


def test_what_is_launched_again_reaches_the_device_as_it_did(found: Triton) -> None:
    """With other tensors and numbers of the same kind."""
    y, x = torch.zeros(4), torch.zeros(8)
    launch(y=y, x=x, count=48, layer=5, factor=1.5)
    public = found.launches.pop()
    freeze_launches()
    launch()
    found.searched.clear()
    launch(y=y, x=x, count=48, layer=5, factor=1.5)
    assert not found.searched and len(found.compiled) == 1
    again = found.launches[-1]
    assert again[:6] == public[:6] == (2, 3, 1, 0, 0, ()), "grid, stream, function"
    assert again[6].data == public[6].data and again[7:9] == public[7:9], "who watches launches"
    assert again[9] is y is public[9] and again[10] is x is public[10]
    assert again[11:] == public[11:] == (48, 5, 1.5, Pair(8, None), (8, 16), False)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "-".join(change))
def test_a_changed_argument_gets_a_kernel_of_its_own(change: dict[str, Any], found: Triton) -> None:
    freeze_launches()
    launch()
    launch()
    assert found.searched == ["kernel"]
    launch(**change)
    assert len(found.compiled) == 2 and [launch[4] for launch in found.launches] == [0, 0, 1]
    launch(**change)
    launch()
    assert len(found.compiled) == 2 and [launch[4] for launch in found.launches] == [0, 0, 1, 1, 0]


def test_devices_and_streams_are_told_apart(found: Triton, monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_launches()
    launch()
    launch()
    monkeypatch.setattr(AbsentDevice, "get_current_stream", lambda device, number: 77)
    launch()
    monkeypatch.setattr(AbsentDevice, "get_current_device", lambda device: 1)
    launch()
    launch()
    assert [launch[3:5] for launch in found.launches] == [(0, 0), (0, 0), (77, 0), (77, 1), (77, 1)]
    assert found.searched == ["kernel"] * 2


def test_what_is_not_plain_takes_tritons_way(found: Triton, monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_launches()
    several: Any = (
        lambda: kernel[2, 3](*[torch.zeros(4)] * 2, 1, 2, 0.5, pair=Pair(1, None), WIDTHS=(8,)),
        lambda: other[lambda given: (1,)](torch.zeros(4), SIZE=7),
        lambda: other[(1,)](torch.nn.Parameter(torch.zeros(4)), SIZE=7),
        lambda: launch(factor=True),
        lambda: launch(pair=Pair(8, True)),
    )
    for call in several:
        found.searched.clear()
        call()
        call()
        assert len(found.searched) == 2
    for size in (1, 7, 8):
        other[(1,)](torch.zeros(4), SIZE=size)
        other[(1,)](torch.zeros(4), size)
    assert [function for function, _ in found.compiled].count("other") == 3, "by place as by name"
    found.searched.clear()
    other[(1,)](torch.zeros(4), 1)
    assert not found.searched and found.launches[-1][-1] == 1
    other[(1,)](torch.zeros(4), SIZE=8)
    assert not found.searched and found.launches[-1][-1] == 8
    monkeypatch.setattr(other, "pre_run_hooks", [lambda *arguments, **named: None])
    other[(1,)](torch.zeros(4), SIZE=8)
    assert found.searched == ["other"]


def test_who_watches_launches_goes_on_watching(found: Triton) -> None:
    freeze_launches()
    launch()
    heard: list[Any] = []
    triton.knobs.runtime.launch_enter_hook.add(heard.append)
    try:
        launch()
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(heard.append)
    enter, metadata = found.launches[-1][7], found.launches[-1][6]
    enter(metadata)
    assert found.searched == ["kernel"] and metadata is not None


def random_argument(source: random.Random) -> Any:
    numbers = [0, 1, 2, 15, 16, 17, 32, -1, -16, (1 << 31) - 1, 1 << 31, -(1 << 31) - 1, (1 << 63) - 1, 1 << 63]
    dtypes = [torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.float8_e4m3fn]
    tensor = torch.zeros(48, dtype=source.choice(dtypes))[source.choice((0, 1, 4, 8, 16)) :]
    value = source.choice([tensor, source.choice(numbers), source.randrange(1 << 20), source.random(), 1.0, None])
    return Pair(value, random_argument(source)) if source.random() < 0.1 else value


def test_equal_keys_are_equal_to_triton(device: AbsentDevice) -> None:
    """Of random arguments: what describes two of them alike is told alike by triton."""
    from triton._C.libtriton import native_specialize_impl
    from triton.compiler.compiler import make_backend

    source, told = random.Random(3), dict[Any, Any]()
    backend, count = make_backend(device.get_current_target()), 0
    for _ in range(4000):
        value = random_argument(source)
        said = native_specialize_impl(type(backend), value, False, True, True)
        count += describe(value) in told
        assert told.setdefault(describe(value), said) == said, value
    assert count > 3000 and len(told) > 30


def test_it_is_done_once_and_only_for_releases_that_are_known(found: Triton, monkeypatch: pytest.MonkeyPatch) -> None:
    search = JITFunction.run
    monkeypatch.setattr(triton, "__version__", "4.0.0")
    freeze_launches()
    assert JITFunction.run is search
    monkeypatch.setattr(triton, "__version__", frozen.RELEASES[-1] + "0")
    freeze_launches()
    quick = JITFunction.run
    freeze_launches()
    assert JITFunction.run is quick is not search


@pytest.fixture(autouse=True)
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Behind each test."""
    monkeypatch.setattr(JITFunction, "run", JITFunction.run)
    yield
