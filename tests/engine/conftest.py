import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import Harness

FAULTS = "LORAPLEX_TEST_FAULTS"


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def broken_executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the engine process fail as its faults say; returns what adds one. Its standard error is in engine.log."""
    faults, executable = tmp_path / "faults", tmp_path / "python"
    faults.mkdir()
    root = Path(__file__).parents[2]
    executable.write_text(
        f"#!/bin/sh\ncd {root}\nPYTHONPATH={root}/src:{root} exec {sys.executable} -m tests.engine.failing_engine $3"
        f" 2>>{tmp_path}/engine.log\n"
    )
    executable.chmod(0o755)
    monkeypatch.setenv(FAULTS, str(faults))
    monkeypatch.setattr(sys, "executable", str(executable))
    return lambda name: (faults / name).touch()
