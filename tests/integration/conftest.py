"""One server for the whole folder, with adapters of several ranks, beside transformers + peft as the judge."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest
import pytest_asyncio
import torch

from loraplex.engine.text.tokenizer import Tokenizer
from tests.checkpoints import make_adapter, make_checkpoint

from .live_server import LiveServer
from .reference import Reference
from .talk import upload

RANKS = {"one": 1, "eight": 8, "twenty": 20}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Room for answers that last long enough to be disturbed."""
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=4096)


@pytest.fixture(scope="session")
def adapter_folders(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(root / name, checkpoint, rank=rank, seed=seed)
        for seed, (name, rank) in enumerate(RANKS.items())
    }


@pytest.fixture(scope="session")
def reference(checkpoint: Path, adapter_folders: dict[str, Path]) -> Reference:
    torch.set_num_threads(1)
    return Reference(checkpoint, adapter_folders)


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer(checkpoint)


@pytest.fixture(scope="session")
def running(
    checkpoint: Path, adapter_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    server = LiveServer(tmp_path_factory.mktemp("server"), checkpoint, num_kv_blocks=1200)
    try:
        server.start()
        with server.client() as http:
            for name, folder in adapter_folders.items():
                upload(http, name, folder)
        yield server
    finally:
        server.end()


@pytest.fixture
def server(running: LiveServer) -> Iterator[LiveServer]:
    """The server, which is alive before and after."""
    running.check_alive()
    yield running
    running.check_alive()


@pytest_asyncio.fixture
async def http(server: LiveServer) -> AsyncIterator[httpx.AsyncClient]:
    async with server.async_client() as client:
        yield client


@pytest_asyncio.fixture
async def sdk(server: LiveServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.admin_key, max_retries=0) as client:
        yield client
