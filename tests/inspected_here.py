"""Uploaded files are inspected in the test's own process: a fresh Python for each takes longer than most tests.

tests/registry/files/test_preflight.py is about the child process, and servers of tests/integration have it.
"""

from pathlib import Path

import msgspec
import pytest

from loraplex.lora.inspection.inspection import inspect_adapter
from loraplex.registry.files import preflight, preflight_worker


def inspect_here(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preflight, "ask_child", _inspect)


def _inspect(_module: str, task: msgspec.Struct, _seconds: int) -> bytes:
    """As preflight_worker.main does it."""
    assert isinstance(task, preflight.Task)
    folder = None if task.base_folder is None else Path(task.base_folder)
    inspection = inspect_adapter(Path(task.config).read_bytes(), Path(task.weights), task.base, folder)
    return msgspec.json.encode(preflight_worker._report(inspection))
