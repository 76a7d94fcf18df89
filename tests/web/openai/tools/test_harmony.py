"""gpt-oss's calls over HTTP: from its channels to each API's own form, and back through the chat template."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import httpx
import jsonschema
import pytest
from tokenizers import AddedToken

from loraplex.web.state import State

from ...anthropic.ask import ask as ask_messages
from ...fake_engine import FakeEngine
from ...test_chat import chunks
from ...test_responses import ask as ask_responses
from ...test_responses import events_of
from ...tools import HELLO, SCHEMA, STRICT, TIME, WEATHER, ask, use_template

MARKS: Final = [f"<|{name}|>" for name in ("start", "channel", "constrain", "message", "end", "call", "return")]
TEMPLATE: Final = (
    "{% for t in tools or [] %}namespace functions type {{ t.function.name }}{% endfor %}"
    "{% set last = namespace(name=none) %}{% for message in messages %}{% if message.tool_calls %}"
    "{% if message.content and message.thinking %}{{ raise_exception('both') }}{% endif %}"
    "{% if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif %}"
    "{% set last.name = message.tool_calls[0].function.name %}"
    "<|start|>assistant to=functions.{{ last.name }}<|channel|>commentary json<|message|>"
    "{{ message.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif message.role == 'tool' %}<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ message.content }}<|end|>"
    "{% elif message.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>"
    "{% else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""Of gpt-oss's kind: the first call of a message alone, and results without a name."""
ARGUMENTS: Final = '{"city": "Zürich", "days": 2}'
THOUGHT: Final = "<|channel|>analysis<|message|>Weather is asked.<|end|><|start|>assistant"
CALL: Final = f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>"


@pytest.fixture(autouse=True)
def with_tools() -> Iterator[None]:
    """In the place of what the other tests of tools have."""
    yield


@pytest.fixture(autouse=True)
def harmony(state: State) -> None:
    tokenizer = state.tokenizer.extended([AddedToken(mark, special=True) for mark in MARKS], {})
    state.text_processors.base = replace(state.text_processors.base, tokenizer=tokenizer)
    use_template(state, TEMPLATE)
    tell(state, THOUGHT + CALL)


def tell(state: State, text: str) -> None:
    assert isinstance(state.engine, FakeEngine)
    tokenizer = state.text_processors.base.tokenizer
    state.engine.says[""] = tokenizer.encode(text, add_special_tokens=False)


def called(choice: dict[str, Any]) -> list[tuple[str, str]]:
    calls = [call["function"] for call in choice["message"].get("tool_calls", [])]
    return [(call["name"], call["arguments"]) for call in calls]


async def test_a_call_and_the_reasoning_before_it(client: httpx.AsyncClient) -> None:
    choice = (await ask(client))["choices"][0]
    assert called(choice) == [("weather", ARGUMENTS)] and choice["finish_reason"] == "tool_calls"
    assert choice["stop_reason"] is None and choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "Weather is asked."
    events = await chunks(client, messages=HELLO, tools=[WEATHER])
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    deltas = [choice["delta"] for choice in choices]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert calls[0]["function"] == {"name": "weather", "arguments": ""} and len(calls) > 3
    assert "".join(call["function"]["arguments"] for call in calls) == ARGUMENTS
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Weather is asked."
    assert not any(delta.get("content") for delta in deltas) and choices[-1]["finish_reason"] == "tool_calls"


async def test_words_before_a_call_and_instead_of_one(client: httpx.AsyncClient, state: State) -> None:
    tell(state, f"{THOUGHT}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}")
    choice = (await ask(client))["choices"][0]
    assert choice["message"]["content"] == "I look." and called(choice) == [("weather", ARGUMENTS)]
    tell(state, f"{THOUGHT}<|channel|>final<|message|>It is fine.<|return|>")
    choice = (await ask(client))["choices"][0]
    assert choice["message"]["content"] == "It is fine." and not called(choice)
    assert choice["finish_reason"] == "stop" and choice["message"]["reasoning_content"] == "Weather is asked."
    tell(state, THOUGHT + CALL.replace("weather", "absent"))
    choice = (await ask(client))["choices"][0]
    assert "to=functions.absent" in choice["message"]["content"] and choice["finish_reason"] == "stop"
    tell(state, THOUGHT + CALL.replace('"days": 2}', '"days": }'))
    choice = (await ask(client))["choices"][0]
    assert "to=functions.weather" in choice["message"]["content"] and choice["finish_reason"] == "stop"


