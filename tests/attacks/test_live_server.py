"""The worst of them sent to a server at work: it refuses each in words, and its streams do not notice."""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import pytest_asyncio

from tests.checkpoints import make_checkpoint
from tests.integration.live_server import BASE, LiveServer, environment
from tests.integration.talk import COMPLETIONS, engine_status, greedy, streamed_text, text_of, until, upload
from tests.lora.adapters import encode, make_adapter, make_config, make_tensors, write_adapter

from .hostile_adapters import Attack, attacks
from .hostile_files import pickles
from .judge import peak_memory

SHAPES = {
    "hidden_size": 16, "intermediate_size": 40, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12,
    "max_position_embeddings": 4096,
}  # fmt: skip
"""Those of tests.lora.adapters.BASE, for which the hostile adapters are made."""
WORST = (
    "file-pickle-0", "file-zip-bomb", "file-million-empty-tensors", "file-20000-wrong-entries", "header-600-deep",
    "header-name-parent-folder", "tensors-all-nan", "tensors-zero-b", "config-pickle-2",
    "settings-target_modules-pattern-explodes", "settings-auto-mapping-0", "settings-type-'EVIL'",
)  # fmt: skip
ALIVE, MEMORY = "alive", 256 << 20
PROMPT = "Again and again"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    root = tmp_path_factory.mktemp("live")
    running = LiveServer(root, make_checkpoint(root / "model", **SHAPES), num_kv_blocks=600, adapter_memory="64KiB")
    try:
        running.start()
        with running.client() as http:
            upload(http, ALIVE, make_adapter(root / ALIVE, 4)[1])
        yield running
    finally:
        running.end()


@pytest_asyncio.fixture
async def http(server: LiveServer) -> AsyncIterator[httpx.AsyncClient]:
    async with server.async_client() as client:
        yield client


async def send(http: httpx.AsyncClient, name: str, config: bytes, weights: bytes) -> httpx.Response:
    """Of the version; the files themselves are taken for what they are."""
    digests = {}
    for field, file, data in (
        ("config_sha256", "adapter_config.json", config),
        ("weights_sha256", "adapter_model.safetensors", weights),
    ):
        response = await put(http, f"/api/v1/adapters/{name}/files/{file}", data)
        assert response.status_code == 201, response.text
        digests[field] = response.json()["sha256"]
    return await http.post(f"/api/v1/adapters/{name}/versions", json=digests)


async def put(http: httpx.AsyncClient, path: str, data: bytes) -> httpx.Response:
    headers = {"x-content-sha256": hashlib.sha256(data).hexdigest()}
    return await http.put(path, content=data, headers=headers)


async def answers(http: httpx.AsyncClient) -> list[str]:
    return [await text_of(http, greedy(model, PROMPT, 16)) for model in (BASE, ALIVE)]


@asynccontextmanager
async def undisturbed(server: LiveServer, http: httpx.AsyncClient) -> AsyncIterator[None]:
    """Meanwhile one stream after another says what it said before, and afterwards the engine is the same and whole."""
    before, engine = await answers(http), server.engine_pid()
    body = greedy(ALIVE, PROMPT, 400)
    expected, ended = await streamed_text(http, body), asyncio.Event()

    async def listen() -> int:
        count = 0
        while not ended.is_set():
            assert await streamed_text(http, body) == expected
            count += 1
        return count

    async with asyncio.TaskGroup() as tasks:
        streams = tasks.create_task(listen())
        yield
        ended.set()
    assert streams.result() > 0
    assert await answers(http) == before
    status = await engine_status(http)
    assert (server.engine_pid(), status["restarts"], status["status"]["integrity_errors"]) == (engine, 0, 0)


def stored(server: LiveServer) -> list[str]:
    """What the data folder holds, but for the received files themselves."""
    paths = (path.relative_to(server.data_dir) for path in server.data_dir.rglob("*"))
    return sorted(str(path) for path in paths if path.parts[:2] != ("artifacts", "blobs") and path.suffix != ".log")


