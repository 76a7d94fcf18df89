"""Clients that chat, whole and streamed, and their errors."""

from typing import Any

import dspy
import litellm
import ollama
import pytest
from huggingface_hub import InferenceClient
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from llm.default_plugins.openai_models import Chat

from .conftest import HELLO, QUERY, QUESTION, Address


def test_litellm(address: Address) -> None:
    asked: dict[str, Any] = {"model": "openai/sql", "api_base": address.v1, "api_key": address.key, "messages": HELLO}
    assert litellm.completion(**asked, temperature=0).choices[0].message.content == QUERY
    pieces = (chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, temperature=0, stream=True))
    assert "".join(pieces) == QUERY
    long = [{"role": "user", "content": "long " * 3000}]
    for changed, error in (
        ({"model": "openai/absent"}, litellm.NotFoundError),
        ({"api_key": "lp-no"}, litellm.AuthenticationError),
        ({"temperature": 3}, litellm.BadRequestError),
        ({"messages": long}, litellm.ContextWindowExceededError),
    ):
        with pytest.raises(error):
            litellm.completion(**asked | changed, num_retries=0)


def test_langchain(address: Address) -> None:
    model = ChatOpenAI(model="sql", base_url=address.v1, api_key=address.key, temperature=0)
    assert model.invoke(QUESTION).content == QUERY
    assert "".join(chunk.content for chunk in model.stream(QUESTION)) == QUERY
    remembering = model.model_copy(update={"use_responses_api": True})
    first = remembering.invoke(QUESTION)
    second = remembering.invoke(QUESTION.replace("London", "Paris"), previous_response_id=first.response_metadata["id"])
    assert (first.text, second.text) == (QUERY, QUERY.replace("London", "Paris"))


def test_langchain_embeddings(address: Address) -> None:
    embeddings = OpenAIEmbeddings(
        model="demo", base_url=address.v1, api_key=address.key, check_embedding_ctx_length=False
    )
    one, other = embeddings.embed_documents(["The dog sleeps.", "The cat sings."])
    assert len(one) == len(other) == 192 and one != other


def test_llama_index(address: Address) -> None:
    model = OpenAILike(model="sql", api_base=address.v1, api_key=address.key, is_chat_model=True, temperature=0)
    messages = [ChatMessage(role="user", content=QUESTION)]
    assert model.chat(messages).message.content == QUERY
    assert "".join(piece.delta for piece in model.stream_chat(messages)) == QUERY


def test_huggingface_hub(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "huggingface_hub.constants.ENDPOINT", address.root
    )  # it looks for something there, and does without
    client = InferenceClient(base_url=address.root, api_key=address.key)
    answer = client.chat_completion(model="sql", messages=HELLO, temperature=0)
    assert answer.choices[0].message.content == QUERY
    chunks = client.chat_completion(model="sql", messages=HELLO, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == QUERY


def test_ollama(address: Address) -> None:
    client = ollama.Client(address.root, headers={"authorization": f"Bearer {address.key}"})
    options = {"temperature": 0}
    assert client.chat("sql", HELLO, options=options).message.content == QUERY
    parts = client.chat("sql", HELLO, options=options, stream=True)
    assert "".join(part.message.content or "" for part in parts) == QUERY
    assert client.generate("sql", QUESTION, options=options).response == QUERY
    one, other = client.embed("demo", ["The dog sleeps.", "The cat sings."]).embeddings
    assert len(one) == len(other) == 192 and one != other


def test_llm(address: Address) -> None:
    model = Chat(model_id="sql", model_name="sql", api_base=address.v1)
    assert model.prompt(QUESTION, key=address.key, stream=False, temperature=0).text() == QUERY
    assert "".join(model.prompt(QUESTION, key=address.key, stream=True, temperature=0)) == QUERY


def test_dspy(address: Address) -> None:
    model = dspy.LM("openai/sql", api_base=address.v1, api_key=address.key, temperature=0, max_tokens=60, cache=False)
    assert model(QUESTION) == [QUERY]
