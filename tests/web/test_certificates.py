"""Parity certificates over HTTP: measured in the background, shown while they hold, and asked for by promotion."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from loraplex.engine.certificate import Certificate, prompts_digest
from loraplex.engine.tokenizer import Tokenizer
from loraplex.registry.adapter_tokenizer import AdapterTokenizer, AddedToken
from loraplex.registry.certificate_runs import CertificateRuns
from loraplex.registry.certificates import Subject
from loraplex.web.certificates.standing import find_standing
from loraplex.web.registration import add_from_folder
from loraplex.web.settings import Settings
from loraplex.web.state import State, open_state
from tests.registry.helpers import CONFIG, passing_report, put, sha256

from .conftest import served
from .fake_certify import FakeCertify
from .fake_engine import FakeEngine
from .test_adapters_api import add

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
    async with asyncio.timeout(5):
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


async def test_asked_for_measured_and_shown(
    client: httpx.AsyncClient, admin: Headers, state: State, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    digest = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    before = (await client.get(f"{SQL}/certificate")).json()
    assert (before["state"], before["valid"], before["certificate"], before["attempt"]) == ("none", False, None, None)
    certify.held = asyncio.Event()
    asked = await client.post(f"{SQL}/certify")
    assert (asked.status_code, asked.json()["state"]) == (202, "waiting")
    assert asked.json()["attempt"]["requested_by"].startswith("key:")
    await until(client, SQL, "running")
    while (standing := await until(client, SQL, "running"))["attempt"]["progress"] == 0:
        await asyncio.sleep(0.01)
    assert standing["attempt"]["progress"] == 0.42
    certify.held.set()
    standing = await until(client, SQL, "valid")
    assert (standing["valid"], standing["changes"], standing["obstacle"]) == (True, [], None)
    certificate = Certificate.from_json(standing["certificate"])
    assert certificate.both.top1_agreement == 0.985
    assert (certificate.coverage.adapter, certificate.coverage.digest()) == (digest, standing["digest"])
    [job], [timeout] = certify.jobs, certify.timeouts
    assert timeout == 6 * 3600
    assert (job.engine.model, job.adapter_digest, job.prompts) == (str(state.model_folder), digest, None)
    assert job.adapter == str(state.registry.store.folder(digest))
    for reference in ("sql@1", "sql@latest"):
        assert (await client.get(f"/api/v1/adapters/{reference}/certificate")).json() == standing


async def test_the_base_has_one_too(client: httpx.AsyncClient, admin: Headers, certify: FakeCertify) -> None:
    client.headers.update(admin)
    assert (await client.get(f"{BASE}/certificate")).json()["state"] == "none"
    assert (await client.post(f"{BASE}/certify")).status_code == 202
    standing = await until(client, BASE, "valid")
    assert standing["certificate"]["coverage"]["adapter"] is None
    assert (certify.jobs[0].adapter, certify.jobs[0].adapter_digest) == (None, None)


async def test_a_failure_is_told_in_words_and_may_be_tried_again(
    client: httpx.AsyncClient, admin: Headers, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    certify.refusal = "the reference is another architecture"
    await client.post(f"{SQL}/certify")
    standing = await until(client, SQL, "failed")
    assert standing["attempt"]["problem"] == "the reference is another architecture"
    assert (standing["valid"], standing["certificate"]) == (False, None)
    certify.refusal = None
    await client.post(f"{SQL}/certify")
    await until(client, SQL, "valid")


async def test_a_fault_in_the_measurement_does_not_end_the_certifier(
    client: httpx.AsyncClient, admin: Headers, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    certify.fault = RuntimeError("a bug")
    await client.post(f"{SQL}/certify")
    standing = await until(client, SQL, "failed")
    assert standing["attempt"]["problem"] == "the measurement failed: RuntimeError: a bug"
    certify.fault = None
    await client.post(f"{SQL}/certify")
    await until(client, SQL, "valid")


async def test_one_at_a_time_and_each_once(
    client: httpx.AsyncClient, admin: Headers, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    certify.held = asyncio.Event()
    for name, folder in zip(("sql", "json"), adapter_folders, strict=True):
        await add(client, name, folder)
        for _ in range(2):
            await client.post(f"/api/v1/adapters/{name}/certify")
    await until(client, SQL, "running")
    await asyncio.sleep(0.1)
    assert len(certify.jobs) == 1
    assert (await client.get("/api/v1/adapters/json/certificate")).json()["state"] == "waiting"
    certify.held.set()
    await until(client, "/api/v1/adapters/json", "valid")
    assert len(certify.jobs) == 2


async def test_a_tenant_may_ask_for_so_many_at_once(
    reopened: Callable[..., State], certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    state, certify.held = reopened(max_waiting_certificates=1), asyncio.Event()
    async with served(state) as client:
        client.headers.update(key(state))
        await client.post(f"{BASE}/certify")
        await until(client, BASE, "running")
        await add(client, "sql", adapter_folders[0])
        for _ in range(2):
            assert (await client.post(f"{SQL}/certify")).status_code == 202
        await client.put(f"{SQL}/prompts", json={"prompts": PROMPTS})
        refused = await client.post(f"{SQL}/certify")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "certificates_waiting")
        certify.held.set()
        await until(client, SQL, "outdated")
        assert (await client.post(f"{SQL}/certify")).status_code == 202
        await until(client, SQL, "valid")


async def test_what_has_a_valid_certificate_is_measured_again_only_if_asked_to(
    client: httpx.AsyncClient, admin: Headers, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    for of in (SQL, BASE):
        await client.post(f"{of}/certify")
        valid = await until(client, of, "valid")
        again = await client.post(f"{of}/certify")
        assert (again.status_code, again.json()) == (200, valid)
    assert len(certify.jobs) == 2
    certify.agreement = 0.99
    assert (await client.post(f"{SQL}/certify", params={"anew": True})).status_code == 202
    assert (await until(client, SQL, "valid"))["certificate"]["both"]["top1_agreement"] == 0.99


async def test_who_asked_is_told_within_the_tenant_only(
    client: httpx.AsyncClient, admin: Headers, state: State, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    with state.registry.database.write() as session:
        session.execute(text("INSERT INTO tenants (name, created_at) VALUES ('other', CURRENT_TIMESTAMP)"))
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    asked = (await client.post(f"{SQL}/certify")).json()
    assert asked["attempt"]["requested_by"].startswith("key:")
    await until(client, SQL, "valid")
    client.headers.update(key(state, "other"))
    await add(client, "copy", adapter_folders[0])
    seen = (await client.get("/api/v1/adapters/copy/certificate")).json()
    assert (seen["valid"], seen["attempt"]["state"], seen["attempt"]["requested_by"]) == (True, "done", None)


async def test_uploads_are_certified_where_the_operator_wants_it(
    reopened: Callable[..., State], certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    state = reopened(certify_uploads=True)
    async with served(state) as client:
        client.headers.update(key(state))
        await add(client, "sql", adapter_folders[0])
        await until(client, SQL, "valid")
        await until(client, BASE, "valid")
        await add(client, "sql", adapter_folders[0])
    assert [job.adapter_digest is None for job in certify.jobs] == [True, False]
    state = reopened(certify_uploads=True)
    async with served(state) as client:
        client.headers.update(key(state))
        await asyncio.sleep(0.1)
        assert (await until(client, BASE, "valid"))["valid"]
    assert len(certify.jobs) == 2


async def test_uploads_are_not_certified_by_default(
    client: httpx.AsyncClient, admin: Headers, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    await asyncio.sleep(0.1)
    assert certify.jobs == []


async def test_what_runs_at_the_end_runs_again_after_the_next_start(
    reopened: Callable[..., State], certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    first, certify.held = reopened(), asyncio.Event()
    async with served(first) as client:
        client.headers.update(key(first))
        await add(client, "sql", adapter_folders[0])
        await client.post(f"{SQL}/certify")
        await until(client, SQL, "running")
    assert (len(certify.jobs), certify.ended) == (1, 1)
    certify.held = None
    second = reopened()
    async with served(second) as client:
        client.headers.update(key(second))
        await until(client, SQL, "valid")
    assert len(certify.jobs) == 2


async def test_a_run_that_another_server_took_over_is_left_to_it(
    client: httpx.AsyncClient, admin: Headers, state: State, certify: FakeCertify
) -> None:
    client.headers.update(admin)
    certify.held = asyncio.Event()
    await client.post(f"{BASE}/certify")
    await until(client, BASE, "running")
    other = await asyncio.to_thread(CertificateRuns(state.registry.database, lease=timedelta(seconds=-1)).claim)
    assert other is not None
    async with asyncio.timeout(5):
        while certify.ended == 0:
            await asyncio.sleep(0.01)
    certify.held.set()
    await asyncio.sleep(0.1)
    assert (await client.get(f"{BASE}/certificate")).json()["attempt"]["state"] == "running"
    assert len(certify.jobs) == 1


async def test_a_database_that_is_away_for_a_while_costs_no_measurement(
    client: httpx.AsyncClient, admin: Headers, state: State, certify: FakeCertify, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.headers.update(admin)
    away, refused = True, set()

    def guarded(name: str) -> Callable[..., Any]:
        method = getattr(CertificateRuns, name)

        def call(*arguments: Any) -> Any:
            if away:
                refused.add(name)
                raise OperationalError("UPDATE certificates", {}, Exception("the database system is shutting down"))
            return method(*arguments)

        return call

    certify.held = asyncio.Event()
    await client.post(f"{BASE}/certify")
    await until(client, BASE, "running")
    for name in ("beat", "finish"):
        monkeypatch.setattr(CertificateRuns, name, guarded(name))
    async with asyncio.timeout(5):
        while "beat" not in refused:
            await asyncio.sleep(0.01)
        certify.held.set()
        while "finish" not in refused:
            await asyncio.sleep(0.01)
    away = False
    assert (await until(client, BASE, "valid"))["certificate"]["both"]["top1_agreement"] == 0.985
    assert len(certify.jobs) == 1


async def test_an_upload_beside_the_server_is_certified_by_it(
    reopened: Callable[..., State], adapter_folders: list[Path]
) -> None:
    aside, state = reopened(), reopened()
    async with served(state) as client:
        client.headers.update(key(state))
        await asyncio.to_thread(put_on_disk, aside, adapter_folders[:1], certify=True)
        await until(client, SQL, "valid")
    aside.registry.close()


async def test_a_removed_adapter_is_not_measured(
    reopened: Callable[..., State], certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    state = reopened()
    put_on_disk(state, adapter_folders[:1], certify=True)
    adapter = state.registry.adapters.get("sql")
    digest = adapter.versions[0].digest
    state.registry.store.discard(state.registry.store.folder(digest))
    async with served(state) as client:
        client.headers.update(key(state))
        standing = await until(client, SQL, "failed")
    assert "removed before it could be measured" in standing["attempt"]["problem"]
    assert certify.jobs == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, "what the KV cache stores (float32, now fp8_e4m3)"),
        ({"quantization": "int4"}, "the quantization (none, now int4 rounded at load)"),
    ],
)
async def test_what_is_served_otherwise_is_not_certified_any_more(
    reopened: Callable[..., State], adapter_folders: list[Path], changes: dict[str, str], words: str
) -> None:
    first = reopened()
    async with served(first) as client:
        client.headers.update(key(first))
        await add(client, "sql", adapter_folders[0])
        await client.post(f"{SQL}/certify")
        valid = await until(client, SQL, "valid")
    second = reopened(**changes)
    async with served(second) as client:
        client.headers.update(key(second))
        standing = await until(client, SQL, "outdated")
        assert (standing["valid"], standing["changes"]) == (False, [words])
        assert standing["certificate"] == valid["certificate"]
        await client.post(f"{SQL}/certify")
        await until(client, SQL, "valid")
    third = reopened()
    async with served(third) as client:
        client.headers.update(key(third))
        assert await until(client, SQL, "valid") | {"attempt": None} == valid | {"attempt": None}


async def test_another_processor_is_not_certified_by_the_first_ones_figures(
    reopened: Callable[..., State], certify: FakeCertify
) -> None:
    first = reopened()
    assert find_standing(first.registry.certificates, first.served_path, Subject(None)).obstacle == (
        "the engine has not started yet, and says then what this machine computes with."
    )
    async with served(first) as client:
        client.headers.update(key(first))
        await client.post(f"{BASE}/certify")
        await until(client, BASE, "valid")
    second = reopened()
    assert isinstance(second.engine, FakeEngine)
    second.engine.arithmetic = "dot products of bytes in AVX-512"
    async with served(second) as client:
        client.headers.update(key(second))
        standing = await until(client, BASE, "outdated")
        words = "the processor's arithmetic (float32 vectors, now dot products of bytes in AVX-512)"
        assert (standing["valid"], standing["changes"]) == (False, [words])


async def test_prompts_that_an_adapter_reads_as_tokens_of_its_own_are_refused(
    client: httpx.AsyncClient, admin: Headers, state: State, certify: FakeCertify
) -> None:
    client.headers.update(admin)
    token = AddedToken(320, "<call>", normalized=False)
    version = state.registry.adapters.add_version(
        "sql",
        put(state.registry.store, CONFIG),
        put(state.registry.store, b"weights"),
        passing_report(sha256(b"weights")),
        base_fingerprint=state.base.signature.fingerprint,
        actor="cli",
        tokenizer=AdapterTokenizer(added_tokens=[token]),
    ).version
    await client.put(f"{SQL}/prompts", json={"prompts": ["Hello", "What does <call> do?"]})
    await client.post(f"{SQL}/certify")
    problem = (await until(client, SQL, "failed"))["attempt"]["problem"]
    assert "prompt 2 has some of them in it" in problem and "golden prompts without them" in problem
    assert certify.jobs == [] and version.tokenizer_digest is not None
    await client.put(f"{SQL}/prompts", json={"prompts": PROMPTS})
    await client.post(f"{SQL}/certify")
    await until(client, SQL, "valid")


async def test_golden_prompts(
    client: httpx.AsyncClient, admin: Headers, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    await client.post(f"{SQL}/certify")
    await until(client, SQL, "valid")
    assert (await client.get(f"{SQL}/prompts")).json() == {"prompts": None}
    assert (await client.put(f"{SQL}/prompts", json={"prompts": PROMPTS})).json() == {"prompts": PROMPTS}
    assert (await client.get(f"{SQL}/prompts")).json() == {"prompts": PROMPTS}
    assert (await client.get(f"{SQL}/certificate")).json()["changes"] == ["the prompts"]
    await client.post(f"{SQL}/certify")
    standing = await until(client, SQL, "valid")
    assert certify.jobs[-1].prompts == PROMPTS
    assert standing["certificate"]["coverage"]["prompts"] == prompts_digest(PROMPTS)
    assert (await client.delete(f"{SQL}/prompts")).status_code == 204
    generated = await until(client, SQL, "valid")
    assert generated["certificate"]["coverage"]["prompts"] != prompts_digest(PROMPTS)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompts": []}, "There is no prompt"),
        ({"prompts": ["x"] * 65}, "65 prompts are too many"),
        ({"prompts": ["x" * 16385]}, "at most 16,384 bytes"),
        ({"prompts": [7]}, "prompts"),
        ({"prompts": "x"}, "prompts"),
        ({}, "prompts"),
        ({"prompts": ["x"], "extra": 1}, "extra"),
    ],
)
async def test_wrong_prompts(
    client: httpx.AsyncClient, admin: Headers, adapter_folders: list[Path], body: Any, words: str
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    refused = await client.put(f"{SQL}/prompts", json=body)
    assert refused.status_code == 400
    assert words in refused.json()["error"]["message"]


async def test_unknown_adapters(client: httpx.AsyncClient, admin: Headers) -> None:
    client.headers.update(admin)
    for method, path in (
        ("GET", "none/certificate"),
        ("POST", "none/certify"),
        ("POST", "none@3/certify"),
        ("GET", "none/prompts"),
        ("DELETE", "none/prompts"),
    ):
        assert (await client.request(method, f"/api/v1/adapters/{path}")).status_code == 404, path


async def test_an_alias_moves_to_certified_versions_only(
    reopened: Callable[..., State], certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    state = reopened(promotion_min_agreement=0.98)
    put_on_disk(state, adapter_folders)
    async with served(state) as client:
        client.headers.update(key(state))
        refused = await client.put(f"{SQL}/aliases/prod", json={"version": 1})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (409, "promotion_refused", "version")
        assert "Version 1 of 'sql' has no valid parity certificate" in error["message"]
        for number, agreement in ((1, 0.985), (2, 0.9)):
            certify.agreement = agreement
            await client.post(f"{SQL}@{number}/certify")
            await until(client, f"{SQL}@{number}", "valid")
        assert (await client.put(f"{SQL}/aliases/prod", json={"version": 1})).json()["aliases"] == {"prod": 1}
        for selector in (2, "latest"):
            refused = await client.put(f"{SQL}/aliases/prod", json={"version": selector})
            assert refused.status_code == 409
            assert "90.00% of places, and this server asks for 98.00%" in refused.json()["error"]["message"]
        assert (await client.get(SQL)).json()["aliases"] == {"prod": 1}
    other = reopened(promotion_min_agreement=0.98, kv_cache_dtype="int8")
    async with served(other) as client:
        client.headers.update(key(other))
        assert (await client.put(f"{SQL}/aliases/next", json={"version": 1})).status_code == 409


async def test_without_a_reference_nothing_can_be_certified(
    reopened: Callable[..., State], tmp_path: Path, adapter_folders: list[Path]
) -> None:
    state = reopened(certificate_reference=tmp_path / "nowhere", promotion_min_agreement=0.5, certify_uploads=True)
    async with served(state) as client:
        client.headers.update(key(state))
        await add(client, "sql", adapter_folders[0])
        standing = (await client.get(f"{SQL}/certificate")).json()
        assert "nowhere has no config.json" in standing["obstacle"]
        refused = await client.post(f"{SQL}/certify")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "certificate_impossible")
        moved = await client.put(f"{SQL}/aliases/prod", json={"version": 1})
        assert (moved.status_code, "nowhere has no config.json" in moved.text) == (409, True)
        assert (await client.get(f"{BASE}/certificate")).json()["attempt"] is None


def test_the_registry_takes_the_digest_of_prompts_as_the_engine_does(
    reopened: Callable[..., State], adapter_folders: list[Path]
) -> None:
    state = reopened()
    asyncio.run(state.engine.start())
    put_on_disk(state, adapter_folders[:1])
    adapter = state.registry.adapters.set_prompts("sql", PROMPTS, actor="cli")
    assert adapter.prompts_digest == prompts_digest(PROMPTS)
    subject = Subject(adapter.versions[0].digest, adapter.prompts_digest)
    assert state.served_path.coverage(subject).prompts == prompts_digest(PROMPTS)
    state.registry.close()
