"""Adapters whose weights look good are asked beside the base before they are served. The engine here is a fake one."""

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from loraplex.engine.ipc.client import EngineState
from loraplex.engine.protocol import LAST
from loraplex.registry.database.tables import DEFAULT_TENANT
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.registry.files.incoming import Blob
from loraplex.registry.snapshot import DesiredAdapter
from loraplex.web.adapters import effect_check
from loraplex.web.management.registration import FIELDS
from loraplex.web.state import State
from tests.checkpoints import make_adapter

from ..fake_engine import FakeEngine
from ..test_access import ORIGIN, log_in
from ..test_adapters_api import add, put, say

Headers = dict[str, str]
REPORT = "/api/v1/adapters/sql/report"


@pytest_asyncio.fixture(autouse=True)
async def as_admin(client: httpx.AsyncClient, admin: Headers, state: State) -> None:
    client.headers.update(admin)
    await state.reconciler.reconcile()
    assert state.reconciler.in_step, "what a test sees is not the first look at the desired state"


def effects(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(found["level"], found["message"]) for found in report["findings"] if found["check"] == "effect"]


async def send(client: httpx.AsyncClient, name: str, folder: Path) -> dict[str, str]:
    """The files alone: what a version is then made of."""
    sent = [(file, await put(client, name, file, (folder / file).read_bytes())) for file in (CONFIG_FILE, WEIGHTS_FILE)]
    return {FIELDS[file]: response.json()["sha256"] for file, response in sent}


async def forgotten(state: State, engine: FakeEngine) -> None:
    """Until nothing is left of a check: no adapter in the engine, no folder on the disk."""
    async with asyncio.timeout(60):
        while engine.registered or engine.running or list(state.registry.store.incoming.iterdir()):
            await asyncio.sleep(0.02)


async def unseen(client: httpx.AsyncClient, folder: Path) -> str:
    """Why the engine did not see what an adapter does that is served all the same."""
    response = await add(client, "sql", folder)
    assert response.status_code == 201, response.text
    (level, _), (warned, message) = effects(response.json()["report"])
    assert (level, warned) == ("pass", "warn")
    start = "its weights were checked, but the engine did not compare its logits with the base's: "
    assert message.startswith(start)
    return message.removeprefix(start)


async def test_the_report_says_what_changes(client: httpx.AsyncClient, adapter_folders: list[Path]) -> None:
    report = (await add(client, "sql", adapter_folders[0])).json()["report"]
    assert effects(report) == [
        ("pass", "4 modules change the answers"),
        (
            "pass",
            "the engine ran a prompt of 24 tokens with and without it: log-probabilities differ by up to 0.5",
        ),
    ]
    assert (await client.get(REPORT)).json() == report


async def test_three_rows_of_one_prompt_behind_all_others(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    digest = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    asked = engine.effect_checks
    assert [[ref.digest for ref in request.adapters] for request in asked] == [[], [], [digest]]
    assert len({tuple(request.prompt_token_ids) for request in asked}) == 1
    for request in asked:
        assert (request.tenant, request.priority) == (DEFAULT_TENANT, LAST)
        assert (request.params.max_tokens, request.params.prompt_logprobs) == (0, 0)
        prompt = request.prompt_token_ids
        assert prompt == sorted(set(prompt)) and (prompt[0], prompt[-1]) == (6, 313), "all over a vocabulary of 320"


async def test_tokens_that_it_is_about_are_in_the_prompt(
    client: httpx.AsyncClient, engine: FakeEngine, checkpoint: Path, tmp_path: Path
) -> None:
    judge = make_adapter(tmp_path / "judge", checkpoint, rank=2, alora_invocation_tokens=[313, 0])
    assert (await add(client, "judge", judge)).status_code == 201
    prompt = engine.effect_checks[-1].prompt_token_ids
    assert prompt[8:10] == [313, 0] and len(prompt) == 25
    assert not {313, 0} & {*prompt[:8], *prompt[10:]}
    trained = make_adapter(tmp_path / "tokens", checkpoint, rank=2, trainable_token_indices=[7, 300])
    assert (await add(client, "tokens", trained)).status_code == 201
    assert engine.effect_checks[-1].prompt_token_ids[8:10] == [7, 300]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shift": 0.0}, "the adapter does not change the logits: the engine ran a prompt of 24 tokens"),
        ({"shift": 0.25, "noise": 0.25}, "are the same, but for 0.25, as between two runs without it"),
        ({"shift": math.nan}, "with it, log-probabilities are not finite"),
        ({"shift": math.inf}, "with it, log-probabilities are not finite"),
    ],
)
async def test_no_change_is_refused_and_leaves_nothing(
    client: httpx.AsyncClient,
    state: State,
    engine: FakeEngine,
    adapter_folders: list[Path],
    change: dict[str, float],
    words: str,
) -> None:
    for name, value in change.items():
        setattr(engine, name, value)
    response = await add(client, "sql", adapter_folders[0])
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "preflight_failed")
    [(level, message)] = effects(response.json()["report"])
    assert level == "fail" and words in message and words in error["message"]
    assert all(found["remedy"] for found in response.json()["report"]["findings"] if found["level"] == "fail")
    assert engine.effect_checks
    await forgotten(state, engine)
    assert engine.resident == set()
    assert (await client.get("/api/v1/adapters")).json()["data"] == []
    assert list(state.registry.store.adapters.iterdir()) == []
    [refused] = (await client.get("/api/v1/audit", params={"action": "adapter.refuse"})).json()["data"]
    assert refused["detail"]["failed"] == ["effect"]