async def test_a_call_that_is_cut_is_told_as_far_as_it_came(client: httpx.AsyncClient, state: State) -> None:
    text = THOUGHT + CALL.partition("rich")[0]
    count = len(state.text_processors.base.tokenizer.encode(text, add_special_tokens=False))
    choice = (await ask(client, max_tokens=count))["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] is None
    assert [(name, ARGUMENTS.startswith(arguments)) for name, arguments in called(choice)] == [("weather", True)]


async def test_a_call_that_is_required_is_enforced_and_read(client: httpx.AsyncClient, state: State) -> None:
    tell(state, CALL)
    assert isinstance(state.engine, FakeEngine)
    named = {"type": "function", "function": {"name": "weather"}}
    for fields in ({"tool_choice": "required"}, {"tool_choice": named}, {"tools": [STRICT, TIME]}):
        choice = (await ask(client, **fields))["choices"][0]
        assert called(choice) == [("weather", ARGUMENTS)] and choice["message"]["content"] is None
        jsonschema.validate(json.loads(called(choice)[0][1]), SCHEMA)
        form = state.engine.requests[-1].params.structured_outputs
        assert form is not None and form.grammar is not None and "functions" in form.grammar


async def test_the_marks_that_end_an_answer_are_stop_tokens(client: httpx.AsyncClient, state: State) -> None:
    await ask(client)
    assert isinstance(state.engine, FakeEngine)
    tokenizer = state.text_processors.base.tokenizer
    ends = {tokenizer.token_id(mark) for mark in ("<|call|>", "<|return|>")} & tokenizer.special_ids
    assert set(state.engine.requests[-1].params.stop_token_ids) == ends
    await ask(client, ignore_eos=True)
    assert state.engine.requests[-1].params.stop_token_ids == []


async def test_other_apis_have_the_same_call(client: httpx.AsyncClient) -> None:
    function = {"type": "function", **WEATHER["function"]}
    items = (await ask_responses(client, tools=[function]))["output"]
    assert [item["type"] for item in items] == ["reasoning", "function_call"]
    assert (items[1]["name"], items[1]["arguments"]) == ("weather", ARGUMENTS)
    last = (await events_of(client, tools=[function]))[-1]["response"]["output"]
    assert (last[1]["name"], last[1]["arguments"]) == ("weather", ARGUMENTS)
    tool = {"name": "weather", "input_schema": SCHEMA}
    message = await ask_messages(client, tools=[tool])
    use = message["content"][-1]
    assert (message["stop_reason"], use["name"], use["input"]) == ("tool_use", "weather", json.loads(ARGUMENTS))


def told(name: str, city: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps({"city": city})}}


async def test_calls_and_results_go_back_through_the_template(client: httpx.AsyncClient, state: State) -> None:
    """Each call with its own result, whatever order they are sent in: the template shows one call of a message."""
    messages = [
        *HELLO,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Two.",
            "tool_calls": [told("weather", "Bern", "a"), told("time", "Zug", "b")],
        },
        {"role": "tool", "tool_call_id": "b", "content": "noon"},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "assistant", "content": "Rain at noon.", "reasoning_content": "Easy."},
        {"role": "user", "content": "Thanks"},
    ]
    body = {"model": "tiny", "messages": messages, "tools": [WEATHER, TIME]}
    tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
    prompt = state.text_processors.base.tokenizer.decode(tokens, skip_special_tokens=False)
    assert prompt.partition("Hello<|end|>")[2] == (
        "<|start|>assistant<|channel|>analysis<|message|>Two.\nI look.<|end|>"
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Bern"}<|call|>'
        "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>rain<|end|>"
        '<|start|>assistant to=functions.time<|channel|>commentary json<|message|>{"city": "Zug"}<|call|>'
        "<|start|>functions.time to=assistant<|channel|>commentary<|message|>noon<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Rain at noon.<|end|>"
        "<|start|>user<|message|>Thanks<|end|><|start|>assistant"
    )
