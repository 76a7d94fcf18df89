"""Code a person can paste, filled in with this server's address and the adapter's name."""

from dataclasses import dataclass


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
