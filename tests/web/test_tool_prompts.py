"""Tools, calls and their answers over HTTP, as templates are told of them."""

import json
from dataclasses import replace

import httpx

from loraplex.web.state import State
from loraplex.web.tool_calls.formats.known import STYLES

from .test_adapters_api import as_admin
from .test_streams import server
from .tools import HELLO, SHORT, STRICT, TEMPLATE, TIME, WEATHER, ask, function, prompt_of, use_template, with_tools

__all__ = ["as_admin", "server", "with_tools"]


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
    assert error["message"].startswith("tools[0].function.returns: unknown field. Leave it out.")


async def test_a_template_for_chats_with_tools(client: httpx.AsyncClient, state: State) -> None:
    base = state.text_processors.base
    use_template(state, "{{ messages[0].content }}")
    state.text_processors.base = replace(state.text_processors.base, tool_template=base.template)
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
    state.text_processors.base = replace(state.text_processors.base, tool_call_parser="mistral")
    said = await prompt_of(client, state, messages=messages)
    short = STYLES["mistral"].call_id("call_1")
    assert said.count(short) == 2 and len(short) == 9 and "call_1" not in said
