"""Anthropic's Messages API: what a chat answers, in blocks and events that the anthropic package's own types take."""

from typing import Any

import httpx
import pytest

from loraplex.web.state import State

from ..fake_engine import BASE_SENTENCE, MAX_MODEL_LEN, FakeEngine
from ..routed import PROD, VERSION, digests, put, until
from ..test_adapters_api import as_admin
from ..test_reasoning import TEMPLATE as THINKING_TEMPLATE
from ..test_responses import text_of
from ..tools import CALL, CHAT, HELLO, SCHEMA, SHORT, say, use_template
from .ask import COUNT, MESSAGES, ask, body_of, events_of

__all__ = ["as_admin", "digests"]
WEATHER = {"name": "weather", "input_schema": SCHEMA}
TIME = {"name": "time", "description": "What time it is", "input_schema": {"type": "object", "properties": {}}}
USED = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}


async def test_whole_answer(client: httpx.AsyncClient) -> None:
    message = await ask(client)
    assert message["id"].startswith("msg_") and (message["role"], message["model"]) == ("assistant", "tiny")
    assert message["content"] == [{"type": "text", "text": BASE_SENTENCE}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    chat = (await client.post(CHAT, json={"model": "tiny", "messages": HELLO})).json()["usage"]
    usage, cached = message["usage"], chat["prompt_tokens_details"]["cached_tokens"]
    assert cached == usage["cache_read_input_tokens"] == 4, "it is told apart, and not counted twice"
    assert usage["input_tokens"] == chat["prompt_tokens"] - cached
    assert usage["output_tokens"] == chat["completion_tokens"] and usage["cache_creation_input_tokens"] == 0


async def test_a_stream_tells_of_each_step(client: httpx.AsyncClient) -> None:
    whole, events = await ask(client), await events_of(client)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"] and set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    started, block = events[0]["message"], events[1]
    assert (started["content"], started["stop_reason"], started["role"]) == ([], None, "assistant")
    assert started["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert (block["index"], block["content_block"]) == (0, {"type": "text", "text": ""})
    assert {event["delta"]["type"] for event in events[2:-3]} == {"text_delta"}
    assert "".join(event["delta"]["text"] for event in events[2:-3]) == BASE_SENTENCE
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "max_tokens", None),
        ({"stop_sequences": ["lazy", "fox"]}, "stop_sequence", "fox"),
        ({"stop_sequences": ["never"]}, "end_turn", None),
        ({"max_tokens": 100_000}, "end_turn", None),
    ],
)
async def test_why_it_stopped(
    client: httpx.AsyncClient, fields: dict[str, Any], reason: str, sequence: str | None
) -> None:
    message, events = await ask(client, **fields), await events_of(client, **fields)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
    assert sequence is None or message["content"] == [{"type": "text", "text": BASE_SENTENCE.partition("fox")[0]}]


async def test_a_bound_beyond_the_context_is_cut_down(client: httpx.AsyncClient, state: State) -> None:
    say(state, "word " * MAX_MODEL_LEN)
    message = await ask(client, max_tokens=100_000)
    assert message["stop_reason"] == "model_context_window_exceeded"
    usage = message["usage"]
    assert sum(usage[name] for name in ("input_tokens", "cache_read_input_tokens", "output_tokens")) == MAX_MODEL_LEN
    assert (await ask(client, max_tokens=5))["stop_reason"] == "max_tokens"


async def test_what_the_engine_is_asked(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    fields = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "stop_sequences": ["zzz"], "max_tokens": 9, "seed": 3}
    await ask(client, **fields)
    params = engine.requests[-1].params
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.5, 7, 0.9, 3)
    assert (params.stop, params.max_tokens) == (["zzz"], 9)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    await ask(client, output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "low"})
    form = engine.requests[-1].params.structured_outputs
    assert form is not None and form.json is not None and '"a"' in form.json


