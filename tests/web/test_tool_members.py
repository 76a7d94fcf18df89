"""Members that no field has, in tool_choice and in calls of messages: refused by path, but for what clients echo."""

from typing import Any

import httpx
import openai
import pytest

from loraplex.web.state import State

from .test_streams import server
from .test_tool_client import sdk
from .tools import CALL, HELLO, TIME, WEATHER, ask, prompt_of, say, use_template, with_tools

__all__ = ["sdk", "server", "with_tools"]
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "time"}}
MADE: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
SHOWS_CALLS = "{# <tool_call> arguments #}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
SHOWS_CALLS += "{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"


def after(call: dict[str, Any]) -> list[Any]:
    """A chat in which this call was made and answered."""
    made = {"role": "assistant", "content": None, "tool_calls": [MADE, call]}
    return [*HELLO, made, {"role": "tool", "tool_call_id": "call_1", "content": "noon"}]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tool_choice": {**NAMED, "mode": "required"}}, "tool_choice.mode"),
        ({"tool_choice": {**NAMED, "function": {"name": "time", "strict": True}}}, "tool_choice.function.strict"),
        ({"messages": after({**MADE, "result": "noon"})}, "messages[1].tool_calls[1].result"),
        (
            {"messages": after({**MADE, "function": {**MADE["function"], "output": "noon"}})},
            "messages[1].tool_calls[1].function.output",
        ),
    ],
)
async def test_unknown_members_are_refused(client: httpx.AsyncClient, fields: dict[str, Any], path: str) -> None:
    error = await ask(client, 400, **fields)
    assert error["param"] == path
    assert error["message"].startswith(f"{path}: unknown field. Leave it out.")


async def test_without_them_the_same_requests_are_served(client: httpx.AsyncClient) -> None:
    await ask(client, tool_choice=NAMED)
    await ask(client, messages=after(MADE))


@pytest.mark.parametrize(
    "echoed",
    [
        {"index": 0},
        {"index": None, "parsed_arguments": {"city": "Bern"}},
        {"extra_content": {"google": {"thought_signature": "c2ln"}}},
        {"provider_specific_fields": {"thought_signature": "c2ln"}},
        {"cache_control": {"type": "ephemeral"}},
    ],
)
async def test_what_clients_echo_changes_nothing(
    client: httpx.AsyncClient, state: State, echoed: dict[str, Any]
) -> None:
    use_template(state, SHOWS_CALLS)
    plain = await prompt_of(client, state, messages=after(MADE))
    assert "call_1" in plain
    assert await prompt_of(client, state, messages=after({**MADE, **echoed})) == plain
    inside = {**MADE, "function": {**MADE["function"], **echoed}}
    assert await prompt_of(client, state, messages=after(inside)) == plain


async def test_the_openai_client_sends_its_own_messages_back(sdk: openai.AsyncOpenAI, state: State) -> None:
    """Whole, put together from a stream by the package, and from deltas by hand, as most examples do it."""
    use_template(state, SHOWS_CALLS)
    say(state, CALL)
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": [WEATHER, TIME]}
    whole = (await sdk.chat.completions.create(**asked)).choices[0].message
    async with sdk.chat.completions.stream(**asked) as stream:
        streamed = (await stream.get_final_completion()).choices[0].message
    by_hand: dict[str, Any] = {}
    async for chunk in await sdk.chat.completions.create(**asked, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or ():
            if delta.id is not None:
                by_hand = delta.model_dump()
            else:
                assert delta.function is not None
                by_hand["function"]["arguments"] += delta.function.arguments
    assert by_hand["index"] == 0
    for message in (whole, streamed, {"role": "assistant", "tool_calls": [by_hand]}):
        calls = message["tool_calls"] if isinstance(message, dict) else message.tool_calls
        first = calls[0]["id"] if isinstance(calls[0], dict) else calls[0].id
        answers = [{"role": "tool", "tool_call_id": first, "content": "sunny"}]
        reply = await sdk.chat.completions.create(**asked | {"messages": [*HELLO, message, *answers]})
        assert reply.choices[0].finish_reason == "tool_calls"
