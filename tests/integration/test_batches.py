"""Batches on a real server: kill -9 of the engine and of the API process, and a file of 200 MB in bounded memory."""

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .live_server import BASE, LiveServer
from .talk import COMPLETIONS, greedy, text_of, until, upload

LINES, TOKENS = 90, 40
LARGE = 200_000_000
BLOCK = 1 << 20
MOST_MORE = 48 << 20
"""Bytes of memory that the large file may take."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[LiveServer]:
    server = LiveServer(tmp_path_factory.mktemp("batches"), checkpoint, num_kv_blocks=1200, drain_seconds=1)
    try:
        server.start()
        yield server
    finally:
        server.end()


def body(number: int) -> dict[str, Any]:
    models = (BASE, "one", "eight")
    return greedy(models[number % 3], f"Again and again {number % 9}", TOKENS)


async def begin(http: httpx.AsyncClient) -> str:
    line = {"method": "POST", "url": COMPLETIONS}
    rows = [json.dumps(line | {"custom_id": str(number), "body": body(number)}) for number in range(LINES)]
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", "\n".join(rows).encode())}}
    file = (await http.post("/v1/files", **form)).raise_for_status().json()  # type: ignore[arg-type]
    new = {"input_file_id": file["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
    return str((await http.post("/v1/batches", json=new)).raise_for_status().json()["id"])


async def state_of(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    batch: dict[str, Any] = (await http.get(f"/v1/batches/{id}")).raise_for_status().json()
    return batch


async def test_both_processes_may_die(own: LiveServer, adapter_folders: dict[str, Path]) -> None:
    with own.client() as client:
        for name in ("one", "eight"):
            upload(client, name, adapter_folders[name])
    async with own.async_client() as http:
        wanted = {number: await text_of(http, body(number)) for number in range(9)}
        before = await used(http)
        id = await begin(http)

        async def are_done(count: int) -> bool:
            return int((await state_of(http, id))["request_counts"]["completed"]) >= count

        await until(lambda: are_done(5), 60, "some lines have run")
        os.kill(own.engine_pid(), signal.SIGKILL)
        await until(lambda: are_done(30), 120, "the new engine goes on")
        assert not await are_done(LINES)
    own.kill()

    async def alone() -> bool:
        return not own.processes()

    await until(alone, 60, "the engine has seen that nobody asks it")
    own.start()
    async with own.async_client() as http:

        async def has_ended() -> bool:
            return (await state_of(http, id))["status"] == "completed"

        await until(has_ended, 120, "all lines have run")
        batch = await state_of(http, id)
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        content = (await http.get(f"/v1/files/{batch['output_file_id']}/content")).text
        rows = {int(row["custom_id"]): row["response"]["body"] for row in map(json.loads, content.splitlines())}
        assert len(content.splitlines()) == LINES and rows.keys() == set(range(LINES))
        assert {number: row["choices"][0]["text"] for number, row in rows.items()} == {
            number: wanted[number % 9] for number in range(LINES)
        }
        after = await used(http)
        assert after["requests"] - before["requests"] == LINES
        assert after["completion_tokens"] - before["completion_tokens"] == LINES * TOKENS
        assert (after["errors"], after["unknown"]) == (0, 0)


async def used(http: httpx.AsyncClient) -> dict[str, int]:
    await asyncio.sleep(1.2)  # what has ended is in the database
    totals: dict[str, int] = (await http.get("/api/v1/usage")).raise_for_status().json()["total"]
    return totals


async def test_a_file_of_200_mb_streams(own: LiveServer) -> None:
    block = os.urandom(BLOCK)
    head = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    head += b'--x\r\ncontent-disposition: form-data; name="file"; filename="large.jsonl"\r\n\r\n'
    tail, sent = b"\r\n--x--\r\n", hashlib.sha256()

    async def form() -> AsyncIterator[bytes]:
        yield head
        for start in range(0, LARGE, BLOCK):
            part = block[: LARGE - start]
            sent.update(part)
            yield part
        yield tail

    length = len(head) + LARGE + len(tail)
    headers = {"content-type": "multipart/form-data; boundary=x", "content-length": str(length)}
    async with own.async_client() as http:
        before = peak_bytes(own)
        file = (await http.post("/v1/files", content=form(), headers=headers)).raise_for_status().json()
        assert file["bytes"] == LARGE
        received = hashlib.sha256()
        async with http.stream("GET", f"/v1/files/{file['id']}/content") as answer:
            async for chunk in answer.aiter_bytes():
                received.update(chunk)
        assert received.digest() == sent.digest()
        assert peak_bytes(own) - before < MOST_MORE
        assert (await http.delete(f"/v1/files/{file['id']}")).status_code == 200


def peak_bytes(server: LiveServer) -> int:
    """The most memory that the API process has had."""
    [line] = [line for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
