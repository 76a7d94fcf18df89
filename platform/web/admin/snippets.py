"""Code a person can paste, filled in with this server's address and the adapter's name."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loraplex.registry.access.keys import CreatedKey
from loraplex.registry.access.scopes import INFERENCE


@dataclass(frozen=True, slots=True)
class Snippet:
    label: str
    code: str


def snippets(origin: str, model: str, chat: bool) -> list[Snippet]:
    """`origin`: scheme, host and sub-path as the browser reached this server. `chat`: the base has a chat template."""
    path, call = ("chat/completions", "chat.completions") if chat else ("completions", "completions")
    text = "message.content" if chat else "text"
    asked = '"messages": [{"role": "user", "content": "Hello"}]' if chat else '"prompt": "Hello"'
    python_asked = 'messages=[{"role": "user", "content": "Hello"}]' if chat else 'prompt="Hello"'
    javascript_asked = 'messages: [{ role: "user", content: "Hello" }]' if chat else 'prompt: "Hello"'
    curl = f"""curl {origin}/v1/{path} \\
  -H "Authorization: Bearer $LORAPLEX_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", {asked}}}'"""
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
    return [Snippet("curl", curl), Snippet("Python", python), Snippet("JavaScript", javascript)]


def client_code(origin: str, made: CreatedKey, chat: bool) -> Sequence[Snippet]:
    """What whoever gets a new key needs: the key and code for its model. Empty where it is for several, or for none."""
    models = sorted(made.key.adapters or ())
    if len(models) != 1 or not made.key.allows(INFERENCE):
        return ()
    curl, *others = snippets(origin, models[0], chat)
    return [replace(curl, code=f"export LORAPLEX_KEY={made.token}\n{curl.code}"), *others]
