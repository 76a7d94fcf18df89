"""vLLM's and SGLang's routes that load and unload adapters: bodies, texts, statuses, and what the registry knows."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.state import State

from ...fake_engine import FakeEngine, sentence_of
from ...test_adapters_api import add, said, say

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def shelf(state: State, adapter_folders: list[Path], tmp_path: Path) -> Path:
    """An allowed folder with two adapters, `first` and `second`."""
    shelf = tmp_path / "shelf"
    for folder, name in zip(adapter_folders, ("first", "second"), strict=True):
        shutil.copytree(folder, shelf / name)
    state.settings = state.settings.model_copy(update={"adapter_folders": (shelf,)})
    return shelf


@pytest.fixture(autouse=True)
def as_admin(client: httpx.AsyncClient, admin: dict[str, str]) -> None:
    client.headers.update(admin)


async def load(client: httpx.AsyncClient, name: str, path: object, **fields: Any) -> httpx.Response:
    return await client.post(LOAD, json={"lora_name": name, "lora_path": str(path), **fields})


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    """Status, type and message; the body is vLLM's, whose code is the status."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == response.status_code
    return response.status_code, error["type"], error["message"]


async def test_load_serve_unload(client: httpx.AsyncClient, engine: FakeEngine, shelf: Path) -> None:
    loaded = await load(client, "sql", shelf / "first", base_model_name="whatever")
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
    assert loaded.headers["content-type"].startswith("text/plain")
    [digest] = engine.resident
    assert await said(client, "sql") == sentence_of(digest)
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["tiny", "sql"]
    unloaded = await client.post(UNLOAD, json={"lora_name": "sql", "lora_int_id": 1})
    assert (unloaded.status_code, unloaded.text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
    assert engine.registered == {}
    assert (await say(client, "sql")).status_code == 404
    assert (await load(client, "sql", shelf / "first")).status_code == 200


async def test_a_loaded_adapter_is_a_version_of_the_registry(
    client: httpx.AsyncClient, state: State, shelf: Path
) -> None:
    await load(client, "sql", shelf / "first")
    shutil.rmtree(shelf / "first")
    [adapter] = await asyncio.to_thread(state.registry.adapters.list)
    [version] = adapter.versions
    assert (state.registry.store.folder(version.digest) / WEIGHTS_FILE).stat().st_size == version.size
    assert version.uploaded_by.startswith("key:")


async def test_a_name_in_use_is_loaded_again_only_in_place(client: httpx.AsyncClient, shelf: Path) -> None:
    await load(client, "sql", shelf / "first")
    for folder in ("first", "second"):
        assert error_of(await load(client, "sql", shelf / folder)) == (
            400,
            "InvalidUserInput",
            "The lora adapter 'sql' has already been loaded. If you want to load the adapter in place, "
            "set 'load_inplace' to True.",
        )
    for folder, numbers in (("first", [1]), ("second", [2, 1])):
        assert (await load(client, "sql", shelf / folder, load_inplace=True)).status_code == 200
        adapter = (await client.get("/api/v1/adapters/sql")).json()
        assert [version["number"] for version in adapter["versions"]] == numbers
    assert await said(client, "sql") == sentence_of(adapter["versions"][0]["digest"])


async def test_loads_of_one_name_take_turns(client: httpx.AsyncClient, shelf: Path) -> None:
    answers = await asyncio.gather(*(load(client, "sql", shelf / folder) for folder in ("first", "second") * 4))
    assert sorted(answer.status_code for answer in answers) == [200] + [400] * 7


@pytest.mark.parametrize("body", [{}, {"lora_name": "a"}, {"lora_path": "/a"}, {"lora_name": "", "lora_path": "/a"}])
async def test_name_and_path_are_needed(client: httpx.AsyncClient, body: dict[str, str]) -> None:
    expected = (400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
    assert error_of(await client.post(LOAD, json=body)) == expected


async def test_unloading_what_is_not_there(client: httpx.AsyncClient) -> None:
    assert error_of(await client.post(UNLOAD, json={})) == (
        400,
        "InvalidUserInput",
        "'lora_name' needs to be provided to unload a LoRA adapter.",
    )
    for name in ("none", "NONE", "../x", "tiny"):
        expected = (404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        assert error_of(await client.post(UNLOAD, json={"lora_name": name})) == expected


async def test_an_engine_that_keeps_it_is_told(client: httpx.AsyncClient, engine: FakeEngine, shelf: Path) -> None:
    await load(client, "sql", shelf / "first")
    engine.stuck = set(engine.registered)
    expected = (500, "InternalServerError", "Failed to remove lora adapter 'sql' from the engine.")
    assert error_of(await client.post(UNLOAD, json={"lora_name": "sql"})) == expected


async def test_a_load_that_the_engine_refuses_leaves_nothing(
    client: httpx.AsyncClient, engine: FakeEngine, shelf: Path
) -> None:
    await load(client, "sql", shelf / "first")
    await load(client, "other", shelf / "second")
    [first, second] = engine.registered
    await client.post(UNLOAD, json={"lora_name": "other"})
    engine.unloadable = {second}
    status, kind, message = error_of(await load(client, "sql", shelf / "second", load_inplace=True))
    assert (status, kind) == (500, "InternalServerError")
    assert "does not fit" in message
    assert await said(client, "sql") == sentence_of(first)
    assert list(engine.registered) == [first]
    engine.unloadable, engine.refused = set(), {second}
    assert "adapter memory" in error_of(await load(client, "new", shelf / "second"))[2]
    assert (await say(client, "new")).status_code == 404


async def test_an_engine_that_is_away(client: httpx.AsyncClient, engine: FakeEngine, shelf: Path) -> None:
    engine.crash()
    response = await load(client, "sql", shelf / "first")
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    await engine.start()
    assert (await load(client, "sql", shelf / "first")).status_code == 200


async def test_an_adapter_that_cannot_be_served(client: httpx.AsyncClient, shelf: Path) -> None:
    (shelf / "first" / WEIGHTS_FILE).write_bytes(b"\x80\x04pickle")
    status, kind, message = error_of(await load(client, "sql", shelf / "first"))
    assert (status, kind) == (400, "BadRequestError")
    assert message.startswith("LoRA adapter 'sql' was found but could not be loaded. ")
    assert (await client.get("/api/v1/adapters")).json()["data"] == []


async def test_a_disabled_adapter_stays_so(client: httpx.AsyncClient, shelf: Path) -> None:
    await load(client, "sql", shelf / "first")
    await client.patch("/api/v1/adapters/sql", json={"enabled": False})
    for in_place in (False, True):
        status, kind, message = error_of(await load(client, "sql", shelf / "first", load_inplace=in_place))
        assert (status, kind) == (400, "InvalidUserInput") and "is disabled" in message


async def test_a_disabled_version_does_not_hold_its_name(client: httpx.AsyncClient, shelf: Path) -> None:
    await load(client, "sql", shelf / "first")
    await client.patch("/api/v1/adapters/sql@1", json={"enabled": False})
    assert (await load(client, "sql", shelf / "first")).status_code == 200
    assert (await say(client, "sql")).status_code == 200


@pytest.mark.parametrize("name", ["UPPER", "a b", "../x", "a@1", "tiny", "x" * 64])
async def test_names_that_no_adapter_may_have(client: httpx.AsyncClient, shelf: Path, name: str) -> None:
    status, kind, _ = error_of(await load(client, name, shelf / "first"))
    assert (status, kind) == (400, "InvalidUserInput")


async def test_stacked_weights_of_experts_are_refused_by_name(client: httpx.AsyncClient, shelf: Path) -> None:
    response = await load(client, "sql", shelf / "first", is_3d_lora_weight=True)
    assert "is_3d_lora_weight" in error_of(response)[2]


@pytest.mark.parametrize("body", [[], {"lora_name": 5, "lora_path": "/a"}, {"lora_name": "a", "lora_path": ["/a"]}])
async def test_bodies_of_wrong_types(client: httpx.AsyncClient, body: Any) -> None:
    assert (await client.post(LOAD, json=body)).status_code == 400


async def test_inference_and_adapter_keys_may_not(client: httpx.AsyncClient, state: State, shelf: Path) -> None:
    for scope in ("inference", "adapters"):
        token = state.registry.keys.create("k", [scope], actor="system").token
        await asyncio.to_thread(state.registry.snapshots.refresh)
        client.headers["authorization"] = f"Bearer {token}"
        assert (await load(client, "sql", shelf / "first")).status_code == 403


class TestFolders:
    async def test_none_is_allowed_unless_the_operator_says_so(
        self, client: httpx.AsyncClient, adapter_folders: list[Path]
    ) -> None:
        status, kind, message = error_of(await load(client, "sql", adapter_folders[0]))
        assert (status, kind) == (400, "InvalidUserInput")
        assert "LORAPLEX_ADAPTER_FOLDERS" in message

    async def test_nothing_there(self, client: httpx.AsyncClient, shelf: Path) -> None:
        (shelf / "file").touch()
        (shelf / "empty").mkdir()
        (shelf / "half").mkdir()
        shutil.copy(shelf / "first" / CONFIG_FILE, shelf / "half")
        (shelf / "pipe").mkdir()
        os.mkfifo(shelf / "pipe" / CONFIG_FILE)
        for name in ("none", "file", "empty", "half", "pipe", "none/deeper"):
            message = f"Loading lora sql failed: No adapter found for {shelf / name}"
            assert error_of(await load(client, "sql", shelf / name)) == (404, "NotFoundError", message)

    async def test_outside_of_the_allowed_folders(
        self, client: httpx.AsyncClient, shelf: Path, tmp_path: Path, adapter_folders: list[Path]
    ) -> None:
        """What exists and what does not are told apart by nothing but the path itself."""
        for path in (adapter_folders[0], tmp_path / "none", f"{shelf}-2", "/", "/etc/passwd", shelf.parent):
            status, kind, message = error_of(await load(client, "sql", path))
            assert (status, kind) == (400, "InvalidUserInput")
            assert "is not inside an allowed" in message

    async def test_parents_are_not_followed(self, client: httpx.AsyncClient, shelf: Path) -> None:
        for path in (f"{shelf}/first/../second", f"{shelf}/../shelf/first", f"{shelf}/.."):
            assert "'..'" in error_of(await load(client, "sql", path))[2]

    async def test_links_that_lead_out(
        self, client: httpx.AsyncClient, shelf: Path, adapter_folders: list[Path]
    ) -> None:
        (shelf / "out").symlink_to(adapter_folders[0])
        (shelf / "file-out").mkdir()
        shutil.copy(shelf / "first" / CONFIG_FILE, shelf / "file-out")
        (shelf / "file-out" / WEIGHTS_FILE).symlink_to(adapter_folders[0] / WEIGHTS_FILE)
        (shelf / "nowhere").symlink_to("/nowhere/at/all")
        for name in ("out", "file-out", "nowhere"):
            assert "symbolic link" in error_of(await load(client, "sql", shelf / name))[2], name

    async def test_links_inside_are_followed(self, client: httpx.AsyncClient, shelf: Path, tmp_path: Path) -> None:
        (shelf / "current").symlink_to(shelf / "first")
        assert (await load(client, "sql", shelf / "current")).status_code == 200
        (tmp_path / "way-in").symlink_to(shelf)
        assert (await load(client, "json", tmp_path / "way-in" / "second")).status_code == 200

    async def test_a_link_that_appears_after_the_check(
        self, client: httpx.AsyncClient, shelf: Path, adapter_folders: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.rmtree(shelf / "first")
        (shelf / "first").symlink_to(adapter_folders[0])
        monkeypatch.setattr("os.path.realpath", str)
        assert error_of(await load(client, "sql", shelf / "first"))[0] in (404, 500)
        assert (await client.get("/api/v1/adapters")).json()["data"] == []

    async def test_files_that_are_too_large(self, client: httpx.AsyncClient, shelf: Path, state: State) -> None:
        state.settings = state.settings.model_copy(update={"max_adapter_bytes": 1000})
        status, kind, message = error_of(await load(client, "sql", shelf / "first"))
        assert (status, kind) == (400, "BadRequestError")
        assert message.startswith(
            "LoRA adapter 'sql' was found but could not be loaded. adapter_model.safetensors has "
        )
        assert message.endswith("this server takes at most 1,000.")

    @pytest.mark.parametrize("path", ["first", "./first", "~/first", "file:///tmp/x", "\0", "s3://a/b", " ", "a/../b"])
    async def test_neither_folder_nor_hub_id(self, client: httpx.AsyncClient, shelf: Path, path: str) -> None:
        status, kind, message = error_of(await load(client, "sql", path))
        assert (status, kind) == (400, "InvalidUserInput")
        assert "neither the absolute path of a folder nor owner/name@commit" in message

    async def test_a_path_with_a_nul(self, client: httpx.AsyncClient, shelf: Path) -> None:
        assert error_of(await load(client, "sql", f"{shelf}/\0first"))[0] == 400


class TestSGLang:
    async def test_load_and_unload(self, client: httpx.AsyncClient, engine: FakeEngine, shelf: Path) -> None:
        body = {"lora_name": "sql", "lora_path": str(shelf / "first"), "pinned": True}
        loaded = await client.post("/load_lora_adapter", json=body)
        [digest] = engine.registered
        expected = {"success": True, "error_message": None, "loaded_adapters": {"sql": digest}}
        assert (loaded.status_code, loaded.json()) == (200, expected)
        assert engine.registered[digest].pinned
        again = await client.post("/load_lora_adapter", json=body)
        assert (again.status_code, again.json()["success"]) == (400, False)
        assert "already been loaded" in again.json()["error_message"]
        unloaded = await client.post("/unload_lora_adapter", json={"lora_name": "sql"})
        expected = {"success": True, "error_message": None, "loaded_adapters": {}}
        assert (unloaded.status_code, unloaded.json()) == (200, expected)
        assert (await client.post("/unload_lora_adapter", json={"lora_name": "sql"})).status_code == 400


async def test_what_the_dashboard_added_is_unloaded_too(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    for folder in adapter_folders:
        await add(client, "sql", folder)
    assert (await client.post(UNLOAD, json={"lora_name": "sql"})).status_code == 200
    assert engine.registered == {}
