"""An engine process that gets no more memory, at any moment: every request ends, and the engine serves again.

MEMORY_TRIES=24 tries as many limits as an attack did.
"""

import asyncio
import os
import random
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from loraplex.engine.config import EngineConfig
from loraplex.engine.ipc.client import AdapterError, EngineClient
from loraplex.engine.model.config import base_signature
from loraplex.engine.protocol import AdapterRef, AdapterSpec, GenerateRequest
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.structured_outputs import StructuredOutputs
from loraplex.lora.inspection.inspection import inspect_adapter
from tests.checkpoints import make_adapter, make_checkpoint
from tests.engine.ipc.test_client import collect, outcome, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a running process")
TRIES: Final = int(os.environ.get("MEMORY_TRIES", "4"))
STACK: Final = 8 << 20
"""Of a new thread: between this and what it needs besides, it can be made and not start."""
ROOM: Final = (0, 64 << 10, 1 << 20, STACK - 4096, STACK + 4096, STACK + (64 << 10), 2 * STACK, 3 * STACK + 4096)
"""Bytes that may still be taken."""
END_SECONDS: Final = 120
ADAPTERS: Final = 6


def spec_of(folder: Path, model: Path) -> AdapterSpec:
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    manifest = inspect_adapter(config.read_bytes(), weights, base_signature(model)).manifest
    assert manifest is not None
    return AdapterSpec(digest=manifest.digest, path=str(folder))


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[EngineClient]:
    """Whose adapters are registered and on disk."""
    model = make_checkpoint(tmp_path / "model", "llama", max_position_embeddings=4096)
    client = EngineClient(EngineConfig(model=str(model), num_kv_blocks=2100, adapter_memory=16 << 20, num_threads=2))
    await client.start()
    for seed in range(ADAPTERS):
        folder = make_adapter(tmp_path / f"adapter{seed}", model, rank=4 + 4 * (seed % 3), seed=seed)
        await client.register_adapter(spec_of(folder, model))
    yield client
    await client.stop()


def limit_memory(pid: int, more: int) -> None:
    """From now on the process may take so many bytes more."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    writable = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    resource.prlimit(pid, resource.RLIMIT_DATA, (writable + more, resource.RLIM_INFINITY))


def requests(turn: int, source: random.Random, digests: list[str]) -> list[GenerateRequest]:
    """Short and long prompts, several choices, log-probabilities, adapters that have to be loaded, a grammar."""

    def request(name: str, length: int, digest: str | None = None, **settings: object) -> GenerateRequest:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=40, **settings)  # type: ignore[arg-type]
        prompt = [source.randrange(3, 60) for _ in range(length)]
        refs = [] if digest is None else [AdapterRef(digest)]
        return GenerateRequest(request_id=f"{turn}-{name}", prompt_token_ids=prompt, params=params, adapters=refs)

    asked = [request(f"long{n}", source.randrange(500, 1500), prompt_logprobs=n) for n in range(3)]
    asked += [request(f"tuned{n}", 9, digest, n=3, logprobs=3) for n, digest in enumerate(digests)]
    return [*asked, request("formed", 5, structured_outputs=StructuredOutputs(regex="[ab]+"))]


async def test_every_request_ends_and_the_engine_serves_again(client: EngineClient) -> None:
    source, digests = random.Random(37), list(client._adapters)
    fine = GenerateRequest(
        request_id="fine", prompt_token_ids=[5, 17], params=SamplingParams(temperature=0, max_tokens=4)
    )
    expected = await collect(client, fine)
    for turn in range(TRIES):
        assert client.pid is not None
        before = [asyncio.create_task(outcome(collect(client, one))) for one in requests(turn, source, digests)[:3]]
        await asyncio.sleep(source.uniform(0.0, 0.3))
        room = ROOM[turn % len(ROOM)] + turn // len(ROOM) * 8192
        limit_memory(client.pid, room)
        asked = requests(turn + TRIES, source, digests)
        after = [asyncio.create_task(outcome(collect(client, one))) for one in asked]
        _, hanging = await asyncio.wait([*before, *after], timeout=END_SECONDS)
        assert not hanging, f"{len(hanging)} requests hang with {room} bytes of room"
        await until(client.ready)
        assert await collect(client, fine) == expected
        await renew(client)


async def renew(client: EngineClient) -> None:
    """Memory is there again, and all adapters are on disk."""
    assert client.pid is not None
    resource.prlimit(client.pid, resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for digest in client._adapters:
        with suppress(AdapterError):
            await client.evict_adapter(digest)
