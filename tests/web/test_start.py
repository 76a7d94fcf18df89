"""`loraplex serve` once its engine has started."""

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from loraplex.web.cli import start
from loraplex.web.state import State


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """The run of all tests has frozen what modules import."""
    gc.unfreeze()
    yield
    gc.freeze()


async def test_the_process_keeps_what_its_start_has_made(
    state: State, monkeypatch: pytest.MonkeyPatch, unfrozen: None
) -> None:
    shown: list[State] = []
    monkeypatch.setattr(start, "print_banner", lambda console, state: shown.append(state))
    state.started.set()
    await start._announce(state, SimpleNamespace())  # type: ignore[arg-type]
    assert shown == [state] and gc.get_freeze_count() > 1000