TURNS: list[tuple[dict[str, Any], str]] = [
    ({"system": "Be brief."}, "<|system|>Be brief.<|user|>Hello<|assistant|>"),
    (
        {
            "system": [
                {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "b"},
            ]
        },
        "<|system|>a\nb<|user|>Hello<|assistant|>",
    ),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "one"}]},
                {"role": "user", "content": "two"},
                {"role": "assistant", "content": [{"type": "text", "text": "three", "citations": None}]},
                {"role": "user", "content": "four"},
            ]
        },
        "<|user|>one\ntwo<|assistant|>three<|user|>four<|assistant|>",
    ),
    (
        {"messages": [*HELLO, {"role": "assistant", "content": "It is"}]},
        "<|user|>Hello<|assistant|>It is",
    ),
    (
        {
            "messages": [
                *HELLO,
                {"role": "assistant", "content": [{"type": "text", "text": "See:"}, USED, {**USED, "id": "toolu_2"}]},
                {
                    "role": "user",
                    "content": [
                        RESULT,
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_2",
                            "content": [{"type": "text", "text": "rainy"}],
                        },
                        {"type": "text", "text": "Well?"},
                    ],
                },
            ]
        },
        '<|user|>Hello<|assistant|>See:<tool_call>{"name": "weather", "arguments": {"city": "Bern"}, "id": "toolu_1"}'
        '</tool_call><tool_call>{"name": "weather", "arguments": {"city": "Bern"}, "id": "toolu_2"}</tool_call>'
        "<|tool|>sunny(toolu_1)<|tool|>rainy(toolu_2)<|user|>Well?<|assistant|>",
    ),
]


@pytest.mark.parametrize(("fields", "prompt"), TURNS)
async def test_turns_become_the_prompt(
    client: httpx.AsyncClient, state: State, fields: dict[str, Any], prompt: str
) -> None:
    use_template(state, SHORT)
    await ask(client, **fields)
    assert text_of(state) == prompt
    assert isinstance(state.engine, FakeEngine)
    counted = await ask(client, path=COUNT, **fields)
    assert counted == {"input_tokens": len(state.engine.requests[-1].prompt_token_ids)}


async def test_tools_are_called(client: httpx.AsyncClient, state: State, engine: FakeEngine) -> None:
    use_template(state, SHORT)
    say(state, f"See:\n{CALL}")
    message = await ask(client, tools=[WEATHER, TIME])
    text, call = message["content"]
    assert text == {"type": "text", "text": "See:"} and message["stop_reason"] == "tool_use"
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Zürich", "days": 2})
    assert call["id"].startswith("toolu_") and "[weather][time]" in text_of(state)
    events = await events_of(client, tools=[WEATHER, TIME])
    begun = [event for event in events if event["type"] == "content_block_start"]
    assert [event["index"] for event in begun] == [0, 1]
    assert begun[1]["content_block"]["type"] == "tool_use" and begun[1]["content_block"]["input"] == {}
    pieces = [
        event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert "".join(pieces) == '{"city": "Zürich", "days": 2}' and events[-2]["delta"]["stop_reason"] == "tool_use"
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert stops == [0, 1] and events[-3]["type"] == "content_block_stop"


@pytest.mark.parametrize(
    ("choice", "told", "rule"),
    [
        ({"type": "auto"}, True, None),
        ({"type": "any"}, True, "start: calls"),
        ({"type": "tool", "name": "time"}, True, "start: calls"),
        ({"type": "none"}, False, None),
        ({"type": "auto", "disable_parallel_tool_use": True}, True, "start: TEXT | lead run"),
        ({"type": "auto", "disable_parallel_tool_use": False}, True, None),
    ],
)
async def test_what_is_chosen_is_enforced(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, choice: dict[str, Any], told: bool, rule: str | None
) -> None:
    use_template(state, SHORT)
    say(state, CALL)
    await ask(client, tools=[WEATHER, TIME], tool_choice=choice)
    form = engine.requests[-1].params.structured_outputs
    assert ("[weather][time]" in text_of(state)) == told
    assert (None if form is None or form.grammar is None else form.grammar.split("\n")[0]) == rule
    assert form is None or form.grammar is None or ("weather" not in form.grammar) == ("name" in choice)


async def test_a_call_that_is_cut_off_has_no_input(client: httpx.AsyncClient, state: State) -> None:
    use_template(state, SHORT)
    say(state, CALL)
    message = await ask(client, tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=40)
    assert message["stop_reason"] == "max_tokens"
    assert [block["input"] for block in message["content"] if block["type"] == "tool_use"] == [{}]
    for bound in (1, 8, 20):
        early: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": bound}
        message = await ask(client, **early)
        assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
        kinds = [event["type"] for event in await events_of(client, **early)]
        assert kinds == ["message_start", "message_delta", "message_stop"]


async def test_thinking_has_a_block_of_its_own(client: httpx.AsyncClient, state: State) -> None:
    use_template(state, THINKING_TEMPLATE)
    say(state, "<think>\nThe sun is up.\n</think>\n\nIt is day.")
    message = await ask(client)
    thinking, text = message["content"]
    assert thinking["thinking"] == "The sun is up." and thinking["signature"] and text["text"] == "It is day."
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    events = await events_of(client, thinking={"type": "enabled", "budget_tokens": 1024})
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "The sun is up."
    assert [delta["signature"] for delta in deltas if delta["type"] == "signature_delta"] == [thinking["signature"]]
    for hidden in ({"type": "disabled"}, {"type": "adaptive", "display": "omitted"}):
        assert (await ask(client, thinking=hidden))["content"] == [text]
    again = [*HELLO, {"role": "assistant", "content": [thinking, text]}, *HELLO]
    await ask(client, messages=again)
    assert "It is day.(The sun is up.)" in text_of(state)


async def test_the_template_is_told_whether_to_think(client: httpx.AsyncClient, state: State) -> None:
    use_template(state, "{{ enable_thinking is defined and enable_thinking }}{{ messages[0].content }}")
    prompts = []
    for fields in ({}, {"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive"}}):
        await ask(client, **fields)
        prompts.append(text_of(state))
    assert prompts == ["FalseHello", "FalseHello", "TrueHello"]


