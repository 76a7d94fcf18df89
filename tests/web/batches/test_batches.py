"""/v1/batches: each line is answered as the same request alone, counts once, and what is wrong is told by its line."""

import asyncio
import json
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from sqlalchemy import select

from loraplex.engine.protocol import LAST
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.access.quotas import Quota
from loraplex.registry.batches.journal import Record
from loraplex.registry.database import tables
from loraplex.registry.database.tables import utc_now
from loraplex.registry.usage.usage import UsageQuery
from loraplex.web.batches.appender import Appender
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state

from ..conftest import KEY, served
from ..fake_engine import BASE_SENTENCE, FakeEngine

ENDED = ("completed", "failed", "expired", "cancelled")
COMPLETIONS, CHATS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
Body = dict[str, Any]


def prompt(number: int, **more: Any) -> Body:
    return {"model": "tiny", "prompt": f"What is {number}?", "max_tokens": 4, **more}


def lines(bodies: Iterable[Body], url: str = COMPLETIONS) -> bytes:
    """With custom ids 0, 1, …"""
    rows = [{"custom_id": str(index), "method": "POST", "url": url, "body": body} for index, body in enumerate(bodies)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


async def begin(client: httpx.AsyncClient, content: bytes, endpoint: str = COMPLETIONS, **more: Any) -> dict[str, Any]:
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
    file = (await client.post("/v1/files", **form)).json()
    body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h", **more}
    answer = await client.post("/v1/batches", json=body)
    assert answer.status_code == 200, answer.text
    batch: dict[str, Any] = answer.json()
    return batch


async def until_ended(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            batch: dict[str, Any] = (await client.get(f"/v1/batches/{id}")).json()
            if batch["status"] in ENDED:
                return batch
            await asyncio.sleep(0.02)


async def results(client: httpx.AsyncClient, batch: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Lines of the output or error file by custom id; each once."""
    id = batch[f"{kind}_file_id"]
    if id is None:
        return {}
    rows = [json.loads(row) for row in (await client.get(f"/v1/files/{id}/content")).text.splitlines()]
    found = {str(row["custom_id"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def same(body: Any) -> Any:
    """Without what is each answer's own."""
    if isinstance(body, dict):
        own = ("id", "created", "created_at", "completed_at", "cached_tokens")
        return {name: same(value) for name, value in body.items() if name not in own}
    return [same(one) for one in body] if isinstance(body, list) else body


@pytest.mark.parametrize(
    ("endpoint", "bodies"),
    [
        (COMPLETIONS, [prompt(1), prompt(2, n=2, logprobs=1), prompt(3, echo=True, temperature=0), {"model": "x"}]),
        (CHATS, [{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}, {"stop": 1}]),
        (EMBEDDINGS, [{"model": "tiny", "input": ["Hi", "there"]}, {"model": "tiny", "input": 5}]),
        (RESPONSES, [{"model": "tiny", "input": "Hi", "max_output_tokens": 16}, {"model": "tiny", "input": 5}]),
    ],
)
async def test_a_line_is_answered_as_the_request_alone(
    client: httpx.AsyncClient, endpoint: str, bodies: list[Body]
) -> None:
    alone = [await client.post(endpoint, json=body) for body in bodies]
    batch = await until_ended(client, (await begin(client, lines(bodies, endpoint), endpoint))["id"])
    assert batch["status"] == "completed"
    good, bad = await results(client, batch, "output"), await results(client, batch, "error")
    assert good.keys() == {str(index) for index, answer in enumerate(alone) if answer.status_code == 200}
    assert good and bad
    for index, answer in enumerate(alone):
        row = (good | bad)[str(index)]
        assert row["error"] is None
        assert row["response"]["status_code"] == answer.status_code
        assert row["response"]["request_id"] == row["id"]
        assert same(row["response"]["body"]) == same(answer.json())
        assert row.get("line") == (None if answer.status_code == 200 else index + 1)


async def test_a_batch_as_openai_has_it(client: httpx.AsyncClient) -> None:
    made = await begin(client, lines([prompt(1), prompt(2), {}]), metadata={"job": "night"})
    assert made["object"] == "batch" and made["id"].startswith("batch_")
    assert (made["status"], made["endpoint"], made["completion_window"]) == ("validating", COMPLETIONS, "24h")
    assert made["expires_at"] == pytest.approx(made["created_at"] + 86400, abs=1)
    assert made["metadata"] == {"job": "night"} and made["errors"] is None
    batch = await until_ended(client, made["id"])
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    moments = [batch[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed")]
    assert moments == sorted(moments)
    assert not [batch[f"{name}_at"] for name in ("failed", "expired", "cancelling", "cancelled") if batch[f"{name}_at"]]
    good = await results(client, batch, "output")
    assert batch["usage"]["output_tokens"] == 8
    prompts = sum(row["response"]["body"]["usage"]["prompt_tokens"] for row in good.values())
    assert batch["usage"]["input_tokens"] == prompts and batch["usage"]["total_tokens"] == prompts + 8
    file = (await client.get(f"/v1/files/{batch['output_file_id']}")).json()
    assert (file["purpose"], file["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")
    assert (await client.get("/v1/batches")).json()["data"] == [batch]


async def test_openais_client(client: httpx.AsyncClient) -> None:
    openai = AsyncOpenAI(base_url="http://test/v1", api_key=KEY, http_client=client, max_retries=0)
    file = await openai.files.create(file=("in.jsonl", lines([prompt(1), prompt(2)])), purpose="batch")
    batch = await openai.batches.create(
        input_file_id=file.id,
        endpoint="/v1/completions",
        completion_window="24h",
        metadata={"a": "b"},
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    while batch.status not in ENDED:
        await asyncio.sleep(0.05)
        batch = await openai.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.output_file_id is not None and batch.error_file_id is None
    assert batch.request_counts is not None and batch.request_counts.completed == 2
    rows = [json.loads(row) for row in (await openai.files.content(batch.output_file_id)).text.splitlines()]
    assert {row["custom_id"] for row in rows} == {"0", "1"}
    output = await openai.files.retrieve(batch.output_file_id)
    assert output.expires_at == pytest.approx(output.created_at + 3600, abs=2)
    assert [one.id async for one in openai.batches.list(limit=1)] == [batch.id]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"completion_window": "1h"}, "completion_window"),
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_a_wrong_field_is_named(client: httpx.AsyncClient, change: Body, param: str) -> None:
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"{}")}}
    id = (await client.post("/v1/files", **form)).json()["id"]
    body = {"input_file_id": id, "endpoint": COMPLETIONS, "completion_window": "24h"} | change
    answer = await client.post("/v1/batches", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_a_batch_of_what_is_no_input_file(client: httpx.AsyncClient) -> None:
    batch = await until_ended(client, (await begin(client, lines([prompt(1)])))["id"])
    for id in ("file-none", batch["output_file_id"]):
        body = {"input_file_id": id, "endpoint": COMPLETIONS, "completion_window": "24h"}
        answer = await client.post("/v1/batches", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "input_file_id")
    for path, method in (("/v1/batches/batch_none", "GET"), ("/v1/batches/batch_none/cancel", "POST")):
        answer = await client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "batch_id")


async def test_a_wrong_line_is_a_line_of_the_error_file(client: httpx.AsyncClient, state: State) -> None:
    good = {"custom_id": "good", "method": "POST", "url": COMPLETIONS, "body": prompt(1)}
    rows = [
        (good, None, None),
        (good | {"custom_id": "method", "method": "GET"}, "invalid_method", "method"),
        (good | {"custom_id": "url", "url": CHATS}, "mismatched_url", "url"),
        (good | {"custom_id": "body", "body": [1]}, "invalid_body", "body"),
        ({"custom_id": "none", "method": "POST", "url": COMPLETIONS}, "invalid_body", "body"),
        (good | {"custom_id": "stream", "body": prompt(1, stream=True)}, "unsupported", "body.stream"),
    ]
    content = b"\xef\xbb\xbf" + b"\n".join(json.dumps(row).encode() for row, _, _ in rows) + b'\n\n  \n{"half'
    batch = await until_ended(client, (await begin(client, content))["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 7, "completed": 1, "failed": 6}
    bad = await results(client, batch, "error")
    for number, (row, code, param) in enumerate(rows, 1):
        if code is not None:
            told = bad[row["custom_id"]]
            assert (told["error"]["code"], told["error"]["param"], told["line"]) == (code, param, number)
            assert told["response"] is None and told["error"]["message"].startswith(f"Line {number}: ")
    assert (bad["None"]["error"]["code"], bad["None"]["line"]) == ("invalid_json_line", 9)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            f'{{"custom_id": "a", "custom_id": "b", "method": "POST", "url": "{COMPLETIONS}", "body": BODY}}',
            "custom_id",
        ),
        (f'{{"custom_id": "a", "method": "POST", "url": "{COMPLETIONS}", "body": BODY, "body": BODY}}', "body"),
        (f'{{"custom_id": "a", "method": "POST", "url": "{COMPLETIONS}", "body": {{"x": 1}}, "body": BODY}}', "body"),
        (f'{{"custom_id": "a", "method": "POST", "url": "{COMPLETIONS}", "body": BODY, "x": {{"y": 1, "y": 1}}}}', "y"),
        (f'{{"ur\\u006c": "/v1/x", "custom_id": "a", "method": "POST", "url": "{COMPLETIONS}", "body": BODY}}', "url"),
    ],
)
async def test_a_name_that_stands_twice_makes_a_line_wrong(
    client: httpx.AsyncClient, engine: FakeEngine, line: str, name: str
) -> None:
    content = lines([prompt(1)]) + line.replace("BODY", json.dumps(prompt(2))).encode()
    batch = await until_ended(client, (await begin(client, content))["id"])
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1} and len(engine.requests) == 1
    told = (await results(client, batch, "error"))["None"]
    assert (told["error"]["code"], told["line"], told["response"]) == ("invalid_json_line", 2, None)
    assert f"the name '{name}' appears twice in one object" in told["error"]["message"]


