"""Uploads that broke off: what is kept, who may go on with it, and what is refused."""

import hashlib
from pathlib import Path

import httpx
import pytest

from loraplex.registry.errors import UploadBusy, UploadMismatch
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE, ArtifactStore
from loraplex.registry.files.incoming import kept_bytes
from loraplex.web.state import State

from .test_adapters_api import Headers, as_admin

__all__ = ["as_admin"]

PATH = f"/api/v1/adapters/sql/files/{WEIGHTS_FILE}"
DATA = bytes(range(256)) * 40
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store", free_floor=0)


def begin(store: ArtifactStore, data: bytes, owner: str = "me", sha256: str = SHA256) -> None:
    """A connection that breaks after `data`."""
    with store.receive(len(DATA), sha256, len(DATA), owner) as incoming:
        incoming.write(data)


def test_the_next_connection_goes_on_where_the_last_one_broke(store: ArtifactStore) -> None:
    begin(store, DATA[:1000])
    begin(store, DATA[1000:5000])
    assert kept_bytes(store.incoming, "me", len(DATA), SHA256) == 5000
    with store.receive(len(DATA), SHA256, len(DATA), "me") as incoming:
        assert incoming.received == 5000
        incoming.write(DATA[5000:])
        blob = incoming.finish()
    assert store.blob_path(blob.sha256).read_bytes() == DATA
    assert list(store.incoming.iterdir()) == []


def test_what_another_owner_sent_is_no_beginning_of_mine(store: ArtifactStore) -> None:
    begin(store, b"wrong bytes", owner="somebody")
    assert kept_bytes(store.incoming, "me", len(DATA), SHA256) == 0
    with store.receive(len(DATA), SHA256, len(DATA), "me") as incoming:
        assert incoming.received == 0


def test_wrong_beginnings_are_forgotten_once_they_are_known(store: ArtifactStore) -> None:
    begin(store, b"x" * 1000)
    with pytest.raises(UploadMismatch), store.receive(len(DATA), SHA256, len(DATA), "me") as incoming:
        incoming.write(DATA[1000:])
        incoming.finish()
    assert kept_bytes(store.incoming, "me", len(DATA), SHA256) == 0


def test_one_connection_at_a_time(store: ArtifactStore) -> None:
    with store.receive(len(DATA), SHA256, len(DATA), "me") as incoming:
        incoming.write(DATA[:10])
        with pytest.raises(UploadBusy):
            store.receive(len(DATA), SHA256, len(DATA), "me")
        store.receive(len(DATA), SHA256, len(DATA), "you").abort()
    assert kept_bytes(store.incoming, "me", len(DATA), SHA256) == 10


async def test_a_put_may_go_on_over_http(client: httpx.AsyncClient, state: State) -> None:
    begin(state.registry.store, DATA[:4000], owner="default")
    headers = {"x-content-sha256": SHA256}
    there = (await client.get(PATH, params={"size": len(DATA)}, headers=headers)).json()
    assert there == {"file": WEIGHTS_FILE, "sha256": SHA256, "received": 4000, "already_here": False}

    async def put(start: int, total: int = len(DATA)) -> httpx.Response:
        sent = {**headers, "content-range": f"bytes {start}-{total - 1}/{total}"}
        return await client.put(PATH, content=DATA[start:], headers=sent)

    ahead = await put(5000)
    assert (ahead.status_code, ahead.json()["received"]) == (409, 4000)
    assert (await put(4000)).status_code == 201
    there = (await client.get(PATH, params={"size": len(DATA)}, headers=headers)).json()
    assert (there["received"], there["already_here"]) == (len(DATA), True)


@pytest.mark.parametrize(
    "value", ["bytes 0-9/9", "bytes 5-3/10", "items 0-9/10", "bytes 0-9/*", "bytes -1-9/10", "x" * 5000]
)
async def test_ranges_that_say_nothing_are_refused(client: httpx.AsyncClient, value: str) -> None:
    headers: Headers = {"x-content-sha256": SHA256, "content-range": value}
    answer = await client.put(PATH, content=DATA[:10], headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "content-range")


async def test_a_put_without_a_range_begins_anew(client: httpx.AsyncClient, state: State) -> None:
    begin(state.registry.store, b"x" * 4000, owner="default")
    answer = await client.put(PATH, content=DATA, headers={"x-content-sha256": SHA256})
    assert (answer.status_code, answer.json()["already_here"]) == (201, False)


async def test_only_an_adapters_files_are_asked_for(client: httpx.AsyncClient) -> None:
    for file, size in (("passwd", "1"), (CONFIG_FILE, "x"), (CONFIG_FILE, "-1")):
        path = f"/api/v1/adapters/sql/files/{file}"
        answer = await client.get(path, params={"size": size}, headers={"x-content-sha256": SHA256})
        assert 400 <= answer.status_code < 500
