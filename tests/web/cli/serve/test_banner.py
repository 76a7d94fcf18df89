"""The box at the end of the start, which containers keep in their logs."""

import io

import httpx
import pytest
from msgspec.structs import replace
from rich.console import Console

from loraplex.engine.pooling.wanted import ModelClasses, PoolingKind
from loraplex.web.cli.serve.banner import print_banner
from loraplex.web.state import State

from ...conftest import ADMIN_PASSWORD, KEY
from ...fake_engine import FakeEngine


def printed(state: State, first_start: bool, terminal: bool) -> str:
    shown = io.StringIO()
    print_banner(
        Console(width=200, file=shown, force_terminal=terminal, color_system=None), state, first_start, seconds=1.0
    )
    return shown.getvalue()


@pytest.fixture
def own(state: State, monkeypatch: pytest.MonkeyPatch) -> State:
    """With a password and a key that the first start has made."""
    settings = state.settings.model_copy(update={"admin_password": None, "api_key": None})
    monkeypatch.setattr(state, "settings", settings)
    return state


async def test_a_terminal_shows_the_login_and_the_key_once(client: httpx.AsyncClient, own: State) -> None:
    box = printed(own, first_start=True, terminal=True)
    assert f"Login       admin / {ADMIN_PASSWORD} " in box
    assert f"Key         {KEY} " in box and f"Authorization: Bearer {KEY}'" in box


@pytest.mark.parametrize(("first_start", "terminal"), [(True, False), (False, True), (False, False)])
async def test_no_log_and_no_later_start_has_them(
    client: httpx.AsyncClient, own: State, first_start: bool, terminal: bool
) -> None:
    box = printed(own, first_start, terminal)
    assert ADMIN_PASSWORD not in box and KEY not in box
    assert "Login       admin / (loraplex credentials show) " in box
    assert "Key         (loraplex credentials show) " in box and "Authorization: Bearer YOUR_KEY'" in box


async def test_it_shows_no_secret_that_the_operator_has_set(client: httpx.AsyncClient, state: State) -> None:
    assert state.settings.admin_password_text and state.settings.api_keys
    box = printed(state, first_start=True, terminal=True)
    assert "Login       admin / (known to you) " in box and "Key         (known to you) " in box
    assert "Authorization: Bearer YOUR_KEY'" in box
    assert ADMIN_PASSWORD not in box and KEY not in box


async def test_the_example_is_one_that_the_model_answers(client: httpx.AsyncClient, state: State) -> None:
    assert "/v1/chat/completions -H" in printed(state, first_start=True, terminal=True)
    assert isinstance(state.engine, FakeEngine)
    state.engine.why_silent = "it generates no text"
    for classes, path in ((None, "/v1/embeddings"), (ModelClasses(labels=["a", "b"]), "/classify")):
        state.engine.classes = classes
        await state.engine.start()
        assert f"{path} -H" in printed(state, first_start=True, terminal=True)
        if classes is not None:
            assert (await client.post(path, json={"model": "tiny", "input": "Hello"})).status_code == 200
    state.engine.classified_by = PoolingKind.ALL
    await state.engine.start()
    assert "/pooling -H" in printed(state, first_start=True, terminal=True)


async def test_a_model_without_keys_and_values_has_no_line_for_them(client: httpx.AsyncClient, state: State) -> None:
    assert isinstance(state.engine, FakeEngine) and state.engine.info is not None
    assert "KV cache    " in printed(state, first_start=True, terminal=True)
    state.engine.info = replace(state.engine.info, num_blocks=0, kv_cache_bytes=0)
    assert "KV cache" not in printed(state, first_start=True, terminal=True)