@pytest.mark.parametrize("body", ['{"model": "tiny", "model": "x", "prompt": "a"}', "{}", "{ }"])
async def test_of_a_body_its_endpoint_speaks(client: httpx.AsyncClient, body: str) -> None:
    line = f'{{"custom_id": "a{{}}b{{ }}", "method": "POST", "url": "{COMPLETIONS}", "body": {body}}}'
    batch = await until_ended(client, (await begin(client, line.encode()))["id"])
    told = (await results(client, batch, "error"))["a{}b{ }"]
    alone = await client.post(COMPLETIONS, content=body)
    assert (alone.status_code, told["response"]["body"]) == (400, alone.json())


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (b"\n \n", "empty_file", None),
        (b"a,b\nc,d\n", "invalid_json_line", 1),
        (lines([prompt(1)]) + lines([prompt(2)]), "duplicate_custom_id", 2),
        (lines([prompt(1)]) + b'{"method": "POST"}', "invalid_custom_id", 2),
        (lines([prompt(1)]) + b'{"custom_id": ""}', "invalid_custom_id", 2),
        (lines([prompt(1)]) + b'{"custom_id": 5}', "invalid_custom_id", 2),
        (lines(map(prompt, range(5))), "too_many_lines", None),
        (b'{"custom_id": "a", "x": "' + b"a" * (2 << 20), "line_too_long", 1),
    ],
)
async def test_a_file_that_cannot_run_fails_as_a_whole(
    state: State, engine: FakeEngine, content: bytes, code: str, line: int | None
) -> None:
    state.settings = state.settings.model_copy(update={"max_batch_lines": 4})
    async with served(state) as client:
        batch = await until_ended(client, (await begin(client, content))["id"])
    assert batch["status"] == "failed" and batch["failed_at"] is not None
    error = batch["errors"]["data"][0]
    assert (error["code"], error["line"]) == (code, line), error
    assert batch["errors"]["object"] == "list" and engine.requests == []
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)


