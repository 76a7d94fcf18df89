"""The Responses API with the real openai client."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel

from loraplex.web.state import State

from .conftest import KEY
from .fake_engine import BASE_SENTENCE, FakeEngine
from .test_adapters_api import as_admin
from .test_responses import TOOLS
from .test_streams import server
from .tools import CALL, SHORT, say, use_template

__all__ = ["as_admin", "server"]


@pytest_asyncio.fixture
async def sdk(server: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0) as client:
        yield client


async def test_whole_and_streamed(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.responses.create(model="tiny", input="Hello", instructions="Be brief.")
    assert whole.output_text == BASE_SENTENCE and whole.usage is not None and whole.usage.output_tokens > 0
    async with sdk.responses.stream(model="tiny", input="Hello") as stream:
        pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(pieces) == final.output_text == BASE_SENTENCE and final.status == "completed"


async def test_answers_are_sent_back_as_they_came(sdk: openai.AsyncOpenAI, state: State) -> None:
    use_template(state, SHORT)
    say(state, f"See:\n{CALL}")
    tools: Any = TOOLS
    items: list[Any] = [{"role": "user", "content": "Hello"}]
    async with sdk.responses.stream(model="tiny", input=items, tools=tools) as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_response()
    items += answer.output
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Zürich", "days": 2}]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    say(state, "Sunny.")
    assert (await sdk.responses.create(model="tiny", input=items, tools=tools)).output_text == "Sunny."
    assert isinstance(state.engine, FakeEngine)
    prompt = state.tokenizer.decode(state.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert f"({calls[0].call_id})" in prompt and "sunny" in prompt and "See:" in prompt


class Weather(BaseModel):
    city: str
    days: int


async def test_parsed_answers(sdk: openai.AsyncOpenAI, state: State) -> None:
    say(state, '{"city": "Bern", "days": 1}')
    answer = await sdk.responses.parse(model="tiny", input="Hello", text_format=Weather)
    assert answer.output_parsed == Weather(city="Bern", days=1)
    assert isinstance(state.engine, FakeEngine)
    form = state.engine.requests[-1].params.structured_outputs
    assert form is not None and form.json is not None and "days" in form.json


async def test_errors_are_the_packages_own(sdk: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.BadRequestError, match="'resp_1' not found") as refused:
        await sdk.responses.create(model="tiny", input="Hello", previous_response_id="resp_1")
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")
    with pytest.raises(openai.NotFoundError, match="'resp_1' not found"):
        await sdk.responses.retrieve("resp_1")
    engine.crash_after = 2
    with pytest.raises(openai.APIError):
        async for _ in await sdk.responses.create(model="tiny", input="Hello", stream=True):
            pass
