"""A demanded call that a limit has cut before its arguments: nothing of its markup is shown, in any API."""

from typing import Any

import httpx
import pytest

from loraplex.web.state import State

from .test_chat import chunks
from .tools import CALL, HELLO, TIME, WEATHER, ask, say, with_tools

__all__ = ["with_tools"]
BOUNDS = (1, 6, 20)
FUNCTION = {"type": "function", **WEATHER["function"]}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("bound", BOUNDS)
async def test_in_chats(client: httpx.AsyncClient, choice: Any, bound: int) -> None:
    [answered] = (await ask(client, tool_choice=choice, max_tokens=bound))["choices"]
    assert answered["finish_reason"] == "length"
    assert answered["message"]["content"] == "" and "tool_calls" not in answered["message"]
    fields: dict[str, Any] = {"messages": HELLO, "tools": [WEATHER, TIME], "tool_choice": choice, "max_tokens": bound}
    choices = [event["choices"][0] for event in (await chunks(client, **fields))[:-1]]
    assert not any(one["delta"].get("content") for one in choices) and choices[-1]["finish_reason"] == "length"


async def test_a_second_call_that_is_cut_leaves_the_first(client: httpx.AsyncClient, state: State) -> None:
    say(state, f"{CALL}\n{CALL}")
    longest = len(state.tokenizer.encode(f'{CALL}\n<tool_call>\n{{"name": "wea', add_special_tokens=False))
    shortest = len(state.tokenizer.encode(CALL, add_special_tokens=False))
    for bound in range(shortest + 1, longest):
        [answered] = (await ask(client, tool_choice="required", max_tokens=bound))["choices"]
        assert answered["finish_reason"] == "length" and answered["message"]["content"] is None
        [call] = answered["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"city": "Zürich", "days": 2}'


@pytest.mark.parametrize("bound", BOUNDS)
async def test_in_responses(client: httpx.AsyncClient, bound: int) -> None:
    body = {"model": "tiny", "input": "Hello", "tools": [FUNCTION], "tool_choice": "required"}
    answer = (await client.post("/v1/responses", json=body | {"max_output_tokens": bound})).json()
    assert answer["status"] == "incomplete"
    assert [part["text"] for item in answer["output"] for part in item["content"]] == [""]


async def test_where_the_model_may_choose_the_text_is_shown(client: httpx.AsyncClient) -> None:
    [answered] = (await ask(client, max_tokens=12))["choices"]
    assert answered["message"]["content"].startswith("<tool_call>") and answered["finish_reason"] == "length"
