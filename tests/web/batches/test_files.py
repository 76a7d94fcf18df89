"""/v1/files: a form is read as it comes, files are listed page by page, and what is wrong is refused by field."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError

from loraplex.registry.database import tables
from loraplex.registry.database.tables import utc_now
from loraplex.web.http.errors import ApiError
from loraplex.web.http.multipart import MultipartReader, Part
from loraplex.web.state import State

from ..conftest import KEY, served
from ..test_access import key

LINES = b'{"custom_id": "a"}\n{"custom_id": "b"}\n'


@pytest.fixture
async def openai(client: httpx.AsyncClient) -> AsyncIterator[AsyncOpenAI]:
    yield AsyncOpenAI(base_url="http://test/v1", api_key=KEY, http_client=client, max_retries=0)


async def upload(client: httpx.AsyncClient, content: bytes = LINES, **fields: str) -> httpx.Response:
    data = {"purpose": "batch", **fields}
    return await client.post("/v1/files", data=data, files={"file": ("in.jsonl", content)})


async def test_a_file_comes_and_goes(client: httpx.AsyncClient) -> None:
    made = (await upload(client)).json()
    now = int(utc_now().timestamp())
    assert made == {
        "id": made["id"],
        "object": "file",
        "bytes": len(LINES),
        "created_at": pytest.approx(now, abs=5),
        "expires_at": pytest.approx(now + 30 * 86400, abs=5),
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }
    assert (await client.get(f"/v1/files/{made['id']}")).json() == made
    content = await client.get(f"/v1/files/{made['id']}/content")
    assert content.content == LINES and content.headers["content-type"] == "application/octet-stream"
    gone = await client.delete(f"/v1/files/{made['id']}")
    assert gone.json() == {"id": made["id"], "object": "file", "deleted": True}
    for path in ("", "/content"):
        answer = await client.get(f"/v1/files/{made['id']}{path}")
        assert answer.status_code == 404 and answer.json()["error"]["param"] == "file_id"


async def test_openais_client(openai: AsyncOpenAI) -> None:
    made = await openai.files.create(
        file=("in.jsonl", LINES), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert made.expires_at == made.created_at + 7200
    assert (await openai.files.content(made.id)).content == LINES
    second = await openai.files.create(file=LINES, purpose="batch")
    assert [file.id async for file in openai.files.list(limit=1)] == [second.id, made.id]
    assert [file.id async for file in openai.files.list(limit=1, order="asc")] == [made.id, second.id]
    assert [file.id async for file in openai.files.list(purpose="batch_output")] == []
    assert (await openai.files.delete(made.id)).deleted
    with pytest.raises(NotFoundError):
        await openai.files.retrieve(made.id)


async def test_pages_have_their_ends(client: httpx.AsyncClient) -> None:
    ids = [(await upload(client)).json()["id"] for _ in range(3)][::-1]
    page = (await client.get("/v1/files", params={"limit": 2})).json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[1], True)
    page = (await client.get("/v1/files", params={"limit": 2, "after": ids[1]})).json()
    assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[2:], False)
    page = (await client.get("/v1/files", params={"after": ids[2]})).json()
    assert (page["data"], page["first_id"], page["last_id"]) == ([], None, None)
    for params in ({"limit": 0}, {"limit": 10_001}, {"order": "up"}, {"limit": "x"}):
        answer = await client.get("/v1/files", params=params)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == next(iter(params))
    answer = await client.get("/v1/files", params={"after": "file-none"})
    assert answer.status_code == 404 and answer.json()["error"]["param"] == "after"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": ""}, "purpose"),
        ({"colour": "red"}, "colour"),
        ({"expires_after[seconds]": "7200"}, "expires_after.anchor"),
        ({"expires_after[anchor]": "last_active_at", "expires_after[seconds]": "7200"}, "expires_after.anchor"),
        ({"expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "9" * 40}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "²"}, "expires_after.seconds"),
    ],
)
async def test_a_wrong_field_is_named(
    client: httpx.AsyncClient, state: State, fields: dict[str, str], param: str
) -> None:
    answer = await upload(client, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert nothing_is_left(state)


async def test_a_wrong_form_is_refused(client: httpx.AsyncClient, state: State) -> None:
    form = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    file = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n'
    typed = {"content-type": "multipart/form-data; boundary=x"}
    for body, headers, param in (
        (b"{}", {"content-type": "application/json"}, "content-type"),
        (form + file, typed, None),
        (form + b"--x--", typed, "file"),
        (form + file + file + b"--x--", typed, "file"),
        (form + form + file + b"--x--", typed, "purpose"),
        (form + file.replace(b"{}", b"") + b"--x--", typed, "file"),
        (b"--x\r\ncontent-type: text/plain\r\n\r\nbatch\r\n--x--", typed, None),
        (b"--x\r\n" + b"a" * 9000, typed, None),
        (form.replace(b"batch", b"b" * 2000) + file + b"--x--", typed, "purpose"),
        (form.replace(b"batch", b"\xff") + file + b"--x--", typed, "purpose"),
        (b"", typed, None),
    ):
        answer = await client.post("/v1/files", content=body, headers=headers)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] == param, answer.text
    assert nothing_is_left(state)
    right = await client.post("/v1/files", content=form + file + b"--x--\r\n", headers=typed)
    assert right.status_code == 200


async def test_too_large_a_file_is_refused_and_files_of_a_tenant_have_a_sum(
    state: State, client: httpx.AsyncClient
) -> None:
    settings = state.settings.model_copy(update={"max_batch_file_bytes": 100_000, "max_files_bytes": 150_000})
    state.settings = settings
    for size, code in ((100_001, "body_too_large"), (100_000, None), (60_000, "files_full")):
        answer = await upload(client, b"a" * size)
        assert answer.status_code == (413 if code else 200)
        assert code is None or answer.json()["error"]["code"] == code
    [file] = (await client.get("/v1/files")).json()["data"]
    assert (await client.delete(f"/v1/files/{file['id']}")).status_code == 200
    assert (await upload(client, b"a" * 60_000)).status_code == 200


async def test_an_expired_file_is_gone(client: httpx.AsyncClient, state: State) -> None:
    id = (await upload(client)).json()["id"]
    file = state.registry.files.get(id, "default")
    with state.registry.database.write() as session:
        session.query(tables.File).update({"expires_at": utc_now() - timedelta(seconds=1)})
    assert (await client.get(f"/v1/files/{id}")).status_code == 404
    assert (await client.get("/v1/files")).json()["data"] == []
    path = state.registry.files.path(file)
    os.utime(path)
    state.registry.files.clean_up()
    assert path.exists(), "its row may have been on the way"
    state.registry.files.clean_up(grace=timedelta(0))
    assert not path.exists()


async def test_a_key_of_some_adapters_sees_its_own_files(state: State) -> None:
    token = state.registry.keys.create("one", ["inference"], actor="system", adapters=["sql"]).token
    state.registry.snapshots.refresh()
    async with served(state) as client:
        others = (await upload(client)).json()["id"]
        client.headers.update({"authorization": f"Bearer {token}"})
        assert (await client.get(f"/v1/files/{others}/content")).status_code == 404
        own = (await upload(client)).json()["id"]
        assert [file["id"] for file in (await client.get("/v1/files")).json()["data"]] == [own]
        client.headers.update(key(state, "inference"))
        assert len((await client.get("/v1/files")).json()["data"]) == 2


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_a_form_is_read_alike_however_it_is_cut(size: int) -> None:
    data = b"one\r\n--x\r\ntwo\r\n--bound" + bytes(range(256)) * 8
    body = (
        (
            b'before\r\n--boundary  \r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
            b'--boundary\r\ncontent-type: x\r\ncontent-disposition: form-data; filename="%22b%22.txt"; '
            b"name=file\r\n\r\n"
        )
        + data
        + b"\r\n--boundary--\r\nafter"
    )
    reader = MultipartReader(b"boundary")
    events: list[Any] = []
    for start in range(0, len(body), size):
        events += reader.feed(body[start : start + size])
    heads = [event for event in events if isinstance(event, Part)]
    assert heads == [Part("a", None), Part("file", '"b".txt')] and reader.ended
    place = events.index(heads[1])
    assert b"".join(events[1:place]) == b"1"
    assert b"".join(events[place + 1 :]) == data


def test_headers_of_a_part_have_an_end() -> None:
    reader = MultipartReader(b"x")
    with pytest.raises(ApiError, match="8192 bytes"):
        list(reader.feed(b"--x\r\n" + b"a" * 9000))


def nothing_is_left(state: State) -> bool:
    store = state.registry.store
    return not [*store.incoming.iterdir(), *store.files.iterdir()]


async def test_a_broken_upload_leaves_nothing(state: State, client: httpx.AsyncClient) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"a" * 100_000
        await asyncio.sleep(3600)

    headers = {"content-type": "multipart/form-data; boundary=x", "content-length": "1000000"}
    sending = asyncio.create_task(client.post("/v1/files", content=body(), headers=headers))
    while not [*state.registry.store.incoming.iterdir()]:
        await asyncio.sleep(0.01)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert nothing_is_left(state) and state.uploads.taken == 0
