"""Adapters from the hub: the real client against a hub on this machine."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.adapter_tokenizers.files import TOKENIZER_LIMITS
from loraplex.web.adapters.upload_slots import UploadSlots
from loraplex.web.state import State

from .api.adapters.test_runtime_lora import as_admin, error_of, load
from .fake_engine import FakeEngine, sentence_of
from .fake_hub import COMMIT, REPOSITORY, FakeHub
from .test_adapters_api import said

__all__ = ["as_admin"]
PINNED = f"{REPOSITORY}@{COMMIT}"


def point_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)


@pytest.fixture
def hub(adapter_folders: list[Path], state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with an adapter and files that nobody asked for; the operator allows it."""
    files = {name: (adapter_folders[0] / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)}
    files |= {"README.md": b"hello", "adapter_model.bin": b"\x80\x04pickle"}
    with FakeHub(files) as hub:
        point_to(hub.address, monkeypatch)
        state.settings = state.settings.model_copy(update={"adapter_hub": True})
        yield hub


async def test_an_adapter_of_a_commit(
    client: httpx.AsyncClient, engine: FakeEngine, hub: FakeHub, state: State
) -> None:
    assert (await load(client, "sql", PINNED)).text == "Success: LoRA adapter 'sql' added successfully."
    [digest] = engine.registered
    assert await said(client, "sql") == sentence_of(digest)
    assert {file for method, file in hub.asked if method == "GET"} == {CONFIG_FILE, WEIGHTS_FILE}
    assert {file for _, file in hub.asked} == {CONFIG_FILE, WEIGHTS_FILE, *TOKENIZER_LIMITS}
    assert list(state.registry.store.incoming.iterdir()) == []


async def test_the_hub_is_not_asked_unless_the_operator_allows_it(
    client: httpx.AsyncClient, hub: FakeHub, state: State
) -> None:
    state.settings = state.settings.model_copy(update={"adapter_hub": False})
    status, kind, message = error_of(await load(client, "sql", PINNED))
    assert (status, kind) == (400, "InvalidUserInput")
    assert "LORAPLEX_ADAPTER_HUB" in message
    assert hub.asked == []


@pytest.mark.parametrize(
    "revision", ["", "@main", "@v1.0", "@refs/pr/1", "@", f"@{COMMIT[:7]}", f"@{COMMIT.upper()}", f"@{COMMIT}\n"]
)
async def test_only_a_commit_says_what_is_meant(client: httpx.AsyncClient, hub: FakeHub, revision: str) -> None:
    status, kind, message = error_of(await load(client, "sql", REPOSITORY + revision))
    assert (status, kind) == (400, "InvalidUserInput")
    assert f"Load {REPOSITORY}@<commit>" in message and f"{REPOSITORY}/commits/main" in message
    assert hub.asked == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (f"acme/none@{COMMIT}", "The hub has no model acme/none"),
        (f"{REPOSITORY}@{'f' * 40}", f"{REPOSITORY} has no commit {'f' * 40}."),
    ],
)
async def test_what_the_hub_does_not_have(client: httpx.AsyncClient, hub: FakeHub, path: str, reason: str) -> None:
    status, kind, message = error_of(await load(client, "sql", path))
    assert (status, kind) == (404, "NotFoundError")
    assert message.startswith(f"Loading lora sql failed: No adapter found for {path}. {reason}")


async def test_a_repository_without_an_adapter(client: httpx.AsyncClient, hub: FakeHub, state: State) -> None:
    del hub.files[WEIGHTS_FILE]
    assert error_of(await load(client, "sql", PINNED))[:2] == (404, "NotFoundError")
    assert list(state.registry.store.incoming.iterdir()) == []


async def test_nothing_too_large_is_downloaded(client: httpx.AsyncClient, hub: FakeHub, state: State) -> None:
    state.settings = state.settings.model_copy(update={"max_adapter_bytes": 1000})
    status, kind, message = error_of(await load(client, "sql", PINNED))
    assert (status, kind) == (400, "InvalidUserInput")
    assert WEIGHTS_FILE in message and "at most 1,000" in message
    assert all(method == "HEAD" for method, _ in hub.asked)


async def test_a_hub_that_sends_more_than_it_said(
    client: httpx.AsyncClient, hub: FakeHub, state: State, adapter_folders: list[Path]
) -> None:
    size = (adapter_folders[0] / WEIGHTS_FILE).stat().st_size
    state.settings = state.settings.model_copy(update={"max_adapter_bytes": size - 1})
    hub.declared_size = 100
    assert (await load(client, "sql", PINNED)).status_code >= 400
    assert (await client.get("/api/v1/adapters")).json()["data"] == []


@pytest.mark.parametrize("status", [403, 418, 500])
async def test_a_hub_that_refuses(client: httpx.AsyncClient, hub: FakeHub, status: int) -> None:
    hub.refusal = status
    answered, kind, message = error_of(await load(client, "sql", PINNED))
    assert (answered, kind) == (502, "BadGatewayError")
    assert message.startswith(f"The hub did not return {REPOSITORY} (") and str(status) in message
    assert "or download the adapter and load its folder" in message


async def test_a_hub_that_names_no_commit(client: httpx.AsyncClient, hub: FakeHub) -> None:
    hub.names_commit = False
    status, kind, message = error_of(await load(client, "sql", PINNED))
    assert (status, kind) == (502, "BadGatewayError")
    assert message.startswith(f"The hub does not say which commit its {CONFIG_FILE} of {REPOSITORY} is of")
    assert not [file for method, file in hub.asked if method == "GET"]


async def test_a_machine_without_a_network(
    client: httpx.AsyncClient, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_to("http://127.0.0.1:1", monkeypatch)
    status, kind, message = error_of(await load(client, "sql", PINNED))
    assert (status, kind) == (502, "BadGatewayError")
    assert "Check the network" in message


async def test_offline_mode(client: httpx.AsyncClient, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, kind, message = error_of(await load(client, "sql", PINNED))
    assert (status, kind) == (502, "BadGatewayError")
    assert "HF_HUB_OFFLINE is set. Unset it" in message
    assert hub.asked == []


async def test_a_hub_that_stalls_is_given_up(client: httpx.AsyncClient, hub: FakeHub, state: State) -> None:
    hub.stalls = True
    state.settings = state.settings.model_copy(update={"hub_timeout": 2.0})
    async with asyncio.timeout(120):
        status, kind, message = error_of(await load(client, "sql", PINNED))
    assert (status, kind) == (502, "BadGatewayError")
    assert message.startswith(f"The hub did not return {REPOSITORY} within 2 seconds.") and "hub_timeout" in message
    assert list(state.registry.store.incoming.iterdir()) == [] and state.uploads.taken == 0


async def test_a_download_that_stalls_gives_way(client: httpx.AsyncClient, hub: FakeHub, state: State) -> None:
    hub.stalls, state.uploads = True, UploadSlots(2)
    async with asyncio.timeout(120):
        waiting = {asyncio.create_task(load(client, name, PINNED)) for name in ("one", "two")}
        while sum(method == "GET" for method, _ in hub.asked) < 2:
            await asyncio.sleep(0.01)
        with state.uploads.hold("acme", "key"):
            # Which of them came to its slot first is nobody's promise.
            [gone], [other] = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert (gone.result().status_code, gone.result().headers["retry-after"]) == (503, "5")
        assert "made room for another tenant's" in gone.result().text
        hub.go_on.set()
        assert (await other).status_code == 200
