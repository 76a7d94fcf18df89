"""What the Messages API refuses: in Anthropic's body, with the field's own name, whoever refuses it."""

from typing import Any

import httpx
import pytest

from loraplex.registry.access.quotas import Quota
from loraplex.web.state import State

from ..conftest import KEY
from ..fake_engine import FakeEngine
from ..tools import CALL, HELLO, SHORT, say, use_template
from .ask import COUNT, MESSAGES, ask, body_of, error_of
from .test_messages import RESULT, TIME, USED, WEATHER

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*blocks]}]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    (user(IMAGE), "messages[0].content[0].type: a block of type 'image'"),
    (user({"type": "text", "text": "a"}, {"type": "document"}), "messages[0].content[1].type: a block of type 'docum"),
    (user({"type": "text"}), "messages[0].content[0].text is missing"),
    (user(USED), "messages[0].content[0].type: a block of type 'tool_use' in a message of the user"),
    (user(RESULT), "messages[0].content[0].tool_use_id: no earlier tool_use has the id 'toolu_1'"),
    ({"messages": [*HELLO, {"role": "assistant", "content": [{**USED, "id": None}]}]}, "messages[1].content[0].id"),
    ({"messages": [*HELLO, {"role": "assistant", "content": [{**USED, "input": 5}]}]}, "messages[1].content[0].input"),
    (
        {
            "messages": [
                *HELLO,
                {"role": "assistant", "content": [USED]},
                {"role": "user", "content": [{**RESULT, "content": [IMAGE]}]},
            ]
        },
        "messages[2].content[0].content[0].type",
    ),
    ({"system": [IMAGE]}, "system[0].type"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_k": "a"}, "top_k"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop": ["a"]}, "stop is not supported"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type: 'bash_20250124' is not supported"),
    ({"tools": [{"name": "a", "input_schema": {"type": 3}}]}, "tools[0].input_schema"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name: there are two tools 'weather'"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "time"}}, "tool_choice names 'time'"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"thinking": {"type": "maybe"}}, "thinking"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
    ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
    ({"n": 2}, "n is not supported"),
    ({"mirostat": 2}, "mirostat is not supported"),
    ({"use_beam_search": True}, "use_beam_search belongs to /v1/chat/completions and would change the answer"),
    ({"length_penalty": 2}, "length_penalty belongs to"),
    ({"early_stopping": True}, "early_stopping belongs to"),
    ({"best_of": 2}, "best_of is not supported: one message per request"),
    ({"prompt_logprobs": 0}, "prompt_logprobs belongs to"),
    ({"top_logprobs": 2}, "top_logprobs belongs to"),
    ({"add_generation_prompt": False}, "add_generation_prompt belongs to"),
    ({"continue_final_message": True}, "continue_final_message belongs to"),
    ({"add_special_tokens": True}, "add_special_tokens belongs to"),
    ({"separate_reasoning": False}, "separate_reasoning belongs to"),
    ({"include_reasoning": False}, "include_reasoning is not supported"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"messages": [{"role": "user", "content": "word " * 300}]}, "prompt is too long: This model's maximum context"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_message_names_the_field(
    client: httpx.AsyncClient, state: State, fields: dict[str, Any], words: str, stream: bool
) -> None:
    use_template(state, SHORT)
    error = await ask(client, 400, **fields, stream=stream)
    assert error["type"] == "invalid_request_error" and words in error["message"], error
    for word in ("max_completion_tokens", ".function", "response_format"):
        assert word not in error["message"]


@pytest.mark.parametrize("bound", [None, 0, -1, "5", 2**31])
async def test_a_bound_must_be_there(client: httpx.AsyncClient, bound: Any) -> None:
    assert "max_tokens" in (await ask(client, 400, max_tokens=bound))["message"]


async def test_counting_names_fields_too(client: httpx.AsyncClient) -> None:
    number = {"messages": [{"role": "user", "content": 5.5}]}
    wrong = (({"messages": []}, "messages"), (user(IMAGE), "messages[0].content[0].type"), (number, "content"))
    for fields, words in wrong:
        assert words in (await ask(client, 400, COUNT, **fields))["message"]
    error = await ask(client, 404, COUNT, model="absent")
    assert error["type"] == "not_found_error" and "`absent`" in error["message"]


async def test_a_template_without_tools_says_so(client: httpx.AsyncClient, state: State) -> None:
    use_template(state, "{% for m in messages %}{{ m.content }}{% endfor %}")
    conversation = [*HELLO, {"role": "assistant", "content": [USED]}, {"role": "user", "content": [RESULT]}]
    error = await ask(client, 400, messages=conversation)
    assert error["message"].startswith("messages[1].content[0]: this model's chat template")
    error = await ask(client, 400, tools=[WEATHER])
    assert 'send tool_choice: {"type": "any"} or one of type tool' in error["message"]
    assert "required" not in error["message"]
    say(state, CALL)
    await ask(client, tools=[WEATHER], tool_choice={"type": "any"})


async def test_words_that_look_like_places_stand_as_they_are(client: httpx.AsyncClient, state: State) -> None:
    use_template(state, SHORT)
    for name in ("messages[99].content", "messages[0].tool_calls[7]"):
        error = await ask(client, 400, tools=[WEATHER], tool_choice={"type": "tool", "name": name})
        assert error["message"].startswith(f"tool_choice names '{name}'")


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({"authorization": f"Bearer {KEY}"}, 200, ""),
        ({"x-api-key": KEY}, 200, ""),
        ({"x-api-key": "lp-wrong"}, 401, "authentication_error"),
        ({"authorization": "Bearer lp-wrong"}, 401, "authentication_error"),
        ({}, 401, "authentication_error"),
    ],
)
async def test_keys(client: httpx.AsyncClient, path: str, headers: dict[str, str], status: int, kind: str) -> None:
    del client.headers["authorization"]
    answer = await client.post(path, json=body_of(path, {}), headers=headers)
    assert answer.status_code == status
    assert status == 200 or error_of(answer)["type"] == kind


