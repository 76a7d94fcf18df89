"""`loraplex serve` once its engine has started."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from loraplex.web.cli.serve import start
from loraplex.web.state import State

pytestmark = pytest.mark.usefixtures("unfrozen")


async def test_the_process_keeps_what_its_start_has_made(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[State, bool]] = []
    monkeypatch.setattr(
        start, "print_banner", lambda console, state, first_start, seconds: shown.append((state, first_start))
    )
    state.started.set()
    server: Any = SimpleNamespace(should_exit=False)
    await start._announce(state, server, first_start=True, started=0.0)
    assert shown == [(state, True)] and gc.get_freeze_count() > 1000 and not server.should_exit
