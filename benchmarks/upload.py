"""How fast an adapter's file arrives beside a PUT that does nothing but keep the bytes: python -m benchmarks.upload

One client, 127.0.0.1, one file of --megabytes; each server in a process of its own, in turn. "raw" is uvicorn with an
application that writes the body to a file as it comes. The others do what an upload promises besides, one thing after
the other: "durable" asks the disk for the bytes at the end (fsync), "checked" also computes the SHA-256.

Every PUT makes a new file, and all stay until the end: the memory of one that goes is taken up by the next that comes,
and a virtual machine has to get other memory from its host first, which can take longer than everything else.
"""

import argparse
import hashlib
import http.client
import itertools
import multiprocessing
import os
import secrets
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvicorn

from loraplex.registry.files.artifacts import WEIGHTS_FILE
from loraplex.web.server import Server
from loraplex.web.settings.settings import DEMO_MODEL, Settings
from loraplex.web.state import open_state

from .report import Row, show

GOAL: Final = 0.8
PATH: Final = f"/api/v1/adapters/upload/files/{WEIGHTS_FILE}"
BLOCK: Final = 1 << 20


class Raw:
    """An ASGI application: the body to a file."""

    def __init__(self, folder: Path, durable: bool, checked: bool) -> None:
        self._folder, self._durable, self._checked = folder, durable, checked
        self._numbers = itertools.count()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        digest, more = hashlib.sha256(), True
        with (self._folder / str(next(self._numbers))).open("wb", buffering=BLOCK) as file:
            while more:
                message = await receive()
                body, more = message.get("body", b""), message.get("more_body", False)
                file.write(body)
                if self._checked:
                    digest.update(body)
            file.flush()
            if self._durable:
                os.fsync(file.fileno())
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def serve_raw(listener: socket.socket, folder: Path, durable: bool, checked: bool) -> None:
    folder.mkdir()
    config = uvicorn.Config(Raw(folder, durable, checked), log_level="warning", lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


def serve_ours(listener: socket.socket, folder: Path, key: str) -> None:
    """Without an engine: it has no part in an upload."""
    from loraplex.engine.text.tokenizer import Tokenizer
    from tests.web.fake_engine import FakeEngine

    settings = Settings(data_dir=folder, min_free_bytes=0, max_adapter_bytes=1 << 32, log_level="warning")
    state = open_state(settings, DEMO_MODEL, FakeEngine(Tokenizer(DEMO_MODEL)))
    state.registry.keys.create("benchmark", ["admin"], actor="system", token=key)
    state.registry.snapshots.refresh()
    Server(state).run(sockets=[listener])


def seconds_of(port: int, key: str, data: bytearray) -> float:
    """Of one PUT; the client has computed the SHA-256 before."""
    connection = http.client.HTTPConnection("127.0.0.1", port, blocksize=BLOCK, timeout=300)
    headers = {"authorization": f"Bearer {key}", "x-content-sha256": hashlib.sha256(data).hexdigest()}
    started = time.perf_counter()
    connection.request("PUT", PATH, data, headers)
    answer = connection.getresponse()
    words = answer.read()
    taken = time.perf_counter() - started
    connection.close()
    if answer.status != 201:
        raise RuntimeError(f"{answer.status} {words.decode()[:300]}")
    return taken


def start(serve: Callable[..., None], *arguments: object) -> tuple[multiprocessing.Process, int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(listener, *arguments), daemon=True)
        process.start()
        return process, int(listener.getsockname()[1])  # type: ignore[return-value]


def measure(folder: Path, size: int, rounds: int) -> dict[str, list[float]]:
    """Seconds by server."""
    key, data = f"lp-bench-{secrets.token_hex(24)}", bytearray(secrets.token_bytes(size))
    started = {
        "raw": start(serve_raw, folder / "raw", False, False),
        "durable": start(serve_raw, folder / "durable", True, False),
        "checked": start(serve_raw, folder / "checked", True, True),
        "ours": start(serve_ours, folder / "ours", key),
    }
    taken: dict[str, list[float]] = {name: [] for name in started}
    try:
        for number in range(rounds + 1):
            for name, (_, port) in started.items():
                data[:8] = number.to_bytes(8, "little")  # bytes that are there need not come again
                seconds = seconds_of(port, key, data)
                os.sync()
                if number:
                    taken[name].append(seconds)
    finally:
        for process, _ in started.values():
            process.terminate()
            process.join()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        taken = measure(Path(folder), arguments.megabytes * 1_000_000, arguments.rounds)
    speeds = {name: arguments.megabytes / statistics.median(seconds) for name, seconds in taken.items()}
    rows = [Row(f"{name}: {arguments.megabytes} MB", speed, "MB/s") for name, speed in speeds.items()]
    for name in ("raw", "durable", "checked"):
        ratios = [theirs / ours for theirs, ours in zip(taken[name], taken["ours"], strict=True)]
        rows.append(Row(f"ours / {name}", statistics.median(ratios), "x", GOAL if name == "raw" else None))
    show("upload", rows)


if __name__ == "__main__":
    main()
