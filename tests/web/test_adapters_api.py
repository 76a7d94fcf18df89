"""Upload, register, use, change and remove adapters over HTTP, without a restart."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.state import State

from .conftest import KEY
from .fake_engine import FakeEngine, sentence_of

Headers = dict[str, str]


async def put(client: httpx.AsyncClient, name: str, file: str, data: bytes, **headers: str) -> httpx.Response:
    sent = {"x-content-sha256": hashlib.sha256(data).hexdigest(), **client.headers, **headers}
    return await client.put(f"/api/v1/adapters/{name}/files/{file}", content=data, headers=sent)


async def add(client: httpx.AsyncClient, name: str, folder: Path) -> httpx.Response:
    body = {}
    for field, file in (("config_sha256", CONFIG_FILE), ("weights_sha256", WEIGHTS_FILE)):
        response = await put(client, name, file, (folder / file).read_bytes())
        assert response.status_code == 201, response.text
        body[field] = response.json()["sha256"]
    return await client.post(f"/api/v1/adapters/{name}/versions", json=body)


async def say(client: httpx.AsyncClient, model: str) -> httpx.Response:
    messages = [{"role": "user", "content": "hi"}]
    return await client.post("/v1/chat/completions", json={"model": model, "messages": messages})


async def said(client: httpx.AsyncClient, model: str) -> str:
    response = await say(client, model)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


@pytest.fixture(autouse=True)
def as_admin(client: httpx.AsyncClient, admin: Headers) -> None:
    client.headers.update(admin)


async def test_upload_is_servable_at_once(client: httpx.AsyncClient, adapter_folders: list[Path]) -> None:
    response = await add(client, "sql", adapter_folders[0])
    assert response.status_code == 201, response.text
    body = response.json()
    digest = body["version"]["digest"]
    assert body["version"]["number"] == 1
    assert body["version"]["rank"] == 4
    assert body["report"]["findings"]
    for model in ("sql", "sql@1", "sql@latest", "tiny:sql", "tiny:sql@1"):
        assert await said(client, model) == sentence_of(digest)
    again = await add(client, "sql", adapter_folders[0])
    assert (again.status_code, again.json()["created"]) == (200, False)


async def test_model_cards(client: httpx.AsyncClient, state: State, adapter_folders: list[Path]) -> None:
    digest = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    await client.put("/api/v1/adapters/sql/aliases/prod", json={"version": 1})
    base, adapter = (await client.get("/v1/models")).json()["data"]
    assert (base["id"], base["parent"], base["max_model_len"]) == ("tiny", None, 256)
    assert (adapter["id"], adapter["parent"], adapter["root"]) == ("sql", "tiny", digest)
    assert set(base) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
    assert base["root"] == state.settings.model
    for path in ("/v1/models", "/v1/models/tiny"):
        told = (await client.get(path, headers={"authorization": f"Bearer {KEY}"})).json()
        assert told.get("data", [told])[0]["root"] == "tiny", "where the files are is the operator's to know"
    for name in ("sql", "sql@prod", "tiny:sql"):
        card = (await client.get(f"/v1/models/{name}")).json()
        assert (card["id"], card["root"]) == (name, digest)
    assert (await client.get("/v1/models/org/none")).json()["error"]["code"] == "model_not_found"


async def test_versions_and_aliases(client: httpx.AsyncClient, adapter_folders: list[Path]) -> None:
    first = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    await client.put("/api/v1/adapters/sql/aliases/prod", json={"version": 1})
    second = (await add(client, "sql", adapter_folders[1])).json()["version"]["digest"]
    assert await said(client, "sql") == sentence_of(second)
    assert await said(client, "sql@prod") == sentence_of(first)
    await client.put("/api/v1/adapters/sql/aliases/prod", json={"version": "latest"})
    assert await said(client, "sql@prod") == sentence_of(second)
    await client.put("/api/v1/adapters/sql/aliases/prod", json={"version": 1})
    await client.patch("/api/v1/adapters/sql@2", json={"enabled": False})
    assert await said(client, "sql") == sentence_of(first)
    assert (await client.delete("/api/v1/adapters/sql/aliases/prod")).json()["aliases"] == {}
    assert (await say(client, "sql@prod")).status_code == 404


async def test_disabled_adapters_are_refused_and_not_retried(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await add(client, "sql", adapter_folders[0])
    await client.patch("/api/v1/adapters/sql", json={"enabled": False})
    response = await say(client, "sql")
    assert (response.status_code, response.headers["x-should-retry"]) == (400, "false")
    assert response.json()["error"]["code"] == "adapter_unavailable"
    assert engine.registered == {}
    await client.patch("/api/v1/adapters/sql", json={"enabled": True})
    assert (await say(client, "sql")).status_code == 200


async def test_pin_load_and_evict_reach_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    digest = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    await client.patch("/api/v1/adapters/sql", json={"pinned": True})
    assert engine.registered[digest].pinned
    refused = await client.post("/api/v1/adapters/sql@1/evict")
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        400,
        "The engine refused: adapter 'sql@1' is pinned; unpin it first",
    )
    await client.patch("/api/v1/adapters/sql", json={"pinned": False})
    assert not engine.registered[digest].pinned
    assert (await client.post("/api/v1/adapters/sql/load")).json() == {"digest": digest}
    assert digest in engine.resident
    shown = (await client.get("/api/v1/adapters/sql")).json()["versions"][0]
    assert shown["state"] == "resident"
    await client.post("/api/v1/adapters/sql@1/evict")
    assert digest not in engine.resident


async def test_removal_lets_running_requests_end(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    digest = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    engine.delay = 0.02
    running = asyncio.create_task(said(client, "sql"))
    while not engine.running:
        await asyncio.sleep(0.01)
    assert (await client.delete("/api/v1/adapters/sql")).status_code == 204
    assert digest not in engine.registered
    assert (await say(client, "sql")).status_code == 404
    assert await running == sentence_of(digest)
    assert (await client.get("/api/v1/adapters")).json()["data"] == []


async def test_changes_made_elsewhere_arrive(
    client: httpx.AsyncClient, state: State, adapter_folders: list[Path]
) -> None:
    await add(client, "sql", adapter_folders[0])
    await asyncio.to_thread(state.registry.adapters.set_enabled, "sql", False, actor="cli")
    async with asyncio.timeout(60):
        while (await say(client, "sql")).status_code == 200:
            await asyncio.sleep(0.05)


async def test_an_engine_that_refuses_one_adapter_serves_the_others(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    bad = (await add(client, "bad", adapter_folders[1])).json()["version"]["digest"]
    await client.delete("/api/v1/adapters/bad")
    engine.refused = {bad}
    failed = (await add(client, "bad", adapter_folders[1])).json()["version"]
    assert "adapter memory" in failed["error"]
    assert (await say(client, "bad")).json()["error"]["code"] == "adapter_unavailable"
    good = (await add(client, "good", adapter_folders[0])).json()["version"]["digest"]
    assert await said(client, "good") == sentence_of(good)
    assert (await client.get("/ready")).status_code == 200


@pytest.mark.parametrize(
    "name", ["..", "../x", "..%2fx", "%2e%2e", "UPPER", "a b", "a@1", "-a", "x" * 64, "tiny", "a%00"]
)
async def test_hostile_names(client: httpx.AsyncClient, name: str) -> None:
    response = await put(client, name, CONFIG_FILE, b"{}")
    assert response.status_code in (400, 404, 405), response.text
    assert response.json()["error"]["message"]


async def test_the_name_of_the_base_is_refused_before_any_byte_comes(client: httpx.AsyncClient, state: State) -> None:
    """In the words in which it would be at registration."""
    told = "'tiny' is the name of the base model. Choose another name for the adapter, or another served_name."
    asked = {"x-content-sha256": "0" * 64}
    for response in (
        await put(client, "tiny", WEIGHTS_FILE, b"x"),
        await client.get(f"/api/v1/adapters/tiny/files/{WEIGHTS_FILE}?size=1", headers=asked),
    ):
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["message"]) == (400, "invalid_name", told)
    assert not list(state.registry.store.blobs.iterdir())
    assert not list(state.registry.store.incoming.iterdir())


@pytest.mark.parametrize(
    "file", ["adapter_model.bin", "..", "x.safetensors", "adapter_config.json/", "%2e%2e%2fpasswd"]
)
async def test_hostile_file_names(client: httpx.AsyncClient, file: str) -> None:
    assert (await put(client, "sql", file, b"{}")).status_code in (404, 405)


async def test_wrong_declarations(client: httpx.AsyncClient, state: State) -> None:
    data = b"x" * 1000
    wrong = await put(client, "sql", WEIGHTS_FILE, data, **{"x-content-sha256": "0" * 64})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-content-sha256")
    for digest in ("", "zz", "../../x", "0" * 63):
        assert (await put(client, "sql", WEIGHTS_FILE, data, **{"x-content-sha256": digest})).status_code == 400
    empty = await put(client, "sql", WEIGHTS_FILE, b"", **{"content-length": "0"})
    assert (empty.status_code, empty.json()["error"]["code"]) == (400, "upload_empty")
    assert "is empty" in empty.json()["error"]["message"]
    large = await put(client, "sql", CONFIG_FILE, b"x" * ((1 << 20) + 1))
    assert large.status_code == 413
    assert not list(state.registry.store.blobs.iterdir())
    assert not list(state.registry.store.incoming.iterdir())


async def test_undeclared_size(client: httpx.AsyncClient) -> None:
    async def pieces() -> Any:
        yield b"abc"

    headers = {"x-content-sha256": "0" * 64}
    response = await client.put(f"/api/v1/adapters/sql/files/{CONFIG_FILE}", content=pieces(), headers=headers)
    assert response.status_code == 411


async def test_preflight_refusals_bring_the_report(client: httpx.AsyncClient, adapter_folders: list[Path]) -> None:
    config = (await put(client, "bad", CONFIG_FILE, (adapter_folders[0] / CONFIG_FILE).read_bytes())).json()
    for data in (b"\x80\x04\x95pickle", b"\xff" * 64, b"{}" * 100):
        weights = (await put(client, "bad", WEIGHTS_FILE, data)).json()
        body = {"config_sha256": config["sha256"], "weights_sha256": weights["sha256"]}
        response = await client.post("/api/v1/adapters/bad/versions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "preflight_failed"
        assert any(finding["level"] == "fail" for finding in response.json()["report"]["findings"])
    assert (await client.get("/api/v1/adapters")).json()["data"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/v1/adapters/sql/versions", {}, 400),
        ("POST", "/api/v1/adapters/sql/versions", {"config_sha256": 5, "weights_sha256": "x"}, 400),
        ("POST", "/api/v1/adapters/sql/versions", {"config_sha256": "../..", "weights_sha256": "x"}, 400),
        ("POST", "/api/v1/adapters/sql/versions", {"config_sha256": "0" * 64, "weights_sha256": "0" * 64}, 400),
        ("POST", "/api/v1/adapters/sql/versions", {"config_sha256": "0", "weights_sha256": "0", "path": "/etc"}, 400),
        ("PATCH", "/api/v1/adapters/none", {"enabled": True}, 404),
        ("PATCH", "/api/v1/adapters/none", {"enabled": "yes"}, 400),
        ("PATCH", "/api/v1/adapters/none", {"rank": 5}, 400),
        ("DELETE", "/api/v1/adapters/none", None, 404),
        ("GET", "/api/v1/adapters/none", None, 404),
        ("GET", "/api/v1/adapters/none/report", None, 404),
        ("PUT", "/api/v1/adapters/none/aliases/prod", {"version": 1}, 404),
        ("PUT", "/api/v1/adapters/none/aliases/7", {"version": 1}, 400),
        ("PUT", "/api/v1/adapters/none/aliases/latest", {"version": 1}, 400),
        ("PUT", "/api/v1/adapters/none/aliases/prod", {"version": 1.5}, 400),
        ("POST", "/api/v1/adapters/none/load", None, 404),
        ("POST", "/api/v1/adapters/tiny/load", None, 400),
        ("POST", "/api/v1/adapters/none/evict", None, 404),
        ("POST", "/api/v1/keys", {"name": "a", "scopes": ["root"]}, 400),
        ("POST", "/api/v1/keys", {"name": "a", "scopes": []}, 400),
        ("POST", "/api/v1/keys", {"name": 5}, 400),
        ("POST", "/api/v1/keys", {"name": "x" * 5000}, 400),
        ("POST", "/api/v1/keys", {"name": ""}, 400),
        ("DELETE", "/api/v1/keys/none", None, 404),
    ],
)
async def test_wrong_calls(client: httpx.AsyncClient, method: str, path: str, body: Any, status: int) -> None:
    response = await client.request(method, path, json=body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["message"]


async def test_engine_report(client: httpx.AsyncClient, adapter_folders: list[Path]) -> None:
    digest = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    report = (await client.get("/api/v1/engine")).json()
    assert report["ready"]
    assert report["in_step"]
    assert report["names"] == {digest: "sql"}
    assert report["info"]["num_blocks"] == 64
    assert report["status"]["adapters"][0]["digest"] == digest


async def test_a_wrong_version_is_not_taken_for_an_alias(
    client: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    await add(client, "sql", adapter_folders[0])
    for version, status in ((7, 404), (10**30, 404), (10**90, 400), (-1, 400), ("01", 400)):
        response = await client.put("/api/v1/adapters/sql/aliases/prod", json={"version": version})
        message = response.json()["error"]["message"]
        assert response.status_code == status and "no version" in message and "cannot be" not in message, message
    assert (await say(client, "sql@1")).status_code == 200
    assert (await say(client, "sql@01")).status_code == 404


async def test_the_field_with_the_wrong_digest_is_named(client: httpx.AsyncClient, adapter_folders: list[Path]) -> None:
    here = (await put(client, "sql", CONFIG_FILE, (adapter_folders[0] / CONFIG_FILE).read_bytes())).json()["sha256"]
    for wrong in ("../../x", "0" * 64):
        for config, weights, field in ((wrong, here, "config_sha256"), (here, wrong, "weights_sha256")):
            body = {"config_sha256": config, "weights_sha256": weights}
            response = await client.post("/api/v1/adapters/sql/versions", json=body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, field)


async def test_the_base_model_is_always_loaded(client: httpx.AsyncClient) -> None:
    for action in ("load", "evict"):
        response = await client.post(f"/api/v1/adapters/tiny/{action}")
        assert response.status_code == 400
        assert "is the base model, which is always loaded" in response.json()["error"]["message"]
