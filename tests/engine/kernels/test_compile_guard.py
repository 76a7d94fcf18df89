import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import driver

from loraplex.engine.compile_guard import MOST_LOGGED, CompileGuard
from tests.ahead_of_time import AbsentDevice, CompileOnly


@triton.jit
def double(x: tl.tensor, SIZE: tl.constexpr) -> None:
    places = tl.arange(0, SIZE)
    tl.store(x + places, 2 * tl.load(x + places))


@pytest.fixture
def listened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names that somebody before the guard heard of."""
    heard: list[str] = []
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
    guard = CompileGuard()
    kernel[(1,)](torch.zeros(16), SIZE=16)
    assert guard.late == 0, "it was there before"
    with caplog.at_level(logging.WARNING):
        kernel[(1,)](torch.zeros(32), SIZE=32)
    assert guard.late == 1 and listened == ["double", "double"]
    assert caplog.messages == ["kernel double was compiled while requests are served; it belongs to the warm-up"]


def test_a_flood_is_counted_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    guard = CompileGuard()
    with caplog.at_level(logging.WARNING):
        for _ in range(MOST_LOGGED + 5):
            guard.note("x")
    triton.knobs.compilation.listener = None
    assert (guard.late, len(caplog.messages)) == (MOST_LOGGED + 5, MOST_LOGGED)
