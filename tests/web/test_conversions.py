"""Adapters of other kinds, uploaded like any: LoRA is what is stored and served, and the report says so."""

import json
from pathlib import Path

import httpx
import pytest

from loraplex.engine.model.config import base_signature
from loraplex.registry.files import conversion
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.management.registration import add_from_folder
from loraplex.web.state import State
from tests.lora.adapters import read_manifest
from tests.lora.other_kinds import adalora, loha, lokr, save_random, vera

from .fake_engine import sentence_of
from .test_adapters_api import add, said

MAKERS = {"adalora": adalora, "loha": loha, "lokr": lokr, "vera": vera}


@pytest.fixture(autouse=True)
def as_admin(client: httpx.AsyncClient, admin: dict[str, str]) -> None:
    client.headers.update(admin)


@pytest.fixture(scope="module")
def folders(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("kinds")
    return {name: save_random(make(), checkpoint, root / name) for name, make in MAKERS.items()}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adalora", "converted from AdaLoRA, exactly, at rank 6"),
        ("loha", "converted from LoHa, exactly, at rank 16"),
        ("lokr", "converted from LoKr, exactly, at ranks 8 to 16"),
        ("vera", "converted from VeRA, exactly, at rank 5"),
    ],
)
async def test_an_upload_is_served_as_lora(
    client: httpx.AsyncClient, state: State, checkpoint: Path, folders: dict[str, Path], name: str, words: str
) -> None:
    response = await add(client, name, folders[name])
    assert response.status_code == 201, response.text
    version = response.json()["version"]
    manifest = read_manifest(state.registry.store.folder(version["digest"]), base_signature(checkpoint))
    assert (manifest.digest, manifest.peft_type) == (version["digest"], "LORA")
    assert await said(client, name) == sentence_of(version["digest"])
    report = (await client.get(f"/api/v1/adapters/{name}/report")).json()
    assert {"check": "converted", "level": "pass", "message": words, "remedy": None} in report["findings"]
    again = await add(client, name, folders[name])
    assert (again.status_code, again.json()["created"]) == (200, False)
    assert not list(state.registry.store.incoming.iterdir())


async def test_the_dashboard_shows_how_it_was_converted(client: httpx.AsyncClient, folders: dict[str, Path]) -> None:
    await add(client, "style", folders["loha"])
    assert "converted from LoHa, exactly, at rank 16" in (await client.get("/adapters/style")).text


async def test_a_refusal_brings_its_reason_and_leaves_nothing(
    client: httpx.AsyncClient, state: State, folders: dict[str, Path], tmp_path: Path
) -> None:
    config = json.loads((folders["vera"] / CONFIG_FILE).read_text()) | {"save_projection": False}
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config))
    (tmp_path / WEIGHTS_FILE).write_bytes((folders["vera"] / WEIGHTS_FILE).read_bytes())
    response = await add(client, "bad", tmp_path)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "preflight_failed")
    (finding,) = response.json()["report"]["findings"]
    assert "vera_A and vera_B were not saved" in finding["message"]
    assert "save_projection=True" in finding["remedy"]
    assert (await client.get("/api/v1/adapters")).json()["data"] == []
    assert not list(state.registry.store.incoming.iterdir())


@pytest.mark.parametrize(
    ("limit", "amount", "words"),
    [("SECONDS", 0, "took longer than 0 s"), ("MEMORY", 64 << 20, "the files crashed"), ("MAX_WEIGHTS", 5000, "5,000")],
)
async def test_one_that_takes_too_much_is_refused(
    client: httpx.AsyncClient,
    state: State,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    amount: int,
    words: str,
) -> None:
    monkeypatch.setattr(conversion, limit, amount)
    (finding,) = (await add(client, "large", folders["loha"])).json()["report"]["findings"]
    assert words in finding["message"]
    assert "peft.save_as_lora" in finding["remedy"]
    assert not list(state.registry.store.incoming.iterdir())
    monkeypatch.undo()
    assert (await add(client, "large", folders["loha"])).status_code == 201


def test_the_command_line_converts_too(state: State, folders: dict[str, Path]) -> None:
    added, report = add_from_folder(state.registry, state.base, "loha", folders["loha"], "cli")
    assert added.created
    assert any(finding.check == "converted" for finding in report.findings)
