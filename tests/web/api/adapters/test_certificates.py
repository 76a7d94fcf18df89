"""Parity certificates over HTTP: asked for, measured in the background, told to who may know."""

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from loraplex.engine.certify.certificate import Certificate
from loraplex.engine.certify.child import WorkerFault
from loraplex.registry.certificates.certificate_runs import CertificateRuns
from loraplex.web.state import State

from ...certified import BASE, PROMPTS, SQL, Headers, at_once, key, put_on_disk, reopened, until
from ...conftest import ADMIN_PASSWORD, served
from ...fake_certify import FakeCertify
from ...test_access import log_in
from ...test_adapters_api import add

__all__ = ["at_once", "reopened"]
FAULT = re.compile("an internal error. Ask the operator to look for ([0-9a-f]{12}) in the server log")


async def test_asked_for_measured_and_shown(
    client: httpx.AsyncClient, admin: Headers, state: State, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    digest = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    before = (await client.get(f"{SQL}/certificate")).json()
    assert (before["state"], before["valid"], before["certificate"], before["attempt"]) == ("none", False, None, None)
    certify.held = asyncio.Event()
    asked = await client.post(f"{SQL}/certify")
    assert asked.status_code == 202 and asked.json()["state"] in ("waiting", "running"), "the certifier may be quick"
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


async def test_a_fault_of_ours_is_told_in_words_and_its_cause_to_the_operator_alone(
    client: httpx.AsyncClient,
    admin: Headers,
    state: State,
    certify: FakeCertify,
    adapter_folders: list[Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    state.registry.tenants.create("acme", actor="cli")
    tenants_admin = key(state, "acme")
    for headers in (tenants_admin, admin):
        client.headers.update(headers)
        await add(client, "sql", adapter_folders[0])
    certify.fault = RuntimeError("a bug")
    await client.post(f"{SQL}/certify")
    told = (await until(client, SQL, "failed"))["attempt"]
    fault = FAULT.fullmatch(told["problem"])
    assert fault is not None and told["cause"] == "RuntimeError: a bug"
    assert f"fault {fault[1]}: " in caplog.text and "RuntimeError: a bug" in caplog.text
    standing = (await client.get(f"{SQL}/certificate", headers=tenants_admin)).text
    assert told["problem"] in standing and "a bug" not in standing
    certify.fault = WorkerFault("it ended (signal 9)")
    await client.post(f"{SQL}/certify?anew=true")
    lost = (await until(client, SQL, "failed"))["attempt"]
    assert FAULT.fullmatch(lost["problem"]) and lost["cause"] == "it ended (signal 9)"
    certify.fault = None
    await client.post(f"{SQL}/certify")
    assert (await until(client, SQL, "valid"))["attempt"]["cause"] is None


async def test_the_page_shows_a_faults_cause_to_the_operator_alone(
    client: httpx.AsyncClient, admin: Headers, state: State, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    state.registry.tenants.create("acme", actor="cli")
    state.registry.users.create("bob", ADMIN_PASSWORD, "admin", actor="cli", tenant="acme")
    for headers in (key(state, "acme"), admin):
        client.headers.update(headers)
        await add(client, "sql", adapter_folders[0])
    certify.fault = RuntimeError("a bug")
    await client.post(f"{SQL}/certify")
    problem = (await until(client, SQL, "failed"))["attempt"]["problem"]
    del client.headers["authorization"]
    for user, sees in (("admin", True), ("acme/bob", False)):
        cookie, _ = await log_in(state, user)
        page = (await client.get("/adapters/sql", headers=cookie | {"accept": "text/html"})).text
        assert problem in page and ("Cause: <code>RuntimeError: a bug</code>" in page) is sees
        assert sees or "a bug" not in page


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
    while not certify.jobs:
        await asyncio.sleep(0.01)
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
        while not certify.jobs:
            await asyncio.sleep(0.01)
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
