"""Anthropic's API by its own package, and by those that speak it."""

import anthropic
import litellm
import pytest
from langchain_anthropic import ChatAnthropic

from .conftest import HELLO, QUERY, QUESTION, Address


def test_anthropic(address: Address) -> None:
    client = anthropic.Anthropic(base_url=address.root, api_key=address.key)
    answer = client.messages.create(model="sql", max_tokens=60, messages=HELLO, extra_body={"temperature": 0})
    assert answer.content[0].text == QUERY
    with client.messages.stream(model="sql", max_tokens=60, messages=HELLO, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == QUERY
    assert client.messages.count_tokens(model="sql", messages=HELLO).input_tokens == answer.usage.input_tokens + (
        answer.usage.cache_read_input_tokens
    )
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="absent", max_tokens=60, messages=HELLO)


def test_langchain_anthropic(address: Address) -> None:
    model = ChatAnthropic(model="sql", base_url=address.root, api_key=address.key, temperature=0, max_tokens=60)
    assert model.invoke(QUESTION).content == QUERY
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == QUERY


def test_litellm(address: Address) -> None:
    asked = {"model": "anthropic/sql", "api_base": address.root, "api_key": address.key, "max_tokens": 60}
    assert litellm.completion(**asked, messages=HELLO, temperature=0).choices[0].message.content == QUERY