async def test_what_changes_nothing_is_named(client: httpx.AsyncClient) -> None:
    used = [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}]
    fields = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "foo": 1, "metadata": {"user_id": "me"}}
    answer = await client.post(MESSAGES, json=body_of(MESSAGES, {"messages": used, **fields}))
    assert answer.headers["x-loraplex-ignored-fields"] == "foo, thinking.budget_tokens"


async def test_a_stream_that_breaks_off_ends_with_an_error(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.crash_after = 2
    events = await events_of(client)
    assert [event["type"] for event in events[-2:]] == ["content_block_delta", "error"]
    assert events[-1]["error"]["type"] == "overloaded_error" and events[-1]["request_id"]


async def test_long_silences_have_pings(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.delay = 0.5
    answer = await client.post(MESSAGES, json=body_of(MESSAGES, {"stream": True, "max_tokens": 2}))
    assert 'event: ping\ndata: {"type":"ping"}\n\n' in answer.text and ": ping\n" not in answer.text.replace("t: ", "")


async def test_routes_shadows_and_the_log_know_it(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str], as_admin: None
) -> None:
    engine.resident = set(digests)
    await put(client, PROD, version=1)
    await put(client, f"{PROD}/shadow", version=2, percent=100)
    for stream in (False, True):
        body = body_of(MESSAGES, {"model": "sql@prod", "stream": stream, "temperature": 0})
        answer = await client.post(MESSAGES, json=body)
        assert answer.status_code == 200 and answer.headers[VERSION] == "sql@1"
    await until(lambda: not state.shadows._running)
    assert [request.adapters[0].digest for request in engine.requests].count(digests[1]) == 2
    ran = [one for one in state.metrics.log.of("default") if one.status == "stop"]
    assert len(ran) == 2 and all(one.completion_tokens > 0 for one in ran), "the requests page shows them"
    booked = state.quotas.ledger.unbooked_tokens(state.quotas.now().date().isoformat())
    spent = sum(one.prompt_tokens + one.completion_tokens for one in ran)
    assert [tokens for owner, tokens in booked.items() if owner[1].startswith("key:")] == [spent]
