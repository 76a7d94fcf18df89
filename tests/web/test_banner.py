"""The box at the end of the start, which containers keep in their logs."""

import io

import httpx
import pytest
from rich.console import Console

from loraplex.web.cli.banner import print_banner
from loraplex.web.state import State

from .conftest import ADMIN_PASSWORD, KEY


def printed(state: State) -> str:
    shown = io.StringIO()
    print_banner(Console(width=200, file=shown), state)
    return shown.getvalue()


async def test_it_shows_the_login_and_the_key_that_we_have_made(
    client: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = state.settings.model_copy(update={"admin_password": None, "api_key": None})
    monkeypatch.setattr(state, "settings", own)
    assert f"Login       admin / {ADMIN_PASSWORD} " in printed(state)
    assert f"Key         {KEY} " in printed(state) and f"Authorization: Bearer {KEY}'" in printed(state)


async def test_it_shows_no_secret_that_the_operator_has_set(client: httpx.AsyncClient, state: State) -> None:
    assert state.settings.admin_password_text and state.settings.api_key_text
    assert "Login       admin / (known to you) " in printed(state) and "Key         (known to you) " in printed(state)
    assert "Authorization: Bearer YOUR_KEY'" in printed(state)
    assert ADMIN_PASSWORD not in printed(state) and KEY not in printed(state)
