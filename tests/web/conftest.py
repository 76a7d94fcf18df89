"""A server without a model: a real database, tokenizer and app around a fake engine."""

import asyncio
import functools
import logging
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from pwdlib.hashers.argon2 import Argon2Hasher

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.access import users
from loraplex.web.app import create_app
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state
from tests.checkpoints import make_adapter, make_checkpoint
from tests.inspected_here import inspect_here
from tests.statements_once import write_statements_once

from .fake_certify import FakeCertify
from .fake_engine import FakeEngine
from .routes_once import read_routes_once

ADMIN_PASSWORD = "correct horse battery"
KEY = "lp-test-inference-key"


@pytest.fixture(scope="session", autouse=True)
def quick_passwords() -> Iterator[None]:
    """Argon2 at its cheapest: its price is not what these tests are about."""
    with pytest.MonkeyPatch.context() as patch:
        quick = functools.partial(Argon2Hasher, time_cost=1, memory_cost=8, parallelism=1)
        patch.setattr(users, "Argon2Hasher", quick)
        yield


@pytest.fixture(scope="session", autouse=True)
def routes_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        read_routes_once(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def statements_written_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        write_statements_once(patch)
        yield


@pytest.fixture(scope="package", autouse=True)
def inspected_here() -> Iterator[None]:
    """Of these tests alone: tests/registry looks at the child."""
    with pytest.MonkeyPatch.context() as patch:
        inspect_here(patch)
        yield


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A word of the command line sends logs to the standard error of its own test."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def adapter_folders(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    return [
        make_adapter(root / str(seed), checkpoint, rank=4, seed=seed, kinds=("q_proj", "v_proj")) for seed in (1, 2)
    ]


def make_settings(data_dir: Path, checkpoint: Path) -> Settings:
    return Settings(
        data_dir=data_dir,
        model=str(checkpoint),
        served_name="tiny",
        admin_password=ADMIN_PASSWORD,
        api_key=KEY,
        min_free_bytes=0,
        drain_seconds=0.5,
        ping_seconds=0.2,
    )


@pytest.fixture(scope="session")
def first_data(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder after the first start."""
    folder = tmp_path_factory.mktemp("first") / "data"
    open_state(make_settings(folder, checkpoint), checkpoint, FakeEngine(Tokenizer(checkpoint))).registry.close()
    return folder


@pytest.fixture
def settings(first_data: Path, checkpoint: Path, tmp_path: Path) -> Settings:
    return make_settings(Path(shutil.copytree(first_data, tmp_path / "data")), checkpoint)


@pytest.fixture
def certify() -> FakeCertify:
    return FakeCertify()


@pytest.fixture
def state(settings: Settings, checkpoint: Path, certify: FakeCertify) -> State:
    return open_state(settings, checkpoint, FakeEngine(Tokenizer(checkpoint)), certify)


@pytest.fixture
def engine(state: State) -> FakeEngine:
    assert isinstance(state.engine, FakeEngine)
    return state.engine


@pytest_asyncio.fixture
async def client(state: State) -> AsyncIterator[httpx.AsyncClient]:
    async with served(state) as client:
        yield client


@asynccontextmanager
async def served(state: State) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to the running app in this process with the inference key."""
    app = create_app(state)
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(state.started.wait(), 240)  # some have a real engine
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            yield client


@pytest.fixture
def admin(state: State) -> dict[str, str]:
    """Headers of an administrator."""
    token = state.registry.keys.create("admin", ["admin"], actor="system").token
    state.registry.snapshots.refresh()
    return {"authorization": f"Bearer {token}"}
