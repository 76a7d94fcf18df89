"""Pins of a tenant leave room to the others."""

from pathlib import Path

import httpx
import msgspec
import pytest

from loraplex.web.state import State

from ..conftest import ADMIN_PASSWORD
from ..fake_engine import FakeEngine
from ..test_access import ORIGIN, key, log_in
from ..test_adapters_api import add

SIZE = 1000
"""Bytes of every adapter of the fake engine."""


@pytest.fixture
def acme(client: httpx.AsyncClient, state: State) -> None:
    """The client asks as an editor of a tenant that does not operate the server."""
    state.registry.tenants.create("acme", actor="user:root")
    client.headers.update(key(state, "adapters", tenant="acme"))


def resize(engine: FakeEngine, **sizes: int) -> None:
    assert engine.info is not None
    engine.info = msgspec.structs.replace(engine.info, **sizes)


async def pin(client: httpx.AsyncClient, reference: str, pinned: bool = True) -> httpx.Response:
    return await client.patch(f"/api/v1/adapters/{reference}", json={"pinned": pinned})


async def test_a_tenant_pins_half_of_the_memory_at_most(
    client: httpx.AsyncClient, acme: None, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    resize(engine, adapter_memory=3 * SIZE)
    one = (await add(client, "one", adapter_folders[0])).json()["version"]["digest"]
    two = (await add(client, "two", adapter_folders[1])).json()["version"]["digest"]
    assert (await pin(client, "one")).status_code == 200
    for reference in ("two", "two@1"):
        refused = await pin(client, reference)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_many_pins")
        assert "would hold 2.0 kB and 2 places" in refused.json()["error"]["message"]
        assert "it may hold 1.5 kB and 4, half of all there is" in refused.json()["error"]["message"]
    assert (engine.registered[one].pinned, engine.registered[two].pinned) == (True, False)
    assert (await pin(client, "one@1")).status_code == 200, "the same bytes hold room once"
    for reference in ("one", "one@1"):
        assert (await pin(client, reference, pinned=False)).status_code == 200
    assert (await pin(client, "two")).status_code == 200
    resize(engine, adapter_memory=SIZE, max_loaded_adapters=2)
    assert (await pin(client, "two")).status_code == 409
    resize(engine, adapter_memory=100 * SIZE)
    assert (await pin(client, "one")).status_code == 409, "one place of two"
    assert (await pin(client, "none")).status_code == 404


async def test_who_operates_the_server_may_pin_all(
    client: httpx.AsyncClient, admin: dict[str, str], engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    resize(engine, adapter_memory=SIZE)
    for name, folder in zip(("one", "two"), adapter_folders, strict=False):
        await add(client, name, folder)
        assert (await pin(client, name)).status_code == 200


async def test_the_dashboard_says_the_same(
    client: httpx.AsyncClient, acme: None, state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    resize(engine, adapter_memory=SIZE)
    await add(client, "one", adapter_folders[0])
    state.registry.users.create("eve", ADMIN_PASSWORD, "editor", actor="user:root", tenant="acme")
    headers, token = await log_in(state, "acme/eve")
    del client.headers["authorization"]
    answer = await client.post("/adapters/one/pin", headers=headers | ORIGIN, data={"csrf_token": token})
    assert answer.status_code == 409 and "Unpin others first" in answer.text
