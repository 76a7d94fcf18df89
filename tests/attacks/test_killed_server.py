"""kill -9 of the API process at random moments of upload, activation and removal: whatever it has answered holds.

What it was asked and had not answered yet is done as a whole or not at all.
"""

import copy
import hashlib
import os
import random
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.access import users
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.database import tables
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.registry.files.sweep import SweepReport, sweep
from loraplex.registry.registry import Registry
from loraplex.web.settings.settings import Settings
from loraplex.web.state import open_state
from tests.campaign import Campaign
from tests.checkpoints import make_adapter, make_checkpoint
from tests.fork_server import fork_server
from tests.integration.live_server import NO_TLS
from tests.web.fake_engine import FakeEngine

from . import killed_server

KILLS, PARTS = 200, 5
"""A run takes one of so many parts of the kills."""
MOST_ANSWERS, LONGEST_WAIT = 6, 0.03
"""It is killed up to so many seconds after so many answers: while it works, however fast the machine is."""
NAMES = ("billing", "sql", "support")
KEY = "lp-killed-server-test-key"


@dataclass
class Known:
    """What a name was last seen or told to be. `versions`: number -> SHA-256 of its weights."""

    versions: dict[int, str] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)
    enabled: bool = True


class Client:
    """One who asks, waits for the answer, and remembers what it said. `pending`: a name and what it may be by now."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._config = (folder / CONFIG_FILE).read_bytes()
        self._weights = (folder / WEIGHTS_FILE).read_bytes()
        self._chance = random.Random(seed)
        self._made = 0
        self.known = {name: Known() for name in NAMES}
        self.uploaded: set[str] = set()
        """SHA-256 of files that the server has said to have."""
        self.generation = 0
        self.pending: tuple[str, str | None, Known] | None = None
        """The name that is being changed, the SHA-256 of a version that it may get, and what else it may become."""
        self.answers = self.killed_after = 0
        self.kill = threading.Timer(0, lambda: None)
        """Begins to run with the answer `killed_after`."""

    def work(self, http: httpx.Client) -> None:
        """Until the connection breaks."""
        while True:
            name = self._chance.choice(NAMES)
            known = self.known[name]
            actions = (
                [self._upload] if not known.versions else [self._upload, self._activate, self._switch, self._remove]
            )
            self._chance.choice(actions)(http, name, known)
            self.generation = int(self._ask(http, "GET", "").json()["generation"])

    def _upload(self, http: httpx.Client, name: str, known: Known) -> None:
        self._made += 1
        files = {CONFIG_FILE: self._config, WEIGHTS_FILE: self._weights[:-4] + struct.pack("<f", self._made / 1000)}
        digests = {}
        for file, data in files.items():
            digests[file] = hashlib.sha256(data).hexdigest()
            headers = {"x-content-sha256": digests[file]}
            self._ask(http, "PUT", f"/{name}/files/{file}", content=data, headers=headers)
            self.uploaded.add(digests[file])
        body = {"config_sha256": digests[CONFIG_FILE], "weights_sha256": digests[WEIGHTS_FILE]}
        self.pending = (name, digests[WEIGHTS_FILE], known)
        answer = self._ask(http, "POST", f"/{name}/versions", json=body).json()
        self._settle(name, with_version(known, answer["version"]["number"], digests[WEIGHTS_FILE]))

    def _activate(self, http: httpx.Client, name: str, known: Known) -> None:
        number, after = self._chance.choice(list(known.versions)), copy.deepcopy(known)
        after.aliases["live"] = number
        self.pending = (name, None, after)
        self._ask(http, "PUT", f"/{name}/aliases/live", json={"version": number})
        self._settle(name, after)

    def _switch(self, http: httpx.Client, name: str, known: Known) -> None:
        after = copy.deepcopy(known)
        after.enabled = not known.enabled
        self.pending = (name, None, after)
        self._ask(http, "PATCH", f"/{name}", json={"enabled": after.enabled})
        self._settle(name, after)

    def _remove(self, http: httpx.Client, name: str, known: Known) -> None:
        """One version, and with the last one the adapter."""
        number, after = self._chance.choice(list(known.versions)), copy.deepcopy(known)
        del after.versions[number]
        after.aliases = {alias: version for alias, version in after.aliases.items() if version != number}
        self.pending = (name, None, after if after.versions else Known())
        self._ask(http, "DELETE", f"/{name}@{number}")
        self._settle(name, after if after.versions else Known())

    def _settle(self, name: str, after: Known) -> None:
        self.known[name], self.pending = after, None

    def _ask(self, http: httpx.Client, method: str, path: str, **sent: object) -> httpx.Response:
        response = http.request(method, f"/api/v1/adapters{path}", **sent)  # type: ignore[arg-type]
        assert response.is_success, response.text
        self.answers += 1
        if self.answers == self.killed_after:
            self.kill.start()
        return response


def with_version(known: Known, number: int, sha256: str) -> Known:
    after = copy.deepcopy(known)
    after.versions[number] = sha256
    return after


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("killed") / "model")


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a disk: a killed process loses nothing that is not on one, and waits for none."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture
def settings(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(users, "Argon2Hasher", killed_server.quick_hasher)
    monkeypatch.setenv(killed_server.WARM_UP, str(model))
    return killed_server.settings_of(folder / "data", model, KEY)


@pytest.fixture
def processes() -> Iterator[ForkServerContext]:
    with fork_server("pytest", "tests.attacks.killed_server") as context:
        yield context


def test_whatever_was_answered_holds(
    processes: ForkServerContext, settings: Settings, model: Path, tmp_path: Path, campaign: Campaign
) -> None:
    client = Client(make_adapter(tmp_path / "adapter", model, rank=4, kinds=("q_proj",)), campaign.seed)
    chance, key = random.Random(f"{campaign.seed} of the moments"), make_key(settings, model)
    kills = len(campaign.part(KILLS, PARTS))
    registry = Registry.open(settings.database, settings.data_dir / "artifacts", free_floor=0)
    interrupted = 0
    for _ in range(kills):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            process = processes.Process(target=killed_server.serve, args=(listener, settings, model))
            process.start()
        client.killed_after = client.answers + chance.randint(1, MOST_ANSWERS)
        client.kill = threading.Timer(chance.uniform(0, LONGEST_WAIT), process.kill)
        live_until_killed(client, process, port, key)
        interrupted += client.pending is not None
        check(registry, client)
    assert client.answers > 2 * kills
    assert interrupted > campaign.enough(KILLS // 10, PARTS)
    check_files(registry, client)
    report = sweep(registry.database, registry.store, timedelta(0))
    assert (report.broken, report.healed) == ((), ())
    check_nothing_is_left_over(registry)
    check(registry, client)


def make_key(settings: Settings, model: Path) -> str:
    """Of an administrator; the data folder is made with it."""
    state = open_state(settings, model, FakeEngine(Tokenizer(model)))
    token = state.registry.keys.create("test", ["admin"], actor="system").token
    state.registry.close()
    return token


def live_until_killed(client: Client, process: BaseProcess, port: int, key: str) -> None:
    headers = {"authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{port}"
    http = httpx.Client(base_url=url, headers=headers, timeout=600, trust_env=False, verify=NO_TLS)
    with http, pytest.raises(httpx.TransportError):
        client.work(http)
    client.kill.join()
    process.join()
    assert process.exitcode == -9


def check(registry: Registry, client: Client) -> None:
    """Each name is what was last answered; the one that was being changed may be either. Nothing lacks its bytes."""
    found = {adapter.name: adapter for adapter in registry.adapters.list()}
    seen = {name: seen_as(registry, found.get(name)) for name in NAMES}
    if client.pending is not None:
        name, sha256, after = client.pending
        newest = max(seen[name].versions, default=0)
        added = sha256 is not None and seen[name].versions.get(newest) == sha256
        wanted = with_version(after, newest, sha256) if added and sha256 else after
        assert seen[name] in (client.known[name], wanted)
        client.known[name], client.pending = seen[name], None
    assert seen == client.known
    for adapter in found.values():
        assert set(adapter.aliases.values()) <= {version.number for version in adapter.versions}
    check_rows(registry)
    registry.snapshots.refresh()
    assert registry.snapshots.current.revision >= client.generation


def seen_as(registry: Registry, adapter: Adapter | None) -> Known:
    if adapter is None:
        return Known()
    folders = {version.number: registry.store.folder(version.digest) for version in adapter.versions}
    weights = {number: hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()) for number, folder in folders.items()}
    digests = {number: digest.hexdigest() for number, digest in weights.items()}
    return Known(digests, dict(adapter.aliases), adapter.enabled)


def check_rows(registry: Registry) -> None:
    """No version that is not removed without its bytes, and none that is marked as such."""
    with registry.database.read() as session:
        query = select(tables.Artifact).join(tables.AdapterVersion).where(tables.AdapterVersion.removed_at.is_(None))
        for artifact in session.scalars(query):
            assert artifact.broken is None
            assert registry.store.problem(artifact.digest, artifact.config_size, artifact.weights_size) is None


def check_files(registry: Registry, client: Client) -> None:
    """Every file that was acknowledged is here for its tenant, byte for byte."""
    assert client.uploaded
    for sha256 in client.uploaded:
        assert registry.uploads.find(sha256, "default") is not None
        assert hashlib.sha256(registry.store.blob_path(sha256).read_bytes()).hexdigest() == sha256


def check_nothing_is_left_over(registry: Registry) -> None:
    assert sweep(registry.database, registry.store, timedelta(0)) == SweepReport(0, 0, (), ())
    assert list(registry.store.incoming.iterdir()) == []
    versions = [version for adapter in registry.adapters.list() for version in adapter.versions]
    assert {path.name for path in registry.store.adapters.iterdir()} == {version.digest for version in versions}
