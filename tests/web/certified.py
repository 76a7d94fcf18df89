"""What tests of certificates share: a certifier that does not wait, and a folder that is opened again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.web.management.registration import add_from_folder
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state

from .fake_certify import FakeCertify
from .fake_engine import FakeEngine

Headers = dict[str, str]
SQL = "/api/v1/adapters/sql"
BASE = "/api/v1/engine"
PROMPTS = ["Count the customers in London.", "Zürich 😀"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for polls."""
    for name in ("POLL_SECONDS", "BEAT_SECONDS"):
        monkeypatch.setattr(f"loraplex.web.certificates.certifier.{name}", 0.02)


@pytest.fixture
def reopened(settings: Settings, checkpoint: Path, certify: FakeCertify) -> Callable[..., State]:
    """The same data folder in a new process, with other settings."""

    def reopen(**changes: Any) -> State:
        changed = Settings(**settings.model_dump(exclude_unset=True) | changes)
        return open_state(changed, checkpoint, FakeEngine(Tokenizer(checkpoint)), certify)

    return reopen


def key(state: State, tenant: str = "default") -> Headers:
    token = state.registry.keys.create("admin", ["admin"], actor="system", tenant=tenant).token
    state.registry.snapshots.refresh()
    return {"authorization": f"Bearer {token}"}


async def until(client: httpx.AsyncClient, of: str, state: str) -> dict[str, Any]:
    """How it stands once it is in this state."""
    async with asyncio.timeout(60):
        while True:
            standing: dict[str, Any] = (await client.get(f"{of}/certificate")).json()
            if standing["state"] == state:
                return standing
            await asyncio.sleep(0.01)


def put_on_disk(state: State, folders: list[Path], certify: bool = False) -> None:
    for folder in folders:
        coverage_of = state.served_path.digest if certify else None
        add_from_folder(state.registry, state.base, "sql", folder, "cli", certify=coverage_of)
    state.registry.snapshots.refresh()
