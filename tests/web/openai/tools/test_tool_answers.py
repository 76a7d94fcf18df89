"""What models write becomes calls, whole and streamed."""

import functools
import json
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken

from loraplex.web.http import off_loop
from loraplex.web.openai import chat_format
from loraplex.web.state import State

from ...fake_engine import BASE_SENTENCE, FakeEngine
from ...test_adapters_api import as_admin
from ...test_chat import chunks
from ...test_own_tokenizer import register
from ...test_streams import server
from ...tools import CALL, HELLO, SCHEMA, STRICT, TIME, WEATHER, ask, say, with_tools

__all__ = ["as_admin", "server", "with_tools"]


def joined(events: list[Any], index: int = 0) -> tuple[str, list[dict[str, Any]], str | None]:
    """Words, calls and finish reason of a choice, put together as clients do it; the rules of deltas hold."""
    words, calls, finish = "", list[dict[str, Any]](), None
    for event in events[:-1]:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            assert choice["delta"].get("content") != "", "an empty text beside calls"
            words += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls", ()):
                if part["index"] == len(calls):
                    assert set(part) == {"index", "id", "type", "function"} and part["type"] == "function"
                    assert part["id"].startswith("call_") and part["function"]["arguments"] == ""
                    calls.append({**part["function"], "id": part["id"]})
                else:
                    assert set(part) == {"index", "function"} and set(part["function"]) == {"arguments"}
                    assert part["index"] == len(calls) - 1
                    calls[-1]["arguments"] += part["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    return words, calls, finish


async def test_whole_answer(client: httpx.AsyncClient, state: State) -> None:
    choice = (await ask(client))["choices"][0]
    message = choice["message"]
    [call] = message.pop("tool_calls")
    assert message == {"role": "assistant", "content": None, "refusal": None}
    assert choice["finish_reason"] == "tool_calls"
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich", "days": 2}'}}

    say(state, f'Let me see.\n{CALL}\n<tool_call>{{"name": "time"}}</tool_call>')
    message = (await ask(client))["choices"][0]["message"]
    assert message["content"] == "Let me see."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather", "time"]
    assert len({call["id"] for call in message["tool_calls"]}) == 2

    say(state, BASE_SENTENCE)
    choice = (await ask(client))["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": BASE_SENTENCE, "refusal": None}
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "text",
    ['<tool_call>{"name": "weather", "arguments": {oops}}</tool_call>', '<tool_call>{"name": "nobody"}</tool_call>'],
)
async def test_what_is_no_call_stays_as_it_is(client: httpx.AsyncClient, state: State, text: str) -> None:
    say(state, text)
    choice = (await ask(client))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert "tool_calls" not in choice["message"]


async def test_streams_say_what_whole_answers_say(client: httpx.AsyncClient, state: State, engine: FakeEngine) -> None:
    say(state, f'Ça va 😀 <b>\n{CALL}\n<tool_call>{{"name": "time"}}</tool_call>')
    engine.stagger = 2
    asked = {"n": 2, "logprobs": True, "top_logprobs": 1, "max_tokens": 150}
    whole = (await ask(client, **asked))["choices"]
    events = await chunks(
        client, messages=HELLO, tools=[WEATHER, TIME], stream_options={"include_usage": True}, **asked
    )
    for index, choice in enumerate(whole):
        words, calls, finish = joined(events, index)
        assert (words, finish) == (choice["message"]["content"], "tool_calls") == ("Ça va 😀 <b>", "tool_calls")
        told = [call["function"] for call in choice["message"]["tool_calls"]]
        assert [{name: call[name] for name in ("name", "arguments")} for call in calls] == told
        parts = [c["logprobs"] for event in events[:-2] for c in event["choices"] if c["index"] == index]
        assert [entry for part in parts if part for entry in part["content"]] == choice["logprobs"]["content"]
    pieces = sum('"arguments"' in json.dumps(event) for event in events[:-1])
    assert pieces > 20, "arguments come as they are drawn"
    assert events[-2]["usage"]["completion_tokens"] > 60


