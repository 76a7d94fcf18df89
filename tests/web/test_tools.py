"""Tools over HTTP: what requests say reaches template and engine, what models write becomes calls."""

import functools
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import openai
import pytest
import pytest_asyncio
from tokenizers import AddedToken

from loraplex.engine.client import RequestRejected
from loraplex.web import off_loop
from loraplex.web.chat_template import ChatTemplate
from loraplex.web.openai import chat
from loraplex.web.state import State
from loraplex.web.tool_calls.formats.known import STYLES
from loraplex.web.wording import TrustedTemplate

from .conftest import KEY
from .fake_engine import BASE_SENTENCE, FakeEngine
from .test_adapters_api import as_admin
from .test_chat import chunks
from .test_own_tokenizer import register
from .test_streams import server

__all__ = ["as_admin", "server"]
CHAT = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Zürich", "Bern"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time", "description": "What time it is"}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
TEMPLATE = (
    "{% for t in tools or [] %}[{{ t | tojson }}]{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "</tool_call>{% endfor %}{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SHORT = TEMPLATE.replace("[{{ t | tojson }}]", "[{{ t.function.name }}]")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>'


def use_template(state: State, source: str) -> None:
    template = TrustedTemplate(ChatTemplate(source, state.tokenizer.named_tokens, 100_000))
    state.wordings.base = replace(state.wordings.base, template=template)


def say(state: State, text: str) -> None:
    assert isinstance(state.engine, FakeEngine)
    state.engine.says[""] = state.tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture(autouse=True)
def with_tools(state: State) -> None:
    use_template(state, SHORT)
    say(state, CALL)


async def ask(client: httpx.AsyncClient, status: int = 200, **fields: Any) -> Any:
    answer = await client.post(CHAT, json={"model": "tiny", "messages": HELLO, "tools": [WEATHER, TIME], **fields})
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]


async def prompt_of(client: httpx.AsyncClient, state: State, **fields: Any) -> str:
    body = {"model": "tiny", "messages": HELLO, **fields}
    response = await client.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    return state.tokenizer.decode(response.json()["tokens"], skip_special_tokens=False)


def joined(events: list[Any], index: int = 0) -> tuple[str, list[dict[str, Any]], str | None]:
    """Words, calls and finish reason of a choice, put together as clients do it; the rules of deltas hold."""
    words, calls, finish = "", list[dict[str, Any]](), None
    for event in events[:-1]:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
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


async def test_the_template_is_told_of_tools_as_transformers_tells_it(client: httpx.AsyncClient, state: State) -> None:
    use_template(state, TEMPLATE)
    text = await prompt_of(client, state, tools=[STRICT, TIME])
    given = [json.loads(line) for line in text.partition("<|user|>")[0].strip("[]").split("][")]
    assert given == [WEATHER, TIME], "strict is for the server"
    assert list(given[1]["function"]) == ["name", "description"]
    assert await prompt_of(client, state, tools=[WEATHER], tool_choice="none") == await prompt_of(client, state)


async def test_members_of_a_tool_that_clients_add(client: httpx.AsyncClient, state: State) -> None:
    """A hint on caching changes nothing; what transformers says of a function's result reaches the template."""
    use_template(state, TEMPLATE)
    hint = {"cache_control": {"type": "ephemeral"}}
    plain = await prompt_of(client, state, tools=[TIME])
    assert await prompt_of(client, state, tools=[{**TIME, **hint}]) == plain
    assert await prompt_of(client, state, tools=[{**TIME, "function": {**TIME["function"], **hint}}]) == plain
    result = {"return": {"type": "string"}}
    told = await prompt_of(client, state, tools=[{**TIME, "function": {**TIME["function"], **result}}])
    assert json.loads(told.partition("<|user|>")[0][1:-1])["function"] == TIME["function"] | result
    error = await ask(client, 400, tools=function(returns={"type": "string"}))
    assert error["message"].startswith("tools[0].function.returns: unknown field;")


async def test_a_template_for_chats_with_tools(client: httpx.AsyncClient, state: State) -> None:
    base = state.wordings.base
    use_template(state, "{{ messages[0].content }}")
    state.wordings.base = replace(state.wordings.base, tool_template=base.template)
    assert await prompt_of(client, state) == "Hello"
    assert await prompt_of(client, state, tools=[TIME]) == "[time]<|user|>Hello<|assistant|>"
    assert (await ask(client))["choices"][0]["finish_reason"] == "tool_calls", "it shows the style, too"


async def test_a_template_may_tell_of_tools_only_where_a_user_asks(client: httpx.AsyncClient, state: State) -> None:
    use_template(
        state,
        "{# <tool_call> arguments #}" + SHORT.replace("in tools or []", "in tools if messages[-1].role == 'user'"),
    )
    assert (await ask(client))["choices"][0]["finish_reason"] == "tool_calls"
    answered = [*HELLO, {"role": "tool", "tool_call_id": "call_1", "content": "noon"}]
    assert (await ask(client, messages=answered))["choices"][0]["finish_reason"] == "tool_calls"
    assert "[" not in await prompt_of(client, state, messages=answered, tools=[TIME])


async def test_a_template_may_tell_of_tools_only_beside_a_system_prompt(
    client: httpx.AsyncClient, state: State
) -> None:
    use_template(
        state,
        "{# <tool_call> arguments #}" + SHORT.replace("in tools or []", "in tools if messages[0].role == 'system'"),
    )
    await ask(client, messages=[{"role": "system", "content": "Be kind"}, *HELLO])
    assert (await ask(client, 400))["code"] == "tools_not_in_template"


async def test_calls_and_answers_in_messages(client: httpx.AsyncClient, state: State) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": '{"b": 1, "a": "ü"}'}}
    bare = {"id": "x", "function": {"name": "time", "arguments": ""}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call, bare]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "assistant", "content": "It is", "tool_calls": []},
    ]
    said = await prompt_of(client, state, messages=messages)
    assert said == (
        "<|user|>Hello<|assistant|>"
        '<tool_call>{"name": "time", "arguments": {"b": 1, "a": "ü"}, "id": "call_1"}</tool_call>'
        '<tool_call>{"name": "time", "arguments": {}, "id": "x"}</tool_call>'
        "<|tool|>noon(call_1)<|assistant|>It is<|assistant|>"
    )
    state.wordings.base = replace(state.wordings.base, tool_call_parser="mistral")
    said = await prompt_of(client, state, messages=messages)
    short = STYLES["mistral"].call_id("call_1")
    assert said.count(short) == 2 and len(short) == 9 and "call_1" not in said


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
    whole = chat.whole_message

    def seen(events: list[Any]) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return whole(events)

    monkeypatch.setattr(chat, "whole_message", seen)
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
        state.wordings.base = replace(state.wordings.base, tool_call_parser=style)
        say(state, text)
        choice = (await ask(client))["choices"][0]
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "time", "arguments": "{}"}
        assert choice["finish_reason"] == "tool_calls"
        assert joined(await chunks(client, messages=HELLO, tools=[TIME]))[1][0]["name"] == "time"


