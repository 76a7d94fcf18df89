"""Clients that want answers of a form: instructor, pydantic-ai, LangChain, outlines, guidance."""

from typing import Any, Literal

import guidance
import instructor
import openai
import outlines
import pytest
from guidance.models.experimental import VLLMModel
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from .conftest import RECORD, SALE, Address

REVIEW = "The food was great. I loved it."


class Sale(BaseModel):
    name: str
    job: str
    city: str
    item: str
    count: int
    price: int


SOLD = Sale.model_validate(RECORD)


@pytest.fixture
def sdk(address: Address) -> openai.OpenAI:
    return openai.OpenAI(base_url=address.v1, api_key=address.key)


def test_instructor(sdk: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": SALE}]
    asked: dict[str, Any] = {"model": "json", "response_model": Sale, "messages": messages, "temperature": 0}
    client = instructor.from_openai(sdk, mode=instructor.Mode.JSON_SCHEMA)
    assert client.chat.completions.create(**asked).model_dump() == RECORD
    by_tool = instructor.from_openai(sdk, mode=instructor.Mode.TOOLS).chat.completions.create(**asked, max_tokens=200)
    assert isinstance(by_tool, Sale), "a tool that is demanded is called, whatever the model was told"


def test_pydantic_ai(address: Address) -> None:
    model = OpenAIChatModel("json", provider=OpenAIProvider(base_url=address.v1, api_key=address.key))
    native = Agent(model, output_type=NativeOutput(Sale)).run_sync(SALE, model_settings={"temperature": 0})
    assert native.output == SOLD


def test_langchain(address: Address) -> None:
    model = ChatOpenAI(model="json", base_url=address.v1, api_key=address.key, temperature=0)
    assert model.with_structured_output(Sale).invoke(SALE) == SOLD


def test_outlines(sdk: openai.OpenAI) -> None:
    assert Sale.model_validate_json(outlines.from_openai(sdk, "json")(SALE, Sale, temperature=0)) == SOLD
    labels: Any = Literal["positive", "negative", "neutral"]
    assert outlines.from_vllm(sdk, "sentiment")(REVIEW, labels, temperature=0) == "positive"


def test_guidance(address: Address) -> None:
    model = VLLMModel("sentiment", base_url=address.v1, api_key=address.key)
    with guidance.user():
        model += REVIEW
    with guidance.assistant():
        model += guidance.select(["positive", "negative", "neutral"], name="label")
    assert model["label"] == "positive"
