"""Where static scales of the KV cache clip, an adapter's page warns and metrics say how much."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.engine.status import Clipping
from loraplex.web.state import State

from .conftest import ADMIN_PASSWORD
from .fake_engine import FakeEngine
from .observability.test_metrics import scrape
from .test_access import log_in
from .test_adapters_api import add


async def adapter_page(client: httpx.AsyncClient, headers: dict[str, str]) -> list[str]:
    """The notices on it."""
    page = BeautifulSoup((await client.get("/adapters/sql", headers=headers)).text, "html.parser")
    return [notice.get_text() for notice in page.select('.notice[data-tone="warn"]')]


@pytest.mark.parametrize(
    ("clipping", "share"),
    [
        (Clipping(tokens=1000, clipped_tokens=90, clipped_values=3000), "0.3 %"),
        (Clipping(tokens=1000, clipped_tokens=90, clipped_values=123_456), "12 %"),
        (Clipping(tokens=1000, clipped_tokens=1, clipped_values=1), "less than 0.001 %"),
        (Clipping(tokens=1000), None),
        (None, None),
    ],
)
async def test_an_adapters_page_warns_of_clipped_values(
    client: httpx.AsyncClient,
    state: State,
    engine: FakeEngine,
    admin: dict[str, str],
    adapter_folders: list[Path],
    clipping: Clipping | None,
    share: str | None,
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    [digest] = engine.registered
    if clipping is not None:
        engine.clipping = {digest: clipping}
    del client.headers["authorization"]
    operator, _ = await log_in(state)
    notices = await adapter_page(client, operator)
    assert len(notices) == (share is not None)
    if share is not None:
        assert notices[0].startswith(f"{share} of this adapter's keys and values are clipped")
        assert "Run loraplex calibrate-kv again" in notices[0]
        state.registry.users.create("bob", ADMIN_PASSWORD, "viewer", actor="system")
        viewer, _ = await log_in(state, "bob")
        [told] = await adapter_page(client, viewer)
        assert "Ask the operator" in told and "calibrate-kv" not in told


async def test_metrics_tell_clipped_from_written(
    client: httpx.AsyncClient, engine: FakeEngine, admin: dict[str, str], adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    assert "loraplex_kv_saturated_total" not in await scrape(client), "nothing can be clipped"
    [digest] = engine.registered
    engine.clipping = {
        "": Clipping(tokens=7),
        digest: Clipping(tokens=50, clipped_tokens=4, clipped_values=9),
    }
    found: dict[str, Any] = await scrape(client)
    base, adapter = (("adapter", "tiny"),), (("adapter", "sql"),)
    assert found["loraplex_kv_saturated_total"] == {base: 0, adapter: 9}
    assert found["loraplex_kv_saturated_tokens_total"] == {base: 0, adapter: 4}
    assert found["loraplex_kv_values_total"] == {base: 7000, adapter: 50000}