@pytest.fixture
def api_process(server: LiveServer) -> int:
    stat = Path(f"/proc/{server.engine_pid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


async def test_the_worst_are_refused_while_streams_run(
    server: LiveServer, http: httpx.AsyncClient, api_process: int
) -> None:
    files, memory = stored(server), peak_memory(api_process)
    worst = [attack for attack in attacks() if attack.name in WORST]
    assert len(worst) == len(WORST)
    turns = asyncio.Semaphore(4)

    async def attempt(attack: Attack) -> httpx.Response:
        async with turns:
            return await send(http, "evil", attack.config, attack.weights)

    async with undisturbed(server, http):
        responses = await asyncio.gather(*map(attempt, worst))
    for attack, response in zip(worst, responses, strict=True):
        assert response.status_code == 400, (attack.name, response.text)
        findings = response.json()["report"]["findings"]
        (message,) = [found["message"] for found in findings if found["level"] == "fail"]
        assert attack.reason in message, (attack.name, message)
    assert peak_memory(api_process) - memory < MEMORY
    assert [adapter["name"] for adapter in (await http.get("/api/v1/adapters")).json()["data"]] == [ALIVE]
    assert stored(server) == files
    assert "Traceback" not in server.log()


async def test_no_file_has_another_name(server: LiveServer, http: httpx.AsyncClient) -> None:
    files = stored(server)
    names = (
        "adapter_model.bin", "pytorch_model.bin", "adapter_model.pt", "adapter_model.pkl", "adapter_config.yaml",
        "adapter_model.safetensors.bin", "..%2f..%2fowned", "%00", "adapter_model.bin%00.safetensors",
    )  # fmt: skip
    for name, (_, data) in zip(names, pickles(), strict=False):
        response = await put(http, f"/api/v1/adapters/evil/files/{name}", data)
        assert response.status_code == 404, (name, response.text)
    assert (await put(http, "/api/v1/adapters/evil/files/adapter_config.json", bytes(2 << 20))).status_code == 413
    empty = await put(http, "/api/v1/adapters/evil/files/adapter_model.safetensors", b"")
    assert empty.status_code == 400 and "is empty" in empty.text
    assert stored(server) == files


REGISTER_UNSEEN = """
import sys
from pathlib import Path
from loraplex.web.cli.opened import opened_registry
from loraplex.web.management.registration import add_from_folder
from loraplex.web.settings.settings import Settings

with opened_registry(Settings()) as (registry, base):
    add_from_folder(registry, base, sys.argv[1], Path(sys.argv[2]), "test")
"""


def register_unseen(server: LiveServer, name: str, folder: Path) -> None:
    """On the server's database, where no engine looks at it."""
    command = [sys.executable, "-c", REGISTER_UNSEEN, name, str(folder)]
    subprocess.run(command, check=True, timeout=120, env=environment(server.settings))


async def test_the_largest_weights_there_may_be_poison_nobody_else(
    server: LiveServer, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """They overflow the sums they meet, so that an upload is refused. Registered where no engine saw that, whoever uses
    them gets an error in words."""
    kinds = ("o_proj", "gate_proj", "up_proj", "down_proj")
    tensors = {name: np.full_like(tensor, 65504) for name, tensor in make_tensors(4, kinds).items()}
    config = json.dumps(make_config(target_modules=list(kinds), lora_alpha=65536)).encode()
    files = stored(server)
    async with undisturbed(server, http):
        refused = await send(http, "largest", config, encode(tensors))
    assert refused.status_code == 400 and "with it, log-probabilities are not finite" in refused.text
    assert stored(server) == files
    folder = write_adapter(tmp_path / "largest", config, encode(tensors))
    await asyncio.to_thread(register_unseen, server, "largest", folder)

    async def is_served() -> bool:
        return (await http.get("/v1/models/largest")).status_code == 200

    await until(is_served, 120, "the adapter is served")
    async with undisturbed(server, http):
        bodies = [greedy("largest", prompt, 40) for prompt in (PROMPT, "b", "c d e")]
        responses = await asyncio.gather(*(http.post(COMPLETIONS, json=body) for body in bodies))
    for response in responses:
        assert response.status_code == 500 and "the weights of its adapter" in response.text


async def test_a_damaged_adapter_is_told_of_and_the_others_serve(
    server: LiveServer, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    _, folder = make_adapter(tmp_path, 4, seed=5)
    files = [(folder / name).read_bytes() for name in ("adapter_config.json", "adapter_model.safetensors")]
    digest = (await send(http, "damaged", *files)).json()["version"]["digest"]
    weights = next(server.data_dir.rglob(f"{digest}/adapter_model.safetensors"))
    weights.chmod(0o600)

    def says(words: str) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            return words in (await http.post(COMPLETIONS, json=greedy("damaged", PROMPT, 8))).text

        return check

    async with undisturbed(server, http):
        for damage, words in ((files[1][:-1] + b"?", "has changed on disk"), (files[1][:-100], "it is cut off")):
            weights.write_bytes(damage)
            await until(says(words), 120, words)
        weights.write_bytes(files[1])

        await until(says('"finish_reason":"length"'), 120, "the adapter is loaded again")
