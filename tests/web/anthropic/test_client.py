"""The Messages API with the real anthropic client, over a real socket."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from pydantic import BaseModel

from loraplex.web.state import State

from ..conftest import KEY
from ..fake_engine import BASE_SENTENCE, FakeEngine
from ..test_streams import server
from ..tools import CALL, HELLO, SHORT, say, use_template
from .test_messages import TIME, WEATHER

__all__ = ["server"]


@pytest_asyncio.fixture
async def sdk(server: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=server, api_key=KEY, max_retries=0) as client:
        yield client


async def test_whole_streamed_and_counted(sdk: anthropic.AsyncAnthropic) -> None:
    whole = await sdk.messages.create(model="tiny", max_tokens=100, messages=HELLO, system="Be brief.")
    assert whole.content[0].type == "text" and whole.content[0].text == BASE_SENTENCE and whole._request_id
    async with sdk.messages.stream(model="tiny", max_tokens=100, messages=HELLO) as stream:
        assert "".join([text async for text in stream.text_stream]) == BASE_SENTENCE
        final = await stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", whole.usage.output_tokens)
    counted = await sdk.messages.count_tokens(model="tiny", messages=HELLO)
    usage = final.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_a_turn_of_tools(sdk: anthropic.AsyncAnthropic, state: State) -> None:
    use_template(state, SHORT)
    say(state, f"See:\n{CALL}")
    tools: Any = [WEATHER, TIME]
    async with sdk.messages.stream(model="tiny", max_tokens=200, messages=HELLO, tools=tools) as stream:
        answer = await stream.get_final_message()
    [call] = [block for block in answer.content if block.type == "tool_use"]
    assert (call.name, call.input, answer.stop_reason) == ("weather", {"city": "Zürich", "days": 2}, "tool_use")
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns: Any = [*HELLO, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    say(state, "Sunny.")
    last = await sdk.messages.create(model="tiny", max_tokens=100, messages=turns, tools=tools)
    assert last.content[0].type == "text" and last.content[0].text == "Sunny."


class Weather(BaseModel):
    city: str
    days: int


async def test_parsed_answers(sdk: anthropic.AsyncAnthropic, state: State) -> None:
    say(state, '{"city": "Bern", "days": 1}')
    answer = await sdk.messages.parse(model="tiny", max_tokens=100, messages=HELLO, output_format=Weather)
    assert answer.parsed_output == Weather(city="Bern", days=1)


async def test_errors_are_the_packages_own(sdk: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 5, "messages": HELLO}
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await sdk.messages.create(**asked, extra_body={"temperature": 3.0})
    with pytest.raises(anthropic.NotFoundError, match="`absent`") as missing:
        await sdk.messages.create(**{**asked, "model": "absent"})
    assert isinstance(missing.value.body, dict) and missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.AuthenticationError):
        await sdk.with_options(api_key="lp-wrong").messages.create(**asked)
    engine.crash_after = 2
    with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
        async with sdk.messages.stream(**{**asked, "max_tokens": 100}) as stream:
            await stream.get_final_message()