async def test_each_refusal_has_anthropics_body(client: httpx.AsyncClient, state: State, engine: FakeEngine) -> None:
    adapters_only = state.registry.keys.create("a", ["adapters"], actor="system").token
    tight = state.registry.keys.create("b", ["inference"], actor="system", quota=Quota(requests_per_minute=1)).token
    state.registry.snapshots.refresh()
    found = {
        "permission_error": await client.post(MESSAGES, headers={"authorization": f"Bearer {adapters_only}"}),
        "not_found_error": await client.post(MESSAGES, json=body_of(MESSAGES, {"model": "absent"})),
        "request_too_large": await client.post(MESSAGES, content=b"x" * (2 << 20)),
    }
    for _ in range(2):
        limited = {"authorization": f"Bearer {tight}"}
        found["rate_limit_error"] = await client.post(MESSAGES, json=body_of(MESSAGES, {}), headers=limited)
    state.stopping.set()
    found["overloaded_error"] = await client.post(MESSAGES, json=body_of(MESSAGES, {}))
    statuses = {kind: (error_of(answer)["type"], answer.status_code) for kind, answer in found.items()}
    assert statuses == {
        "permission_error": ("permission_error", 403),
        "not_found_error": ("not_found_error", 404),
        "request_too_large": ("request_too_large", 413),
        "rate_limit_error": ("rate_limit_error", 429),
        "overloaded_error": ("overloaded_error", 529),
    }
    assert found["rate_limit_error"].headers["retry-after"] and found["overloaded_error"].headers["retry-after"]
    refused = [one for one in state.metrics.log.of("default") if one.status == "refused"]
    assert {one.code for one in refused} >= {404, 429}, "the requests page shows them"


async def test_unknown_paths_below_have_it_too(client: httpx.AsyncClient) -> None:
    assert error_of(await client.get(MESSAGES))["message"].startswith("GET is not allowed")
    assert error_of(await client.post(f"{MESSAGES}/nothing", json={}))["type"] == "not_found_error"
    assert set((await client.post("/v1/messagesx", json={})).json()) == {"error"}


async def test_a_fault_of_ours_has_it_too(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr("loraplex.web.anthropic.messages.conversation_of", fail)
    answer = await client.post(MESSAGES, json=body_of(MESSAGES, {"tools": [TIME]}))
    assert answer.status_code == 500 and error_of(answer)["type"] == "api_error"
