"""Responses that are kept: followed, read, listed and deleted; by whom, and for how long."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseItemList
from sqlalchemy.exc import OperationalError

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.stored_responses import Bounds, StoredResponses
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state

from ..conftest import served
from ..fake_engine import BASE_SENTENCE, FakeEngine
from ..test_responses import RESPONSES, TOOLS, ask, events_of, text_of
from ..tools import CALL, SHORT, say, use_template


async def follow(client: httpx.AsyncClient, previous: str, **fields: Any) -> Any:
    return await ask(client, previous_response_id=previous, **fields)


async def prompt_of(client: httpx.AsyncClient, state: State, **fields: Any) -> str:
    await ask(client, **fields, store=False)
    return text_of(state)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_follows_another(client: httpx.AsyncClient, state: State, stream: bool) -> None:
    use_template(state, SHORT)
    if stream:
        final = (await events_of(client, input="one", instructions="Be brief."))[-1]["response"]
    else:
        final = await ask(client, input="one", instructions="Be brief.")
    assert final["store"] is True
    second = await follow(client, final["id"], input=[{"role": "user", "content": "two"}])
    assert second["previous_response_id"] == final["id"]
    said = f"<|user|>one<|assistant|>{BASE_SENTENCE}<|user|>two<|assistant|>"
    assert text_of(state) == said, "the instructions of before are not carried over"
    await follow(client, second["id"], input="three", instructions="Be kind.")
    assert text_of(state) == f"<|system|>Be kind.{said}{BASE_SENTENCE}<|user|>three<|assistant|>"
    await follow(client, final["id"], input="other")
    assert text_of(state) == f"<|user|>one<|assistant|>{BASE_SENTENCE}<|user|>other<|assistant|>"


async def test_calls_are_answered_without_being_sent_again(client: httpx.AsyncClient, state: State) -> None:
    use_template(state, SHORT)
    say(state, CALL)
    called = await ask(client, tools=TOOLS)
    [call] = called["output"]
    say(state, "Sunny.")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
    await follow(client, called["id"], input=[output], tools=TOOLS)
    assert f'"id": "{call["call_id"]}"' in text_of(state) and f"<|tool|>sun({call['call_id']})" in text_of(state)


async def test_it_is_read_listed_and_deleted(client: httpx.AsyncClient) -> None:
    sent = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "3"},
    ]
    made = await ask(client, input=sent, metadata={"run": "7"})
    path = f"{RESPONSES}/{made['id']}"
    assert (await client.get(path)).json() == made
    listed = (await client.get(f"{path}/input_items")).json()
    ResponseItemList.model_validate(listed)
    assert [item["content"][0]["text"] for item in listed["data"]] == ["3", "two", "one"]
    assert [item["content"][0]["type"] for item in listed["data"]] == ["input_text", "output_text", "input_text"]
    assert listed["first_id"] == listed["data"][0]["id"] and listed["has_more"] is False
    page = (await client.get(f"{path}/input_items", params={"order": "asc", "limit": 1})).json()
    assert page["data"] == [listed["data"][2]] and page["has_more"] is True
    rest = (await client.get(f"{path}/input_items", params={"order": "asc", "after": page["last_id"]})).json()
    assert rest["data"] == [listed["data"][1], listed["data"][0]] and rest["has_more"] is False
    assert (await client.get(f"{path}/input_items", params={"after": "msg_x"})).status_code == 404
    assert (await client.get(path, params={"stream": True})).json()["error"]["param"] == "stream"
    cancelled = await client.post(f"{path}/cancel")
    assert cancelled.status_code == 400 and "synchronous" in cancelled.json()["error"]["message"]
    assert (await client.delete(path)).json() == {"id": made["id"], "object": "response", "deleted": True}
    for gone in (await client.get(path), await client.delete(path), await client.get(f"{path}/input_items")):
        assert gone.status_code == 404 and "not found" in gone.json()["error"]["message"]
    error = await ask(client, 400, previous_response_id=made["id"])
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")


async def test_what_is_not_to_be_kept_is_not(client: httpx.AsyncClient) -> None:
    made = await ask(client, store=False)
    assert made["store"] is False and (await client.get(f"{RESPONSES}/{made['id']}")).status_code == 404
    cut = await ask(client, max_output_tokens=3)
    assert (await client.get(f"{RESPONSES}/{cut['id']}")).json()["status"] == "incomplete"


async def test_one_that_breaks_off_is_not_kept(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.crash_after = 2
    events = await events_of(client)
    assert (await client.get(f"{RESPONSES}/{events[0]['response']['id']}")).status_code == 404


async def test_a_key_for_some_models_sees_its_own_alone(client: httpx.AsyncClient, state: State) -> None:
    mine = (await ask(client))["id"]
    tokens = [state.registry.keys.create(n, ["inference"], actor="system", adapters=["tiny"]).token for n in "ab"]
    state.registry.snapshots.refresh()
    first, second = ({"authorization": f"Bearer {token}"} for token in tokens)
    theirs = (await client.post(RESPONSES, json={"model": "tiny", "input": "x"}, headers=first)).json()["id"]
    found = [
        (await client.get(f"{RESPONSES}/{id}", headers=headers)).status_code
        for id, headers in ((theirs, first), (theirs, second), (mine, first), (theirs, {}))
    ]
    assert found == [200, 404, 404, 200]
    body = {"model": "tiny", "input": "x", "previous_response_id": theirs}
    statuses = [(await client.post(RESPONSES, json=body, headers=headers)).status_code for headers in (first, second)]
    assert statuses == [200, 400]


async def test_it_survives_a_restart(settings: Settings, state: State, checkpoint: Path) -> None:
    async with served(state) as client:
        made = await ask(client)
    async with served(open_state(settings, checkpoint, FakeEngine(Tokenizer(checkpoint)))) as client:
        assert (await client.get(f"{RESPONSES}/{made['id']}")).json() == made
        assert (await follow(client, made["id"]))["status"] == "completed"


async def test_old_ones_go(client: httpx.AsyncClient, state: State) -> None:
    made = await ask(client)
    state.registry.responses.prune(Bounds(timedelta(days=1), 10, 1 << 20))
    assert (await client.get(f"{RESPONSES}/{made['id']}")).status_code == 200
    state.registry.responses.prune(Bounds(timedelta(0), 10, 1 << 20))
    assert (await client.get(f"{RESPONSES}/{made['id']}")).status_code == 404


async def test_what_is_too_much_goes_in_the_background(state: State, settings: Settings) -> None:
    seen, pruned = list[Bounds](), StoredResponses.prune

    def note(self: StoredResponses, bounds: Bounds) -> int:
        seen.append(bounds)
        return pruned(self, bounds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredResponses, "prune", note)
        async with served(state):
            while not seen:
                await asyncio.sleep(0.01)
    most = int(settings.max_stored_response_bytes)
    assert seen == [Bounds(timedelta(days=30), settings.max_stored_responses, most)]


async def test_a_server_that_keeps_nothing_says_so(client: httpx.AsyncClient, state: State) -> None:
    state.settings = state.settings.model_copy(update={"response_days": 0})
    made = await ask(client)
    assert made["store"] is False and (await client.get(f"{RESPONSES}/{made['id']}")).status_code == 404
    error = await ask(client, 400, previous_response_id=made["id"])
    assert "response_days is 0" in error["message"] and error["param"] == "previous_response_id"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_does_not_wait_for_a_database_that_is_away(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def fail(*_: Any) -> None:
        raise OperationalError("insert", {}, Exception("disk I/O error"))

    monkeypatch.setattr(StoredResponses, "put", fail)
    made = (await events_of(client))[-1]["response"] if stream else await ask(client)
    assert made["store"] is False and made["output"][0]["content"][0]["text"] == BASE_SENTENCE


async def test_tokens_of_an_input_are_counted(client: httpx.AsyncClient, state: State, engine: FakeEngine) -> None:
    use_template(state, SHORT)
    first = await ask(client, input="one")
    fields = {"input": "two", "instructions": "Be brief.", "tools": TOOLS, "previous_response_id": first["id"]}
    counted = await client.post(f"{RESPONSES}/input_tokens", json={"model": "tiny", **fields})
    before = len(engine.requests)
    made = await ask(client, **fields)
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": made["usage"]["input_tokens"]}
    assert len(engine.requests) == before + 1
    refused = await client.post(f"{RESPONSES}/input_tokens", json={"model": "tiny", "input": [{"role": "x"}]})
    assert refused.json()["error"]["param"] == "input[0].role"