async def test_lines_run_behind_everything_else_and_count_as_the_keys_requests(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    batch = await until_ended(client, (await begin(client, lines(map(prompt, range(3)))))["id"])
    assert batch["status"] == "completed"
    assert {request.priority for request in engine.requests} == {LAST}
    [row] = state.registry.usage.sums(UsageQuery(by=("key",)))
    assert (row.requests, row.errors, row.completion_tokens) == (3, 0, 12)
    assert row.prompt_tokens == batch["usage"]["input_tokens"]
    await client.post(COMPLETIONS, json=prompt(9))
    assert engine.requests[-1].priority == 0


async def test_a_cancelled_batch_keeps_what_has_run(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.delay = 0.05
    made = await begin(client, lines(map(prompt, range(200))))
    while (await client.get(f"/v1/batches/{made['id']}")).json()["request_counts"]["completed"] < 5:
        await asyncio.sleep(0.02)
    cancelled = await client.post(f"/v1/batches/{made['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelling")
    batch = await until_ended(client, made["id"])
    assert batch["status"] == "cancelled" and batch["cancelled_at"] >= batch["cancelling_at"]
    counts = batch["request_counts"]
    assert 5 <= counts["completed"] < 200 and counts["failed"] == 0
    assert len(await results(client, batch, "output")) == counts["completed"]
    assert counts["total"] == 200 and batch["error_file_id"] is None, "lines that never ran are in no file"
    assert not engine.running
    again = await client.post(f"/v1/batches/{made['id']}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "batch_ended")


async def test_an_expired_batch_says_which_lines_had_no_time(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    engine.delay = 0.05
    made = await begin(client, lines(map(prompt, range(200))))
    while (await client.get(f"/v1/batches/{made['id']}")).json()["request_counts"]["completed"] < 5:
        await asyncio.sleep(0.02)
    with state.registry.database.write() as session:
        session.query(tables.Batch).update({"expires_at": utc_now() - timedelta(seconds=1)})
    batch = await until_ended(client, made["id"])
    assert batch["status"] == "expired" and batch["expired_at"] is not None
    good, bad = await results(client, batch, "output"), await results(client, batch, "error")
    assert good.keys() | bad.keys() == {str(number) for number in range(200)} and not good.keys() & bad.keys()
    assert batch["request_counts"] == {"total": 200, "completed": len(good), "failed": len(bad)}
    assert {row["error"]["code"] for row in bad.values()} == {"batch_expired"}


@pytest.mark.parametrize("how", ["revoked", "disabled"])
async def test_a_batch_stops_with_its_maker(state: State, engine: FakeEngine, how: str) -> None:
    engine.delay, registry = 0.05, state.registry
    registry.tenants.create("acme", actor="system")
    key = registry.keys.create("k", ["inference"], actor="system", tenant="acme")
    watcher = registry.keys.create("w", ["admin"], actor="system").token
    registry.snapshots.refresh()
    async with served(state) as client:
        client.headers["authorization"] = f"Bearer {key.token}"
        made = await begin(client, lines(map(prompt, range(200))))
        while (await client.get(f"/v1/batches/{made['id']}")).json()["request_counts"]["completed"] < 5:
            await asyncio.sleep(0.02)
        client.headers["authorization"] = f"Bearer {watcher}"
        client.params = client.params.set("tenant", "acme")
        if how == "disabled":
            registry.tenants.set_disabled("acme", True, actor="system")
        else:
            registry.keys.revoke(key.key.prefix, actor="system", tenant="acme")
        registry.snapshots.refresh()
        batch = await until_ended(client, made["id"])
        assert batch["status"] == "failed"
        [error] = batch["errors"]["data"]
        assert error["code"] == ("tenant_disabled" if how == "disabled" else "key_revoked")
        assert 5 <= batch["request_counts"]["completed"] < 200
        assert len(await results(client, batch, "output")) == batch["request_counts"]["completed"]


async def test_limits_of_the_key_make_lines_wait_and_not_fail(state: State) -> None:
    quota = Quota(max_concurrent=2, tokens_per_minute=100_000)
    token = state.registry.keys.create("k", ["inference"], actor="system", quota=quota).token
    state.registry.snapshots.refresh()
    async with served(state) as client:
        client.headers["authorization"] = f"Bearer {token}"
        bodies = [*map(prompt, range(6)), prompt(0, max_tokens=200, n=8, prompt=["a"] * 100)]
        batch = await until_ended(client, (await begin(client, lines(bodies)))["id"])
        assert batch["request_counts"] == {"total": 7, "completed": 6, "failed": 1}
        bad = await results(client, batch, "error")
    assert bad["6"]["response"]["status_code"] == 429
    assert bad["6"]["response"]["body"]["error"]["code"] == "request_too_large"


async def test_a_line_that_the_engine_loses_runs_again(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.crash_after = 2
    made = await begin(client, lines(map(prompt, range(4))))
    while not engine.requests:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    engine.crash_after = None
    await engine.start()
    batch = await until_ended(client, made["id"])
    assert batch["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
    good = await results(client, batch, "output")
    texts = {row["response"]["body"]["choices"][0]["text"] for row in good.values()}
    assert len(texts) == 1 and BASE_SENTENCE.startswith(texts.pop())


async def test_a_server_that_stops_leaves_the_batch_to_the_next(
    state: State, engine: FakeEngine, settings: Settings, checkpoint: Path
) -> None:
    engine.delay = 0.03
    async with served(state) as client:
        made = await begin(client, lines(map(prompt, range(60))))
        while (await client.get(f"/v1/batches/{made['id']}")).json()["request_counts"]["completed"] < 5:
            await asyncio.sleep(0.02)
    again = open_state(settings, checkpoint, FakeEngine(Tokenizer(checkpoint)))
    async with served(again) as client:
        batch = await until_ended(client, made["id"])
        assert batch["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
        assert (await results(client, batch, "output")).keys() == {str(number) for number in range(60)}
        assert isinstance(again.engine, FakeEngine) and len(again.engine.requests) < 60
    [row] = again.registry.usage.sums(UsageQuery(by=()))
    assert (row.requests, row.unknown, row.completion_tokens) == (60, 0, 240)
    assert not [*again.registry.store.batches.iterdir()]


async def test_a_response_of_a_line_that_runs_again_is_kept_once(
    state: State, engine: FakeEngine, settings: Settings, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server dies between the response's row and the line's record."""
    async with served(state) as client:
        with monkeypatch.context() as lost:
            lost.setattr(Appender, "append", never)
            asked = [{"model": "tiny", "input": f"What is {number}?"} for number in range(8)]
            made = await begin(client, lines(asked, RESPONSES), RESPONSES)
            async with asyncio.timeout(20):
                while len(kept_responses(state)) < 5:
                    await asyncio.sleep(0.02)
            first = kept_responses(state)
    again = open_state(settings, checkpoint, FakeEngine(Tokenizer(checkpoint)))
    async with served(again) as client:
        batch = await until_ended(client, made["id"])
        rows = (await results(client, batch, "output")).values()
        ids = {row["response"]["body"]["id"] for row in rows}
        assert len(ids) == 8 and kept_responses(again) == ids and first <= ids
        for row in rows:
            body = row["response"]["body"]
            assert (await client.get(f"/v1/responses/{body['id']}")).json() == body


async def never(appender: Appender, record: Record) -> None:
    await asyncio.Event().wait()


def kept_responses(state: State) -> set[str]:
    with state.registry.database.read() as session:
        return set(session.scalars(select(tables.StoredResponse.id)))


async def test_users_come_first(state: State, engine: FakeEngine) -> None:
    """While users ask, one line runs; when they are quiet, many do."""
    engine.delay = 0.02
    async with served(state) as client:
        asking = [asyncio.create_task(ask_for_ever(client)) for _ in range(2)]
        made = await begin(client, lines(map(prompt, range(300))))
        most = 0
        for _ in range(60):
            await asyncio.sleep(0.02)
            running = [one for one in engine.requests if one.request_id in engine.running and one.priority == LAST]
            most = max(most, len(running))
        assert most == 1
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        async with asyncio.timeout(10):
            while len(engine.running) < state.settings.batch_concurrency:
                await asyncio.sleep(0.01)
        await client.post(f"/v1/batches/{made['id']}/cancel")
        await until_ended(client, made["id"])


async def ask_for_ever(client: httpx.AsyncClient) -> None:
    while True:
        await client.post(COMPLETIONS, json=prompt(0, max_tokens=20))


async def test_a_key_of_some_adapters_sees_its_own_batches(state: State) -> None:
    token = state.registry.keys.create("one", ["inference"], actor="system", adapters=["tiny"]).token
    state.registry.snapshots.refresh()
    async with served(state) as client:
        others = await begin(client, lines([prompt(1)]))
        client.headers["authorization"] = f"Bearer {token}"
        assert (await client.get(f"/v1/batches/{others['id']}")).status_code == 404
        own = await until_ended(client, (await begin(client, lines([prompt(1), prompt(2, model="sql")])))["id"])
        assert [batch["id"] for batch in (await client.get("/v1/batches")).json()["data"]] == [own["id"]]
        assert own["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
