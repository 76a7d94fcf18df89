"""Code a person can paste, filled in with this server's address and the adapter's name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snippet:
    label: str
    code: str


def snippets(origin: str, model: str) -> list[Snippet]:
    """`origin`: scheme, host and sub-path as the browser reached this server."""
    curl = f"""curl {origin}/v1/chat/completions \\
  -H "Authorization: Bearer $LORAPLEX_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'"""
    python = f"""from openai import OpenAI

client = OpenAI(base_url="{origin}/v1", api_key="YOUR_KEY")
answer = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Hello"}}],
)
print(answer.choices[0].message.content)"""
    javascript = f"""import OpenAI from "openai";

const client = new OpenAI({{ baseURL: "{origin}/v1", apiKey: process.env.LORAPLEX_API_KEY }});
const answer = await client.chat.completions.create({{
  model: "{model}",
  messages: [{{ role: "user", content: "Hello" }}],
}});
console.log(answer.choices[0].message.content);"""
    return [Snippet("curl", curl), Snippet("Python", python), Snippet("JavaScript", javascript)]