async def test_two_runs_of_the_base_may_differ_by_less(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    engine.shift, engine.noise = 0.5, 0.25
    assert (await add(client, "sql", adapter_folders[0])).status_code == 201


async def test_tokens_that_the_base_lacks_are_an_effect(
    client: httpx.AsyncClient, engine: FakeEngine, checkpoint: Path, tmp_path: Path
) -> None:
    engine.shift = 0.0
    grown = make_adapter(tmp_path / "grown", checkpoint, rank=2, vocab_size=330)
    report = (await add(client, "sql", grown)).json()["report"]
    assert effects(report)[-1][1].endswith("log-probabilities are the same, but it knows 330 tokens and the base 320")
    assert max(engine.effect_checks[-1].prompt_token_ids) < 320


async def test_the_upload_page_and_runtime_loading_say_the_same(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    sha256 = {}
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        sha256[FIELDS[file]] = (await put(client, "sql", file, (adapter_folders[0] / file).read_bytes())).json()[
            "sha256"
        ]
    headers, token = await log_in(state)
    post: Any = {"data": sha256, "headers": headers | ORIGIN | {"x-csrf-token": token}}
    good = await client.post("/adapters/sql/check", **post)
    assert good.status_code == 200 and "differ by up to 0.5" in good.text and "Register sql" in good.text
    await forgotten(state, engine)
    engine.shift = 0.0
    for action in ("check", "versions"):
        bad = await client.post(f"/adapters/sql/{action}", **post)
        assert "the adapter does not change the logits" in bad.text and "Register sql" not in bad.text
    state.settings = state.settings.model_copy(update={"adapter_folders": (adapter_folders[0].parent,)})
    order = {"lora_name": "sql", "lora_path": str(adapter_folders[0])}
    loaded = await client.post("/v1/load_lora_adapter", json=order)
    assert loaded.status_code == 400
    assert (
        "was found but could not be loaded" in loaded.text and "the adapter does not change the logits" in loaded.text
    )
    await forgotten(state, engine)


@pytest.mark.parametrize("condition", [EngineState.STARTING, EngineState.RESTARTING, EngineState.STOPPED])
async def test_without_an_engine_it_is_registered_with_a_warning(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path], condition: EngineState
) -> None:
    engine.state = condition
    assert await unseen(client, adapter_folders[0]) == f"the engine is {condition.value}"
    assert engine.effect_checks == []
    engine.state = EngineState.READY


async def test_an_engine_that_is_lost_meanwhile(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    engine.crash_after = 0
    assert await unseen(client, adapter_folders[0]) == "the engine stopped while this request ran"
    engine.crash_after, engine.state = None, EngineState.READY
    assert (await say(client, "sql")).status_code == 200


def no_room(engine: FakeEngine) -> None:
    engine.full = True


def busy(engine: FakeEngine) -> None:
    engine.delay = 1000.0


@pytest.mark.parametrize("trouble", [no_room, busy])
async def test_what_takes_too_long_is_given_up_and_goes_on_without(
    client: httpx.AsyncClient,
    state: State,
    engine: FakeEngine,
    adapter_folders: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[FakeEngine], None],
) -> None:
    monkeypatch.setattr(effect_check, "PATIENCE", 0.3)
    trouble(engine)
    names = ("one", "two")
    files = [await send(client, name, folder) for name, folder in zip(names, adapter_folders, strict=True)]
    orders = [
        client.post(f"/api/v1/adapters/{name}/versions", json=body) for name, body in zip(names, files, strict=True)
    ]
    async with asyncio.timeout(60):
        responses = await asyncio.gather(*orders)
    for response in responses:
        assert response.status_code == 201
        assert effects(response.json()["report"])[-1][1].endswith("base's: it was too busy for 0 s")
    assert engine.running == set() and len(engine.aborted) == len(engine.effect_checks)
    assert list(state.registry.store.incoming.iterdir()) == []
    engine.full, engine.delay = False, 0.0
    assert (await say(client, "one")).status_code == 200
    for name in names:
        await client.delete(f"/api/v1/adapters/{name}")
    await forgotten(state, engine)


async def test_a_folder_that_is_made_when_time_is_up_goes_all_the_same(
    client: httpx.AsyncClient, state: State, adapter_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = state.registry.store.stage

    def slowly(config: Blob, weights: Blob) -> Path:
        time.sleep(0.5)
        return stage(config, weights)

    monkeypatch.setattr(effect_check, "PATIENCE", 0.1)
    monkeypatch.setattr(state.registry.store, "stage", slowly)
    files = await send(client, "sql", adapter_folders[0])
    response = await client.post("/api/v1/adapters/sql/versions", json=files)
    assert "it was too busy" in effects(response.json()["report"])[-1][1]
    assert list(state.registry.store.incoming.iterdir()) == []


async def test_what_the_engine_refuses_is_told(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    engine.max_queue = 0
    assert await unseen(client, adapter_folders[0]) == "the queue is full"
    engine.max_queue = 1000
    [digest] = engine.registered
    await client.delete("/api/v1/adapters/sql")
    engine.unloadable.add(digest)
    assert await unseen(client, adapter_folders[0]) == "it does not fit beside the pinned adapters"
    engine.unloadable.clear()
    await client.delete("/api/v1/adapters/sql")
    engine.fails.add(digest)
    assert await unseen(client, adapter_folders[0]) == "the step failed"


async def test_what_the_engine_will_never_serve_is_refused_in_its_words(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    digest = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    await client.delete("/api/v1/adapters/sql")
    engine.unfit.add(digest)
    response = await add(client, "sql", adapter_folders[0])
    words = "the engine cannot serve it here: an output of no weight cannot be scaled"
    assert (response.status_code, response.json()["error"]["code"]) == (400, "preflight_failed")
    assert effects(response.json()["report"]) == [("fail", words)] and words in response.json()["error"]["message"]
    await forgotten(state, engine)
    assert (await client.get("/api/v1/adapters")).json()["data"] == []


async def test_the_operator_can_turn_it_off(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    state.settings = state.settings.model_copy(update={"preflight_logits": False})
    engine.shift = 0.0
    response = await add(client, "sql", adapter_folders[0])
    assert response.status_code == 201
    assert effects(response.json()["report"]) == [("pass", "4 modules change the answers")]
    assert engine.effect_checks == []


async def test_files_that_fail_are_not_taken_to_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, checkpoint: Path, tmp_path: Path
) -> None:
    untrained = make_adapter(tmp_path / "untrained", checkpoint, rank=2, alpha=1e-30)
    assert (await add(client, "sql", untrained)).status_code == 400
    assert engine.effect_checks == [] and not engine.loads


async def test_nobody_is_charged_for_it(client: httpx.AsyncClient, state: State, adapter_folders: list[Path]) -> None:
    assert (await add(client, "sql", adapter_folders[0])).status_code == 201
    assert (await say(client, "tiny")).status_code == 200
    async with asyncio.timeout(60):
        while not (rows := (await client.get("/api/v1/usage", params={"by": "adapter"})).json()["data"]):
            await asyncio.sleep(0.05)
    assert [(row["adapter_name"], row["requests"]) for row in rows] == [("tiny", 1)]
    assert [finished.model for finished in state.metrics.recent] == ["tiny"]
    assert 'model_name="sql"' not in (await client.get("/metrics")).text


async def test_one_that_is_served_already_stays_as_it_is(
    client: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    digest = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    await client.patch("/api/v1/adapters/sql", json={"pinned": True})
    told = engine.registered[digest]
    assert (await add(client, "other", adapter_folders[0])).status_code == 201
    engine.shift = 0.0
    assert (await add(client, "third", adapter_folders[0])).status_code == 400
    await asyncio.sleep(0.7)
    assert engine.registered == {digest: told} and digest in engine.resident


async def test_an_upload_that_is_broken_off_leaves_nothing(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    engine.full = True
    upload = asyncio.create_task(add(client, "sql", adapter_folders[0]))
    async with asyncio.timeout(60):
        while not engine.registered:
            await asyncio.sleep(0.01)
    upload.cancel()
    await asyncio.gather(upload, return_exceptions=True)
    await forgotten(state, engine)


async def test_one_that_becomes_wanted_during_a_visit_is_told_its_own_folder(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, adapter_folders: list[Path], tmp_path: Path
) -> None:
    digest = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    await client.patch("/api/v1/adapters/sql", json={"enabled": False})
    assert engine.registered == {}
    async with state.reconciler.visit(DesiredAdapter(digest, tmp_path, pinned=False)):
        assert engine.registered[digest].path == str(tmp_path)
        await client.patch("/api/v1/adapters/sql", json={"enabled": True})
        assert engine.registered[digest].path == str(state.registry.store.folder(digest))
    await state.reconciler.reconcile()
    assert list(engine.registered) == [digest]


async def test_a_second_visit_is_told_its_own_folder(
    state: State, client: httpx.AsyncClient, engine: FakeEngine, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        async with state.reconciler.visit(DesiredAdapter("d" * 64, tmp_path / name, pinned=False)):
            await state.reconciler.reconcile()
            assert engine.registered["d" * 64].path == str(tmp_path / name)
    await state.reconciler.reconcile()
    assert engine.registered == {} and state.reconciler.in_step
