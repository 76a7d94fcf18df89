"""The older way of tools: functions and function_call, asked as tools are and answered in their own words."""

import json
from typing import Any

import httpx
import pytest

from loraplex.web.state import State

from ..fake_engine import FakeEngine
from ..test_chat import chunks
from ..tools import CALL, CHAT, HELLO, SHORT, TIME, WEATHER, ask, prompt_of, say, use_template

FUNCTIONS = [WEATHER["function"], TIME["function"]]
CALLED = {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"city": "Bern"}'}}
RESULT = {"role": "function", "name": "weather", "content": "sunny"}


@pytest.fixture(autouse=True)
def with_calls(state: State) -> None:
    use_template(state, SHORT)
    say(state, CALL)


async def test_a_call_is_told_whole_and_streamed(client: httpx.AsyncClient) -> None:
    [choice] = (await ask(client, tools=None, functions=FUNCTIONS))["choices"]
    call = choice["message"]["function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Zürich", "days": 2})
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    events = await chunks(client, messages=HELLO, functions=FUNCTIONS)
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    told = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert told[0] == {"name": "weather", "arguments": ""}
    assert "".join(part["arguments"] for part in told) == call["arguments"]
    assert events[-2]["choices"][0]["finish_reason"] == "function_call" and "tool_calls" not in str(events)


async def test_words_are_words(client: httpx.AsyncClient, state: State) -> None:
    say(state, "It is sunny.")
    [choice] = (await ask(client, tools=None, functions=FUNCTIONS))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is sunny.", "stop")


@pytest.mark.parametrize(
    ("choice", "told", "rule"),
    [
        (None, True, "start: TEXT | lead run"),
        ("auto", True, "start: TEXT | lead run"),
        ("none", False, None),
        ({"name": "time"}, True, "start: calls"),
    ],
)
async def test_the_choice_is_that_of_tools(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, choice: Any, told: bool, rule: str | None
) -> None:
    await ask(client, tools=None, functions=FUNCTIONS, function_call=choice)
    form = engine.requests[-1].params.structured_outputs
    grammar = None if form is None else form.grammar
    assert (None if grammar is None else grammar.split("\n")[0]) == rule
    prompt = await prompt_of(client, state, functions=FUNCTIONS, function_call=choice)
    assert ("[weather][time]" in prompt) == told


async def test_calls_and_results_of_before_are_those_of_tools(client: httpx.AsyncClient, state: State) -> None:
    older = await prompt_of(client, state, messages=[*HELLO, CALLED, RESULT])
    call = {"id": "call_000000001", "type": "function", "function": CALLED["function_call"]}
    newer = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "weather", "tool_call_id": call["id"], "content": "sunny"},
    ]
    assert older == await prompt_of(client, state, messages=newer) and "sunny(call_000000001)" in older


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"functions": FUNCTIONS, "tools": [WEATHER]}, "functions", "two ways of the same"),
        ({"functions": FUNCTIONS, "tool_choice": "auto"}, "functions", "two ways of the same"),
        *[
            ({"function_call": choice, **more}, "function_call", "function_call only goes with functions")
            for choice in ("auto", "none", {"name": "time"})
            for more in ({}, {"functions": []}, {"tools": [WEATHER]})
        ],
        ({"functions": FUNCTIONS, "function_call": {"name": "x"}}, "function_call", "function_call names 'x'"),
        ({"functions": [FUNCTIONS[0]] * 2}, "functions[1].name", "functions[1].name: there are two"),
        ({"functions": [{"name": "f", "parameters": {"type": 3}}]}, "functions[0].parameters", "is invalid"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name", "functions[0].name"),
        ({"function_call": "required"}, "function_call", "function_call"),
        ({"messages": [*HELLO, RESULT]}, "messages[1].name", "no earlier function_call"),
        (
            {"messages": [*HELLO, {**CALLED, "function_call": {"name": "f", "arguments": "x"}}]},
            "messages[1].function_call.arguments",
            "messages[1].function_call.arguments must be the JSON text of an object",
        ),
        (
            {"functions": FUNCTIONS, "function_call": {"name": "messages[9].tool_calls"}},
            "function_call",
            "function_call names 'messages[9].tool_calls'",
        ),
        (
            {"messages": [{**CALLED, "role": "user", "content": "a"}]},
            "messages[0].function_call",
            "messages[0].function_call: only assistant messages",
        ),
    ],
)
async def test_refusals_name_the_fields_that_were_sent(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = await client.post(CHAT, json={"model": "tiny", "messages": HELLO, **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and words in error["message"], error


async def test_a_template_without_tools_names_the_fields_that_were_sent(
    client: httpx.AsyncClient, state: State
) -> None:
    use_template(state, "{{ messages[0].content }}")
    newer = {"id": "1", "type": "function", "function": CALLED["function_call"]}
    for path in (CHAT, "/tokenize"):
        body: dict[str, Any] = {"model": "tiny", "messages": HELLO}
        error = (await client.post(path, json={**body, "functions": FUNCTIONS})).json()["error"]
        assert error["param"] == "functions" and 'Or send function_call: {"name": ...}' in error["message"]
        assert "tool_choice" not in error["message"]
        for calls, field in (({}, "function_call"), ({"function_call": None, "tool_calls": [newer]}, "tool_calls")):
            refused = await client.post(path, json={**body, "messages": [*HELLO, {**CALLED, **calls}]})
            error = refused.json()["error"]
            assert error["param"] == f"messages[1].{field}" and error["message"].startswith(f"messages[1].{field}: ")
            assert "tool_choice" not in error["message"], "it would not help"
    use_template(state, "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ messages[0].content }}")
    error = (await client.post(CHAT, json={**body, "functions": FUNCTIONS})).json()["error"]
    assert error["code"] == "unknown_tool_format" and 'Or send function_call: {"name": ...}' in error["message"]
    named = {"functions": FUNCTIONS, "function_call": {"name": "weather"}}
    assert (await client.post(CHAT, json={**body, **named})).status_code == 200, "the advice holds"


async def test_completions_have_none(client: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "prompt": "a", "functions": FUNCTIONS}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 400 and "functions are for chats" in answer.json()["error"]["message"]