async def test_a_marker_that_is_a_special_token_is_seen_and_no_other_one(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    tokenizer = state.tokenizer.extended([AddedToken("[TOOL_CALLS]", special=True)], {})
    state.wordings.base = replace(state.wordings.base, tokenizer=tokenizer, tool_call_parser="mistral")
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


async def test_models_that_know_no_tools_are_refused_in_words(client: httpx.AsyncClient, state: State) -> None:
    answered = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    for source in ("{{ messages[0].content }}", "{# tools #}{{ messages[0].content }} time"):
        use_template(state, source)
        error = await ask(client, 400)
        assert (error["param"], error["code"]) == ("tools", "tools_not_in_template")
        assert "serving profile" in error["message"]
        error = await ask(client, 400, messages=[*HELLO, answered], tools=None)
        assert error["param"] == "messages[1].tool_calls" and "leaves out tool calls" in error["message"]
        await ask(client, tool_choice="none")
    use_template(state, "{% if tools is defined %}{# <tool_call> arguments #}{% endif %}{{ messages[0].content }}")
    for name in ("H", "ell", "Hello"):
        error = await ask(client, 400, tools=function(name=name))
        assert error["code"] == "tools_not_in_template", "its name is in the prompt by chance"
    use_template(state, "{{ tools[0].function.name }}{# <tool_call> arguments #}{{ messages[0].content }}")
    await ask(client, tools=[TIME])
    assert (await ask(client, 400))["code"] == "tools_not_in_template", "it tells of the first one alone"
    use_template(state, "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ messages[0].content }}")
    error = await ask(client, 400)
    assert error["code"] == "unknown_tool_format" and "serving profile" in error["message"]


def function(**members: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **members}}]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": "f"}, "tools"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": function(name="")}, "tools[0].function.name"),
    ({"tools": function(name="two words")}, "tools[0].function.name"),
    ({"tools": function(name="x" * 65)}, "tools[0].function.name"),
    ({"tools": function(name="f\n")}, "tools[0].function.name"),
    ({"tools": function() * 2}, "tools[1].function.name"),
    ({"tools": function() * 600}, "tools"),
    ({"tools": function(parameters="{}")}, "tools[0].function.parameters"),
    ({"tools": function(parameters={"type": "string"})}, "tools[0].function.parameters"),
    (
        {"tools": [TIME, *function(parameters={"properties": {"a": {"type": "foo"}}})]},
        "tools[1].function.parameters",
    ),
    ({"tools": function(strict="yes")}, "tools[0].function.strict"),
    ({"tools": function(returns={})}, "tools[0].function.returns"),
    ({"tools": [TIME, {**TIME, "strict": True}]}, "tools[1].strict"),
    ({"tools": [{"type": "function", "name": "f", "parameters": {}}]}, "tools[0].name"),
    ({"tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "time"}}, "tools": None}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"guided_regex": "a"}, "guided_regex"),
    ({"structured_outputs": {"json": {}}}, "structured_outputs"),
    ({"tool_choice": "required", "allowed_token_ids": [5]}, "allowed_token_ids"),
    (
        {"tools": function(parameters={"enum": ["x" * 70_000]}), "tool_choice": "required", "messages": HELLO},
        "tools",
    ),
    ({"functions": [{"name": "f"}]}, "functions"),
    *[
        ({"messages": [*HELLO, {"role": "assistant", "tool_calls": calls}]}, f"messages[1].tool_calls{at}")
        for calls, at in (
            ([{"function": {"name": "time", "arguments": "{}"}}], "[0].id"),
            ([{"id": "1", "function": {"name": "time"}}], "[0].function.arguments"),
            ([{"id": "1", "function": {"name": "time", "arguments": {}}}], "[0].function.arguments"),
            ([{"id": "1", "function": {"name": "time", "arguments": "{"}}], "[0].function.arguments"),
            ([{"id": "1", "function": {"name": "time", "arguments": "[]"}}], "[0].function.arguments"),
            ([{"id": "1", "type": "custom", "function": {"name": "time", "arguments": "{}"}}], "[0].type"),
        )
    ],
    (
        {"messages": [{**HELLO[0], "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]}]},
        "messages[0].tool_calls",
    ),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, "messages[0].content"),
]


async def test_what_is_wrong_is_named(client: httpx.AsyncClient) -> None:
    for fields, param in WRONG:
        error = await ask(client, 400, **fields)
        assert error["param"] == param, (fields, error)


async def test_a_schema_that_cannot_be_enforced_names_its_tool(
    client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(request: Any) -> AsyncIterator[Any]:
        lines = (request.params.structured_outputs.grammar or "").split("\n")
        at = next(number for number, line in enumerate(lines, 1) if "weather" in line)
        reason = f'at {at}(9): failed to compile JSON schema: Unimplemented keys: ["not"]\n   1 | {lines[0]}'
        raise RequestRejected("invalid", f"structured_outputs cannot be used: {reason}")
        yield

    monkeypatch.setattr(engine, "generate", refuse)
    error = await ask(client, 400, tools=[TIME, WEATHER], tool_choice="required")
    assert error["message"] == "The parameters of the tool 'weather' cannot be enforced: Unimplemented keys: [\"not\"]."
    assert error["param"] == "tools"


@pytest_asyncio.fixture
async def sdk(server: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0) as client:
        yield client


async def test_the_openai_client(sdk: openai.AsyncOpenAI, state: State, engine: FakeEngine) -> None:
    say(state, f'See:\n{CALL}\n<tool_call>{{"name": "time"}}</tool_call>')
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": [WEATHER, TIME]}
    whole = await sdk.chat.completions.create(**asked)
    message = whole.choices[0].message
    assert message.tool_calls is not None and len(message.tool_calls) == 2
    async with sdk.chat.completions.stream(**asked) as stream:
        kinds = {event.type async for event in stream}
        final = (await stream.get_final_completion()).choices[0]
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done", "content.delta"} <= kinds
    assert final.finish_reason == "tool_calls" and final.message.content == "See:"
    assert final.message.tool_calls is not None
    streamed = [(call.function.name, call.function.arguments) for call in final.message.tool_calls]
    assert streamed == [("weather", '{"city": "Zürich", "days": 2}'), ("time", "{}")]
    answers: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": "fine"} for call in final.message.tool_calls
    ]
    again = final.message.model_dump(exclude_none=True, exclude={"parsed"})
    say(state, "Sunny.")
    names = "{{ tools | map(attribute='function.name') | join }}"
    use_template(state, "{# <tool_call> arguments #}" + names + "{{ messages[0].tool_calls | length }}")
    reply = await sdk.chat.completions.create(**asked | {"messages": [again, *answers]})
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("Sunny.", "stop")


async def tools_are_called(state: State, client: httpx.AsyncClient) -> None:
    """With a model of random weights, which says nothing sensible by itself."""
    before = state.wordings.base
    use_template(state, SHORT)
    try:
        for style, fields in (
            ("hermes", {"tool_choice": "required", "parallel_tool_calls": False}),
            ("llama3_json", {"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
            ("mistral", {"tool_choice": "required"}),
        ):
            state.wordings.base = replace(state.wordings.base, tool_call_parser=style)
            body = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "max_tokens": 200, "seed": 3}
            choice = (await client.post(CHAT, json=body | fields)).json()["choices"][0]
            assert choice["finish_reason"] == "tool_calls", choice
            assert choice["message"]["content"] is None
            for call in choice["message"]["tool_calls"]:
                jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
        state.wordings.base = replace(state.wordings.base, tool_call_parser="hermes")
        body = {"model": "tiny", "messages": HELLO, "tools": [STRICT], "max_tokens": 8, "ignore_eos": True}
        choice = (await client.post(CHAT, json=body)).json()["choices"][0]
        assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"], choice
        wrong = {"type": "function", "function": {"name": "bad", "parameters": {"not": {}}}}
        for stream in (False, True):
            body = {"model": "tiny", "messages": HELLO, "tools": [WEATHER, wrong], "tool_choice": "required"}
            refused = await client.post(CHAT, json=body | {"stream": stream})
            assert refused.status_code == 400 and "the tool 'bad' cannot be enforced" in refused.text, refused.text
    finally:
        state.wordings.base = before