@pytest.mark.parametrize(
    ("text", "fields"),
    [(f"{CALL}\n" * 2, {}), ("Hm", {"logprobs": True, "top_logprobs": 20, "n": 2})],
)
async def test_long_answers_are_read_on_a_thread(
    client: httpx.AsyncClient, state: State, text: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nobody waits for them who did not ask for them."""
    monkeypatch.setattr(off_loop, "INLINE_CHARS", len(CALL) + 10)
    threads = list[threading.Thread]()
    whole = chat_format.whole_message

    def seen(events: list[Any], in_functions: bool) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return whole(events, in_functions)

    monkeypatch.setattr(chat_format, "whole_message", seen)
    say(state, CALL)
    await ask(client)
    assert threads == [threading.main_thread()], "a short one is not worth a thread"
    say(state, text)
    choices = (await ask(client, **fields))["choices"]
    assert len(choices) == fields.get("n", 1) and threading.main_thread() not in threads[1:]
    assert len(choices[0]["message"].get("tool_calls", ())) == text.count(CALL)


async def test_an_answer_that_is_cut(client: httpx.AsyncClient, state: State) -> None:
    """By its length, or by a stop string in the arguments: the call is told of as far as it came."""
    for cut, finish, stop in (({"max_tokens": 50}, "length", None), ({"stop": ["rich"]}, "stop", "rich")):
        choice = (await ask(client, **cut))["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == (finish, stop)
        [call] = choice["message"]["tool_calls"]
        whole = '{"city": "Zürich", "days": 2}'
        assert whole.startswith(call["function"]["arguments"]) and call["function"]["arguments"] != whole
        events = await chunks(client, messages=HELLO, tools=[WEATHER], **cut)
        assert joined(events)[1][0]["arguments"] == call["function"]["arguments"]
        assert joined(events)[2] == finish
    after = (await ask(client, stop=["</tool_call>"]))["choices"][0]
    assert (after["finish_reason"], after["stop_reason"]) == ("tool_calls", "</tool_call>")


async def test_what_must_be_enforced(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    async def grammar(**fields: Any) -> str | None:
        await ask(client, **fields)
        form = engine.requests[-1].params.structured_outputs
        return None if form is None else form.grammar

    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert await grammar() is await grammar(parallel_tool_calls=True, tool_choice="auto") is None
    required = await grammar(tool_choice="required") or ""
    assert required.startswith("start: calls") and required.count("Z\\u00fcrich") == 1 and "tool_1" in required
    assert "run)*" in required and "run)*" not in (
        await grammar(tool_choice="required", parallel_tool_calls=False) or ""
    )
    assert await grammar(tool_choice="required", response_format=form) == required, "there are no words to be formed"
    named = await grammar(tool_choice={"type": "function", "function": {"name": "time"}}) or ""
    assert '"\\"time\\""' in named and "weather" not in named and "run)*" not in named
    assert '"properties": {}, "additionalProperties": false' in named, "no parameters: no arguments"
    strict = await grammar(tools=[STRICT, TIME]) or ""
    assert "trigger[lazy]" in strict and "Z\\u00fcrich" in strict and '{"type": "object", "x-guidance"' in strict
    single = await grammar(parallel_tool_calls=False) or ""
    assert "start: TEXT | lead run" in single and "rich" not in single
    assert (await grammar(response_format=form) or "").startswith('start: calls | %json {"type": "object"')
    assert await grammar(response_format={"type": "text"}) is None


async def test_other_styles(client: httpx.AsyncClient, state: State, engine: FakeEngine) -> None:
    for style, text in (
        ("llama3_json", '{"name": "time", "parameters": {}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "time", "arguments": {}}]'),
    ):
        state.text_processors.base = replace(state.text_processors.base, tool_call_parser=style)
        say(state, text)
        choice = (await ask(client))["choices"][0]
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "time", "arguments": "{}"}
        assert choice["finish_reason"] == "tool_calls"
        assert joined(await chunks(client, messages=HELLO, tools=[TIME]))[1][0]["name"] == "time"


async def test_a_marker_that_is_a_special_token_is_seen_and_no_other_one(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    tokenizer = state.tokenizer.extended([AddedToken("[TOOL_CALLS]", special=True)], {})
    state.text_processors.base = replace(state.text_processors.base, tokenizer=tokenizer, tool_call_parser="mistral")
    marker, pad = tokenizer.token_id("[TOOL_CALLS]"), tokenizer.token_id("<pad>")
    assert marker is not None and pad is not None
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)
    engine.says[""] = [*encode("So"), pad, *encode("."), marker, *encode('[{"name": "time"'), pad, *encode("}]")]
    message = (await ask(client, tool_choice="auto"))["choices"][0]["message"]
    assert (message["content"], len(message["tool_calls"])) == ("So.", 1)
    words, calls, _ = joined(await chunks(client, messages=HELLO, tools=[TIME]))
    assert (words, calls[0]["name"]) == ("So.", "time")
    await ask(client, tool_choice="required")
    form = engine.requests[-1].params.structured_outputs
    assert form is not None and f"calls: <[{marker}]> run" in (form.grammar or "")
    shown = (await ask(client, tool_choice="none"))["choices"][0]["message"]["content"]
    assert shown == 'So.[{"name": "time"}]', "without tools it is hidden as ever"


async def test_the_profile_names_the_style(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, as_admin: None
) -> None:
    await register(state, "sql", b"one", None)
    [digest] = engine.registered
    engine.says[digest] = state.tokenizer.encode('[TOOL_CALLS][{"name":"time","arguments":{}}]', False)
    path = "/api/v1/adapters/sql/profile"
    assert "tool_calls" not in (await ask(client, model="sql"))["choices"][0]["message"]
    assert (await client.put(path, json={"tool_call_parser": "mistral"})).status_code == 200
    assert (await ask(client, model="sql"))["choices"][0]["finish_reason"] == "tool_calls"
    assert (await ask(client))["choices"][0]["finish_reason"] == "tool_calls", "the base has none"
    refused = (await client.put(path, json={"tool_call_parser": "pythonic"})).json()["error"]
    assert refused["param"] == "tool_call_parser" and "hermes" in refused["message"]
    await client.put(path, json={"json_schema": SCHEMA})
    await ask(client, model="sql")
    form = engine.requests[-1].params.structured_outputs
    assert form is not None and (form.grammar or "").startswith("start: calls | %json"), "the profile's form, or calls"
