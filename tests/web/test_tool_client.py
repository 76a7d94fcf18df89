"""Tools with the real openai client."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest_asyncio

from loraplex.web.state import State

from .conftest import KEY
from .fake_engine import FakeEngine
from .test_adapters_api import as_admin
from .test_streams import server
from .tools import CALL, HELLO, TIME, WEATHER, say, use_template, with_tools

__all__ = ["as_admin", "server", "with_tools"]


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
