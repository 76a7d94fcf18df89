"""Tools that cannot be used are refused by what is wrong with them."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from loraplex.engine.ipc.client import RequestRejected
from loraplex.web.state import State

from .fake_engine import FakeEngine
from .test_adapters_api import as_admin
from .test_streams import server
from .tools import HELLO, TIME, WEATHER, ask, function, use_template, with_tools

__all__ = ["as_admin", "server", "with_tools"]


async def test_models_that_know_no_tools_are_refused_in_words(client: httpx.AsyncClient, state: State) -> None:
    answered = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    for source in ("{{ messages[0].content }}", "{# tools #}{{ messages[0].content }} time"):
        use_template(state, source)
        error = await ask(client, 400)
        assert (error["param"], error["code"]) == ("tools", "tools_not_in_template")
        assert "serving profile" in error["message"] and "tool_choice: required or a function" in error["message"]
        error = await ask(client, 400, messages=[*HELLO, answered], tools=None)
        assert error["param"] == "messages[1].tool_calls" and "does not support tool calls" in error["message"]
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


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_what_is_demanded_needs_no_template_that_knows_tools(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, choice: Any
) -> None:
    use_template(state, "{{ messages[0].content }}")
    [answered] = (await ask(client, tool_choice=choice))["choices"]
    assert answered["finish_reason"] == "tool_calls" and answered["message"]["content"] is None
    [call] = answered["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", '{"city": "Zürich", "days": 2}')
    form = engine.requests[-1].params.structured_outputs
    assert form is not None and form.grammar is not None and form.grammar.startswith("start: calls")
    assert "minimum" in form.grammar and ("tool_1" in form.grammar) == (choice == "required")


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
