"""Uploads at the same time: who gives way to whom, and what happens to one that stands still."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import ExitStack

import httpx
import pytest

from loraplex.registry.files.artifacts import WEIGHTS_FILE
from loraplex.web.adapters.upload_slots import UploadSlots
from loraplex.web.http.errors import ApiError
from loraplex.web.state import State

from ..test_adapters_api import Headers, as_admin

__all__ = ["as_admin"]

PATH = f"/api/v1/adapters/sql/files/{WEIGHTS_FILE}"


@pytest.mark.parametrize(
    ("holders", "newcomer", "loser"),
    [
        ("a1 a1 a1 b1", "b1", 2),
        ("a1 a1 a1 b1", "a2", 2),
        ("a1 a1 b1 b1", "c1", 3),
        ("a1 a2 a1 a1", "a2", 3),
        ("a1 a1 b1 b1", "a2", 1),
        ("a1 a1 b1 b1", "b1", None),
        ("a1 a1 a2 a2", "a1", None),
        ("a1 a1 a1 a1", "a1", None),
        ("a1 b1 c1 d1", "e1", None),
    ],
)
def test_who_holds_most_gives_way(holders: str, newcomer: str, loser: int | None) -> None:
    slots = UploadSlots(4)
    with ExitStack() as stack:
        held = [stack.enter_context(slots.hold(one[0], one[1])) for one in holders.split()]
        if loser is None:
            with pytest.raises(ApiError) as refused, slots.hold(newcomer[0], newcomer[1]):
                raise AssertionError("it got a slot")
            assert (refused.value.status, refused.value.headers["retry-after"]) == (503, "5")
            yours = holders.split().count(newcomer)
            ours = sum(one[0] == newcomer[0] for one in holders.split()) - yours
            assert f"{yours} by you and {ours} by others in your tenant" in refused.value.message
        else:
            with slots.hold(newcomer[0], newcomer[1]):
                assert [bool(slot._gone) for slot in held] == [place == loser for place in range(4)]
                assert slots.taken == 4
    assert slots.taken == 0


def test_what_cannot_be_broken_off_leaves_half_of_the_slots_to_others() -> None:
    slots = UploadSlots(4)
    with slots.hold("a", "1", stays=True) as first, slots.hold("a", "2", stays=True) as second, slots.hold("a", "1"):
        with pytest.raises(ApiError, match="already reads 2 adapters"), slots.hold("b", "1", stays=True):
            raise AssertionError("it got a slot")
        with slots.hold("b", "1"), slots.hold("b", "1"), pytest.raises(ApiError), slots.hold("b", "1"):
            raise AssertionError("it got a slot")
    assert not first._gone and not second._gone


def put(
    client: httpx.AsyncClient, data: bytes, stops: bool, start: int = 0, **headers: str
) -> asyncio.Task[httpx.Response]:
    """Of `data` from `start` on; one that `stops` brings 1,000 bytes and then nothing."""

    async def body() -> AsyncIterator[bytes]:
        yield data[start : start + 1000]
        if stops:
            await asyncio.Event().wait()
        yield data[start + 1000 :]

    size = len(data)
    sent = {"x-content-sha256": hashlib.sha256(data).hexdigest(), "content-length": str(size - start), **headers}
    if start:
        sent["content-range"] = f"bytes {start}-{size - 1}/{size}"
    return asyncio.create_task(client.put(PATH, content=body(), headers=sent))


async def test_an_upload_that_stands_still_is_broken_off_and_may_go_on(client: httpx.AsyncClient, state: State) -> None:
    state.settings = state.settings.model_copy(update={"upload_stall_timeout": 0.2})
    answer = await put(client, bytes(5000), stops=True)
    assert (answer.status_code, answer.json()["received"]) == (408, 1000), answer.text
    assert "Less than 1 MiB of the file arrived within 0.2 seconds. 1,000 bytes are stored" in answer.text
    assert state.uploads.taken == 0
    state.settings = state.settings.model_copy(update={"upload_stall_timeout": 60.0})
    assert (await put(client, bytes(5000), stops=False, start=1000)).status_code == 201


async def test_stalled_uploads_keep_no_other_tenant_out(client: httpx.AsyncClient, state: State) -> None:
    state.uploads = UploadSlots(2)
    keys = state.registry.keys
    state.registry.tenants.create("acme", actor="system")
    token = keys.create("theirs", ["adapters"], actor="system", tenant="acme").token
    state.registry.snapshots.refresh()
    theirs: Headers = {"authorization": f"Bearer {token}"}
    known = b"0" * 5000
    assert (await put(client, known, stops=False)).status_code == 201
    stalled = list[asyncio.Task[httpx.Response]]()
    async with asyncio.timeout(60):
        for number in (1, 2):
            stalled.append(put(client, bytes([number]) * 5000, stops=True))
            while len(list(state.registry.store.incoming.iterdir())) < number:
                await asyncio.sleep(0.01)
        third = await put(client, b"3" * 5000, stops=False)
        assert (third.status_code, third.headers["retry-after"]) == (503, "5")
        wrong = await client.put(PATH, content=b"5", headers={**theirs, "x-content-sha256": "no digest"})
        assert wrong.status_code == 400
        assert (await put(client, known, stops=False)).json()["already_here"]
        assert state.uploads.taken == 2 and not any(task.done() for task in stalled), "these need no slot"
        assert (await put(client, b"4" * 5000, stops=False, **theirs)).status_code == 201
        await asyncio.wait(stalled, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in stalled] == [False, True]
    gone = stalled[1].result()
    assert (gone.status_code, gone.json()["received"], gone.headers["retry-after"]) == (503, 1000, "5")
    assert "made room for another tenant" in gone.text
    assert state.uploads.taken == 1
    stalled[0].cancel()


async def test_a_stop_ends_uploads_in_words(client: httpx.AsyncClient, state: State) -> None:
    """After the time for draining, with an answer that clients go on from, as from a proxy's."""
    slow = put(client, b"7" * 5000, stops=True)
    async with asyncio.timeout(60):
        while not list(state.registry.store.incoming.iterdir()):
            await asyncio.sleep(0.01)
        state.stopping.set()
        answer = await slow
    assert (answer.status_code, answer.json()["received"], answer.headers["retry-after"]) == (503, 1000, "5")
    assert "The server stopped before this one was complete. 1,000 bytes are stored" in answer.text
