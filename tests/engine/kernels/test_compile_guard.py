"""A kernel that is compiled while the engine serves: it is told of before, counted and named afterwards."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from loraplex.engine.ipc.compile_guard import MOST_LOGGED, CompileGuard
from loraplex.engine.kernels import one_compiler
from tests.ahead_of_time import AbsentDevice, CompileOnly


@triton.jit
def double(x: tl.tensor, SIZE: tl.constexpr) -> None:
    places = tl.arange(0, SIZE)
    tl.store(x + places, 2 * tl.load(x + places))


@pytest.fixture
def listened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names that somebody before the guard heard of."""
    heard: list[str] = []
    monkeypatch.setattr(JITFunction, "_do_compile", JITFunction._do_compile)  # the guard's goes with the test
    monkeypatch.setattr(one_compiler, "_listeners", [])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", None)
    driver.set_active(AbsentDevice(90))
    triton.knobs.compilation.listener = lambda **facts: heard.append(facts["metadata"]["name"])
    yield heard
    triton.knobs.compilation.listener = None


def test_a_kernel_compiled_after_readiness_is_counted_and_named(
    listened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    kernel = CompileOnly(double)
    kernel[(1,)](torch.zeros(16), SIZE=16)
    begun: list[str] = []
    guard = CompileGuard(begun.append)
    kernel[(1,)](torch.zeros(16), SIZE=16)
    assert guard.late == 0 and begun == [], "it was there before"
    with caplog.at_level(logging.WARNING):
        kernel[(1,)](torch.zeros(32), SIZE=32)
    assert guard.late == 1 and begun == ["double"] and listened == ["double", "double"]
    assert caplog.messages == ["kernel double was compiled while requests are served; it belongs to the warm-up"]


def test_only_the_main_thread_keeps_the_loop_waiting(listened: list[str]) -> None:
    begun: list[str] = []
    guard = CompileGuard(begun.append)
    loader = threading.Thread(target=guard.begin, args=("loader's",))
    loader.start()
    loader.join()
    guard.begin("step's")
    assert begun == ["step's"]


def test_a_flood_is_counted_and_not_logged(listened: list[str], caplog: pytest.LogCaptureFixture) -> None:
    guard = CompileGuard(lambda kernel: None)
    with caplog.at_level(logging.WARNING):
        for _ in range(MOST_LOGGED + 5):
            guard.note("x")
    assert (guard.late, len(caplog.messages)) == (MOST_LOGGED + 5, MOST_LOGGED)
