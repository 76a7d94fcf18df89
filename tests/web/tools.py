"""What tests of tools share: two tools, a template that tells of them, and how requests with them are asked."""

import json
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest

from loraplex.web.chat_templates.chat_template import ChatTemplate
from loraplex.web.state import State
from loraplex.web.text.text_processor import TrustedTemplate

from .fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Zürich", "Bern"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time", "description": "What time it is"}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
TEMPLATE = (
    "{% for t in tools or [] %}[{{ t | tojson }}]{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "</tool_call>{% endfor %}{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SHORT = TEMPLATE.replace("[{{ t | tojson }}]", "[{{ t.function.name }}]")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>'


def use_template(state: State, source: str) -> None:
    template = TrustedTemplate(ChatTemplate(source, state.tokenizer.named_tokens, 100_000))
    state.text_processors.base = replace(state.text_processors.base, template=template)


def say(state: State, text: str) -> None:
    assert isinstance(state.engine, FakeEngine)
    state.engine.says[""] = state.tokenizer.encode(text, add_special_tokens=False)


def function(**members: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **members}}]


@pytest.fixture(autouse=True)
def with_tools(state: State) -> None:
    use_template(state, SHORT)
    say(state, CALL)


async def ask(client: httpx.AsyncClient, status: int = 200, **fields: Any) -> Any:
    answer = await client.post(CHAT, json={"model": "tiny", "messages": HELLO, "tools": [WEATHER, TIME], **fields})
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]


async def prompt_of(client: httpx.AsyncClient, state: State, **fields: Any) -> str:
    body = {"model": "tiny", "messages": HELLO, **fields}
    response = await client.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    return state.tokenizer.decode(response.json()["tokens"], skip_special_tokens=False)


async def tools_are_called(state: State, client: httpx.AsyncClient) -> None:
    """With a model of random weights, which says nothing sensible by itself."""
    before = state.text_processors.base
    use_template(state, SHORT)
    try:
        for style, fields in (
            ("hermes", {"tool_choice": "required", "parallel_tool_calls": False}),
            ("llama3_json", {"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
            ("mistral", {"tool_choice": "required"}),
        ):
            state.text_processors.base = replace(state.text_processors.base, tool_call_parser=style)
            body = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "max_tokens": 200, "seed": 3}
            choice = (await client.post(CHAT, json=body | fields)).json()["choices"][0]
            assert choice["finish_reason"] == "tool_calls", choice
            assert choice["message"]["content"] is None
            for call in choice["message"]["tool_calls"]:
                jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
        state.text_processors.base = replace(state.text_processors.base, tool_call_parser="hermes")
        body = {"model": "tiny", "messages": HELLO, "tools": [STRICT], "max_tokens": 8, "ignore_eos": True}
        choice = (await client.post(CHAT, json=body)).json()["choices"][0]
        assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"], choice
        wrong = {"type": "function", "function": {"name": "bad", "parameters": {"not": {}}}}
        for stream in (False, True):
            body = {"model": "tiny", "messages": HELLO, "tools": [WEATHER, wrong], "tool_choice": "required"}
            refused = await client.post(CHAT, json=body | {"stream": stream})
            assert refused.status_code == 400 and "the tool 'bad' cannot be enforced" in refused.text, refused.text
    finally:
        state.text_processors.base = before
