"""Code a person can paste, filled in with this server's address and the adapter's name."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from loraplex.engine.pooling.wanted import PoolingKind
from loraplex.registry.access.keys import CreatedKey
from loraplex.registry.access.scopes import INFERENCE
from loraplex.registry.errors import AdapterUnavailable, UnknownAdapter

from ..state import State

Use = Literal["chat", "completions", "embeddings", "rerank", "classify", "pooling"]
"""What a model is asked for, by the end of the path."""


@dataclass(frozen=True, slots=True)
class Snippet:
    label: str
    code: str


def use_of(state: State, model: str, tenant: str) -> Use:
    """What this model answers best."""
    info = state.engine.info
    if info is None or not info.why_silent:
        return "completions" if state.template is None else "chat"
    own_head = False
    with suppress(AdapterUnavailable, UnknownAdapter):
        found = state.snapshots.current.resolve(model, tenant)
        own_head = found is not None and found.classifies
    if info.classes is None and not own_head:
        return "embeddings"
    if info.classified_by is PoolingKind.ALL:
        return "pooling"
    return "classify" if own_head or info.classes is None or len(info.classes.labels) > 1 else "rerank"


def snippets(origin: str, model: str, use: Use) -> list[Snippet]:
    """`origin`: scheme, host and sub-path as the browser reached this server."""
    match use:
        case "chat" | "completions":
            return _generating(origin, model, chat=use == "chat")
        case "embeddings":
            return _embedding(origin, model)
        case "rerank":
            return [_curl(origin, "v1/rerank", model, '"query": "Hello", "documents": ["Good morning", "Goodbye"]')]
    return [_curl(origin, use, model, '"input": "Hello"')]


def _curl(origin: str, path: str, model: str, asked: str) -> Snippet:
    code = f"""curl {origin}/{path} \\
  -H "Authorization: Bearer $LORAPLEX_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", {asked}}}'"""
    return Snippet("curl", code)


def _embedding(origin: str, model: str) -> list[Snippet]:
    python = f"""import os

from openai import OpenAI

client = OpenAI(base_url="{origin}/v1", api_key=os.environ["LORAPLEX_KEY"])
answer = client.embeddings.create(model="{model}", input=["Hello"])
print(answer.data[0].embedding)"""
    javascript = f"""import OpenAI from "openai";

const client = new OpenAI({{ baseURL: "{origin}/v1", apiKey: process.env.LORAPLEX_KEY }});
const answer = await client.embeddings.create({{ model: "{model}", input: ["Hello"] }});
console.log(answer.data[0].embedding);"""
    curl = _curl(origin, "v1/embeddings", model, '"input": "Hello"')
    return [curl, Snippet("Python", python), Snippet("JavaScript", javascript)]


def _generating(origin: str, model: str, chat: bool) -> list[Snippet]:
    """`chat`: the base has a chat template."""
    path, call = ("chat/completions", "chat.completions") if chat else ("completions", "completions")
    text = "message.content" if chat else "text"
    asked = '"messages": [{"role": "user", "content": "Hello"}]' if chat else '"prompt": "Hello"'
    python_asked = 'messages=[{"role": "user", "content": "Hello"}]' if chat else 'prompt="Hello"'
    javascript_asked = 'messages: [{ role: "user", content: "Hello" }]' if chat else 'prompt: "Hello"'
    curl = _curl(origin, f"v1/{path}", model, asked)
    python = f"""import os

from openai import OpenAI

client = OpenAI(base_url="{origin}/v1", api_key=os.environ["LORAPLEX_KEY"])
answer = client.{call}.create(
    model="{model}",
    {python_asked},
)
print(answer.choices[0].{text})"""
    javascript = f"""import OpenAI from "openai";

const client = new OpenAI({{ baseURL: "{origin}/v1", apiKey: process.env.LORAPLEX_KEY }});
const answer = await client.{call}.create({{
  model: "{model}",
  {javascript_asked},
}});
console.log(answer.choices[0].{text});"""
    return [curl, Snippet("Python", python), Snippet("JavaScript", javascript)]


def client_code(origin: str, made: CreatedKey, state: State, tenant: str) -> Sequence[Snippet]:
    """What whoever gets a new key needs: the key and code for its model. Empty where it is for several, or for none."""
    models = sorted(made.key.adapters or ())
    if len(models) != 1 or not made.key.allows(INFERENCE):
        return ()
    curl, *others = snippets(origin, models[0], use_of(state, models[0], tenant))
    return [replace(curl, code=f"export LORAPLEX_KEY={made.token}\n{curl.code}"), *others]
