"""What a certificate holds for: what is served as it was measured, golden prompts, and aliases that ask for one."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from loraplex.engine.certify.certificate import prompts_digest
from loraplex.engine.startup.loaded_files import LoadedFiles
from loraplex.registry.certificates.certificates import Measured, Subject
from loraplex.registry.files.adapter_tokenizer import AdapterTokenizer, AddedToken
from loraplex.web.certificates.standing import find_standing
from loraplex.web.state import State
from tests.registry.helpers import CONFIG, passing_report, put, sha256

from .certified import BASE, PROMPTS, SQL, Headers, at_once, key, put_on_disk, reopened, until
from .conftest import served
from .fake_certify import FakeCertify
from .fake_engine import RUNTIME, FakeEngine
from .test_adapters_api import add

__all__ = ["at_once", "reopened"]


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


def test_settings_that_certificates_depend_on_tell_servers_apart(
    reopened: Callable[..., State], tmp_path: Path
) -> None:
    def serving(**changes: Any) -> str:
        state = reopened(**changes)
        state.registry.close()
        return state.served_path.serving(state.base.signature.fingerprint)

    one = serving()
    assert one == serving(max_num_seqs=3) == serving(promotion_min_agreement=0.5)
    others = [{"kv_cache_dtype": "int8"}, {"quantization": "int4"}, {"certificate_reference": tmp_path}]
    assert len({one, *(serving(**changes) for changes in others)}) == 4


async def test_another_processor_is_not_certified_by_the_first_ones_figures(
    reopened: Callable[..., State], certify: FakeCertify
) -> None:
    first = reopened()
    assert find_standing(first.registry.certificates, first.served_path, Subject(None)).obstacle == (
        "the engine has not started yet."
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


async def test_a_certificate_holds_for_the_libraries_it_was_measured_with(
    reopened: Callable[..., State], certify: FakeCertify
) -> None:
    """Of the engine that runs, also where that was started again by the same server."""
    first = reopened()
    async with served(first) as client:
        client.headers.update(key(first))
        await client.post(f"{BASE}/certify")
        valid = await until(client, BASE, "valid")
    second = reopened()
    assert isinstance(second.engine, FakeEngine)
    second.engine.runtime = RUNTIME | {"torch": "2.12.0+cpu"}
    async with served(second) as client:
        client.headers.update(key(second))
        standing = await until(client, BASE, "outdated")
        words = "torch (2.11.0+cpu, now 2.12.0+cpu)"
        assert (standing["valid"], standing["changes"]) == (False, [words])
        page = await client.get("/", headers={"accept": "text/html"})
        assert f"These figures are out of date. Changed since: {words}." in page.text
        assert "computed by float32 vectors; torch 2.11.0+cpu, numba 0.66.0; loraplex" in page.text
        second.engine.runtime = RUNTIME
        await second.engine.start()
        assert await until(client, BASE, "valid") == valid


@pytest.mark.parametrize("other", [{"base": "0" * 64}, {"kv_cache": "fp8_e4m3"}])
async def test_no_certificate_holds_beside_an_engine_that_was_started_again_and_read_something_else(
    reopened: Callable[..., State], other: dict[str, str]
) -> None:
    """Though the files are by now what they were."""
    state = reopened(promotion_min_agreement=0.9)
    assert isinstance(state.engine, FakeEngine)
    right = LoadedFiles.seen(state.settings.engine_config(state.model_folder))
    state.engine.loaded = right
    async with served(state) as client:
        client.headers.update(key(state))
        await client.post(f"{BASE}/certify")
        valid = await until(client, BASE, "valid")
        state.engine.loaded = replace(right, **other)
        await state.engine.start()
        standing = await until(client, BASE, "outdated")
        assert not standing["valid"] and "the engine has loaded different " in standing["obstacle"]
        state.engine.loaded = right
        await state.engine.start()
        assert await until(client, BASE, "valid") == valid


async def test_a_certificate_of_an_earlier_release_holds_no_more(
    reopened: Callable[..., State], adapter_folders: list[Path]
) -> None:
    """Those did not note the processor's arithmetic."""
    state = reopened(promotion_min_agreement=0.9)
    put_on_disk(state, adapter_folders)
    async with served(state) as client:
        client.headers.update(key(state))
        await client.post(f"{SQL}@1/certify")
        document = (await until(client, f"{SQL}@1", "valid"))["certificate"]
        [digest] = {document["coverage"]["adapter"]}
        del document["coverage"]["arithmetic"]
        second = (await client.get(SQL)).json()["versions"][0]["digest"]
        assert second != digest
        kept = Measured("0" * 64, 0.99, document)
        state.registry.certificates.keep(Subject(second), kept, actor="cli")
        standing = (await client.get(f"{SQL}@2/certificate")).json()
        assert (standing["state"], standing["valid"], standing["certificate"]) == ("outdated", False, None)
        assert standing["changes"] == ["the format of certificates (an earlier release of loraplex wrote this one)"]
        page = await client.get("/adapters/sql?version=2", headers={"accept": "text/html"})
        assert page.status_code == 200
        assert "The last certificate is out of date. Changed since: the format of certificates" in page.text
        refused = await client.put(f"{SQL}/aliases/prod", json={"version": 2})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "promotion_refused")
        await client.post(f"{SQL}@2/certify")
        await until(client, f"{SQL}@2", "valid")
        assert (await client.put(f"{SQL}/aliases/prod", json={"version": 2})).status_code == 200


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
    assert "prompt 2 contains tokens that the adapter adds" in problem and "golden prompts without them" in problem
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


async def test_figures_on_other_prompts_are_said_to_be_such_also_where_nothing_can_be_measured(
    reopened: Callable[..., State], adapter_folders: list[Path], tmp_path: Path
) -> None:
    first = reopened()
    async with served(first) as client:
        client.headers.update(key(first))
        await add(client, "sql", adapter_folders[0])
        await client.put(f"{SQL}/prompts", json={"prompts": PROMPTS})
        await client.post(f"{SQL}/certify")
        golden = (await until(client, SQL, "valid"))["certificate"]
    second = reopened(certificate_reference=tmp_path / "nowhere")
    async with served(second) as client:
        client.headers.update(key(second))
        standing = (await client.get(f"{SQL}/certificate")).json()
        assert (standing["certificate"], standing["changes"]) == (golden, [])
        await client.delete(f"{SQL}/prompts")
        standing = (await client.get(f"{SQL}/certificate")).json()
        assert standing["obstacle"] and (standing["certificate"], standing["changes"]) == (golden, ["the prompts"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompts": []}, "Give at least one prompt"),
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
            assert "90.00% of positions; this server requires 98.00%" in refused.json()["error"]["message"]
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
