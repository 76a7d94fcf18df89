"""The Responses API: what a chat answers, in items and events that the openai package's own types take."""

import json
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from loraplex.web.state import State

from .fake_engine import BASE_SENTENCE, FakeEngine
from .routed import PROD, VERSION, digests, put, until
from .test_adapters_api import as_admin
from .tools import CALL, HELLO, SCHEMA, SHORT, TIME, WEATHER, say, use_template

__all__ = ["as_admin", "digests"]
RESPONSES = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS = [{"type": "function", **tool["function"]} for tool in (WEATHER, TIME)]
TOLD_CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Bern"}'}


async def ask(client: httpx.AsyncClient, status: int = 200, **fields: Any) -> Any:
    """The answer, or the error."""
    answer = await client.post(RESPONSES, json={"model": "tiny", "input": "Hello", **fields})
    assert answer.status_code == status, answer.text
    if status != 200:
        return answer.json()["error"]
    Response.model_validate(answer.json(), strict=True)
    return answer.json()


async def events_of(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """Each named as its type, numbered from 0, and as the openai package has it; nothing follows the last one."""
    body = {"model": "tiny", "input": "Hello", "stream": True, **fields}
    answer = await client.post(RESPONSES, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == len(events)
        EVENT.validate_python(event)
        events.append(event)
    return events


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


def text_of(state: State) -> str:
    """The last prompt."""
    assert isinstance(state.engine, FakeEngine)
    return state.tokenizer.decode(state.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


async def test_whole_answer(client: httpx.AsyncClient) -> None:
    body = await ask(client, metadata={"run": "7"}, user="me", temperature=0.5, max_output_tokens=100)
    [message] = body["output"]
    [part] = message["content"]
    assert part == {"type": "output_text", "text": BASE_SENTENCE, "annotations": [], "logprobs": []}
    assert (message["role"], message["status"], body["status"]) == ("assistant", "completed", "completed")
    assert body["id"].startswith("resp_") and message["id"].startswith("msg_")
    assert (body["model"], body["metadata"], body["user"]) == ("tiny", {"run": "7"}, "me")
    assert (body["temperature"], body["top_p"], body["max_output_tokens"]) == (0.5, 1.0, 100)
    assert (body["tools"], body["tool_choice"], body["text"]["format"]) == ([], "auto", {"type": "text"})
    assert body["store"] is True and body["previous_response_id"] is None
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == 4


async def test_a_stream_tells_of_each_step(client: httpx.AsyncClient) -> None:
    events = await events_of(client)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert "".join(event["delta"] for event in events[4:-4]) == events[-4]["text"] == BASE_SENTENCE
    assert events[0]["response"]["output"] == [] and events[0]["response"]["status"] == "in_progress"
    assert events[2]["item"]["content"] == [] and events[2]["item"]["status"] == "in_progress"
    final, whole = events[-1]["response"], await ask(client)
    changing = ("id", "created_at", "completed_at", "output")
    assert {name: final[name] for name in final if name not in changing} == {
        name: whole[name] for name in whole if name not in changing
    }
    assert without_ids(final["output"]) == without_ids(whole["output"])
    assert final["output"] == [events[-2]["item"]] and events[-2]["item"]["id"] == events[4]["item_id"]
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_cut_says_so(client: httpx.AsyncClient, stream: bool) -> None:
    events = await events_of(client, max_output_tokens=3) if stream else []
    body = events[-1]["response"] if stream else await ask(client, max_output_tokens=3)
    assert body["status"] == body["output"][0]["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"} and body["completed_at"] is None
    assert body["usage"]["output_tokens"] == 3
    assert not stream or events[-1]["type"] == "response.incomplete"


CONVERSATIONS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"input": "Hi"}, [{"role": "user", "content": "Hi"}]),
    (
        {"input": "Hi", "instructions": "Be brief."},
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    ),
    (
        {
            "input": [
                {"role": "developer", "content": "Be kind."},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [
                        {"type": "output_text", "text": "two", "annotations": [], "logprobs": []},
                        {"type": "refusal", "refusal": "no"},
                    ],
                },
                {"role": "user", "content": "three", "type": None},
            ]
        },
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two\nno"},
            {"role": "user", "content": "three"},
        ],
    ),
    (
        {
            "input": [
                *HELLO,
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
                {"role": "assistant", "content": "I look."},
                {**TOLD_CALL, "id": "fc_1", "status": "completed"},
                {"type": "function_call", "call_id": "call_2", "name": "time", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
                {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "1"}]},
            ]
        },
        [
            *HELLO,
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {"id": "call_1", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}},
                    {"id": "call_2", "function": {"name": "time", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "call_2", "content": "1"},
        ],
    ),
    (
        {
            "input": [
                *HELLO,
                {"type": "function_call", "call_id": "call_3", "name": "time", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_3", "output": "2"},
            ]
        },
        [
            *HELLO,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_3", "function": {"name": "time", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "call_3", "content": "2"},
        ],
    ),
]


@pytest.mark.parametrize(("fields", "messages"), CONVERSATIONS)
async def test_items_are_the_messages_of_a_chat(
    client: httpx.AsyncClient, state: State, fields: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    use_template(state, SHORT)
    await ask(client, **fields)
    prompt = text_of(state)
    chat = await client.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert chat.status_code == 200, chat.text
    assert prompt == text_of(state) and messages[0]["content"] in prompt


async def test_reasoning_of_before_reaches_a_template_that_knows_it(client: httpx.AsyncClient, state: State) -> None:
    use_template(state, "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }};{% endfor %}")
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    await ask(client, input=[*HELLO, thought, {"role": "assistant", "content": "a"}, *HELLO])
    assert text_of(state) == "|Hello;hm|a;|Hello;"


async def test_fields_arrive_as_those_of_a_chat(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    shared = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "stop": ["x"], "repetition_penalty": 1.1}
    form = {"name": "it", "schema": SCHEMA}
    await ask(client, **shared, max_output_tokens=9, cache_salt="s", text={"format": {"type": "json_schema", **form}})
    chat = {"model": "tiny", "messages": HELLO, **shared, "max_tokens": 9, "cache_salt": "s"}
    answer = await client.post(
        "/v1/chat/completions", json={**chat, "response_format": {"type": "json_schema", "json_schema": form}}
    )
    assert answer.status_code == 200
    first, second = engine.requests[-2:]
    assert first.params == second.params and first.params.structured_outputs is not None
    assert (first.prompt_token_ids, first.cache_salt) == (second.prompt_token_ids, second.cache_salt)


@pytest.mark.parametrize("asked", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
async def test_logprobs(client: httpx.AsyncClient, asked: dict[str, Any]) -> None:
    chat = {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": asked.get("top_logprobs", 0)}
    expected = (await client.post("/v1/chat/completions", json=chat)).json()["choices"][0]["logprobs"]["content"]
    whole = await ask(client, **asked)
    assert whole["output"][0]["content"][0]["logprobs"] == expected
    events = await events_of(client, **asked)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == expected
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected


async def test_calls_are_items(client: httpx.AsyncClient, state: State) -> None:
    use_template(state, SHORT)
    say(state, f'See:\n{CALL}\n<tool_call>{{"name": "time"}}</tool_call> Done.')
    body = await ask(client, tools=TOOLS)
    kinds = [item["type"] for item in body["output"]]
    assert kinds == ["message", "function_call", "function_call", "message"]
    first, weather, time, last = body["output"]
    assert (first["content"][0]["text"], last["content"][0]["text"]) == ("See:", "Done.")
    assert (weather["name"], json.loads(weather["arguments"])) == ("weather", {"city": "Zürich", "days": 2})
    assert (time["name"], time["arguments"], time["status"]) == ("time", "{}", "completed")
    assert len({weather["call_id"], time["call_id"], weather["id"], time["id"]}) == 4
    events = await events_of(client, tools=TOOLS)
    assert without_ids(events[-1]["response"]["output"]) == without_ids(body["output"])
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    for event in done:
        parts = (
            it["delta"] for it in events if it["type"].endswith("arguments.delta") and it["item_id"] == event["item_id"]
        )
        assert "".join(parts) == event["arguments"]
    assert [event["output_index"] for event in done] == [1, 2]
    assert body["tools"][1] == {
        "description": "What time it is",
        "name": "time",
        "parameters": None,
        "strict": False,
        "type": "function",
    }


async def test_a_choice_of_tool_arrives(client: httpx.AsyncClient, state: State, engine: FakeEngine) -> None:
    use_template(state, SHORT)
    say(state, CALL)
    body = await ask(client, tools=TOOLS, tool_choice={"type": "function", "name": "weather"})
    form = engine.requests[-1].params.structured_outputs
    assert form is not None and form.grammar is not None and "weather" in form.grammar and '"time"' not in form.grammar
    assert body["tool_choice"] == {"type": "function", "name": "weather"}
    await ask(client, tools=TOOLS, tool_choice="none")
    assert engine.requests[-1].params.structured_outputs is None and "[weather]" not in text_of(state)


async def test_an_answer_without_a_word_is_an_empty_message(client: httpx.AsyncClient) -> None:
    body = await ask(client, stop=BASE_SENTENCE[0])
    assert [item["content"][0]["text"] for item in body["output"]] == [""]
    events = await events_of(client, stop=BASE_SENTENCE[0])
    assert without_ids(events[-1]["response"]["output"]) == without_ids(body["output"])


REFUSALS: list[tuple[dict[str, Any], str | None, str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id", "id 'resp_1' not found"),
    ({"previous_response_id": ""}, "previous_response_id", "length >= 1"),
    ({"store": "yes"}, "store", "bool"),
    ({"conversation": "c"}, "conversation", "Send previous_response_id"),
    ({"prompt": {"id": "p"}}, "prompt", "Send instructions and input"),
    ({"background": True}, "background", "while the client waits"),
    ({"max_tokens": 5}, "max_tokens", "Send max_output_tokens"),
    ({"messages": HELLO}, "messages", "Send input"),
    ({"n": 2}, "n", "one response per request"),
    ({"response_format": {"type": "text"}}, "response_format", "text.format"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search' is not supported; tools are functions"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "not supported"),
    ({"input": []}, "input", "length >= 1"),
    ({"max_output_tokens": 0}, "max_output_tokens", ">= 1"),
    ({"max_output_tokens": 1000}, "max_output_tokens", "Ask for at most"),
    ({"input": "long " * 300}, "input", "Shorten it to at most"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "low"),
    ({"include": ["nothing"]}, "include[0]", "nothing"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "must be one of user"),
    ({"input": [{"content": "x"}]}, "input[0].role", "it is missing"),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
    ({"input": [*HELLO, {"type": "item_reference", "id": "x"}]}, "input[1].type", "Send the item itself"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type", "'computer_call'"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
        "only parts of type input_text",
    ),
    (
        {"input": [*HELLO, {"type": "function_call_output", "call_id": "call_1", "output": "x"}]},
        "input[1].call_id",
        "Also send the call that this output answers",
    ),
    ({"input": [{**TOLD_CALL, "name": None}]}, "input[0].name", "missing"),
    ({"input": [{**TOLD_CALL, "call_id": None}]}, "input[0].call_id", "missing"),
    (
        {"instructions": "a", "input": [*HELLO, TOLD_CALL, {**TOLD_CALL, "arguments": "x", "call_id": "b"}]},
        "input[2].arguments",
        "input[2].arguments must be the JSON text of an object",
    ),
    ({"tools": [*TOOLS, TOOLS[0]]}, "tools[2].name", "there are two tools 'weather'"),
    ({"tools": [{"type": "function", "name": "f", "parameters": {"type": 3}}]}, "tools[0].parameters", "is invalid"),
    ({"tools": TOOLS, "top_logprobs": 1}, "top_logprobs", "Leave out one"),
    ({"tools": TOOLS, "include": ["message.output_text.logprobs"]}, "include", "Leave out one"),
    (
        {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "text.format and structured_outputs both set",
    ),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", "must not set messages"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
    ({"mirostat": 2}, "mirostat", "not supported"),
    ({"use_beam_search": True}, "use_beam_search", "belongs to /v1/chat/completions and would change the answer"),
    ({"length_penalty": 2}, "length_penalty", "belongs to"),
    ({"early_stopping": "never"}, "early_stopping", "belongs to"),
    ({"best_of": 2}, "best_of", "one response per request"),
    ({"prompt_logprobs": 0}, "prompt_logprobs", "belongs to"),
    ({"add_generation_prompt": False}, "add_generation_prompt", "belongs to"),
    ({"continue_final_message": True}, "continue_final_message", "belongs to"),
    ({"add_special_tokens": True}, "add_special_tokens", "belongs to"),
    ({"separate_reasoning": False}, "separate_reasoning", "belongs to"),
    ({"include_reasoning": False}, "include_reasoning", "not supported"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSALS)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_name_the_fields_of_this_api(
    client: httpx.AsyncClient, state: State, fields: dict[str, Any], param: str | None, words: str, stream: bool
) -> None:
    use_template(state, SHORT)
    error = await ask(client, 400, **fields, stream=stream)
    assert error["param"] == param and words in error["message"], error
    for word in ("max_completion_tokens", "messages[", ".function", "response_format"):
        assert word not in error["message"].replace("response_format is not", "") or word in str(fields)


async def test_a_template_without_calls_names_the_item(client: httpx.AsyncClient, state: State) -> None:
    use_template(state, "{% for m in messages %}{{ m.content }}{% endfor %}")
    error = await ask(client, 400, instructions="a", input=[*HELLO, TOLD_CALL])
    assert error["param"] == "input[1]" and error["message"].startswith("input[1]: this model's chat template")


async def test_members_that_change_nothing_pass_and_unknown_ones_are_named(client: httpx.AsyncClient) -> None:
    fields = {
        "store": True,
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "stream_options": {"include_obfuscation": False},
        "background": False,
        "previous_response_id": None,
        "truncation": "auto",
        "max_tool_calls": 3,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": None},
    }
    body = {"model": "tiny", "input": "Hello", **fields}
    answer = await client.post(RESPONSES, json=body)
    assert answer.status_code == 200 and "x-loraplex-ignored-fields" not in answer.headers
    assert (answer.json()["prompt_cache_key"], answer.json()["max_tool_calls"]) == ("k", 3)
    without_effect = {"reasoning": {"effort": "low"}, "foo": 1, "prompt_cache_options": {"ttl": "1h"}}
    answer = await client.post(RESPONSES, json=body | without_effect)
    assert answer.headers["x-loraplex-ignored-fields"] == "foo, prompt_cache_options, reasoning"


async def test_a_stream_that_breaks_off_says_failed(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.crash_after = 2
    events = await events_of(client)
    assert [event["type"] for event in events[-5:]] == [
        "error",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.failed",
    ]
    error, failed = events[-5], events[-1]["response"]
    assert failed["status"] == "failed" and failed["output"][0]["status"] == "incomplete"
    assert failed["error"] == {"code": "server_error", "message": error["message"]} and failed["usage"] is None
    assert error["error"]["message"] == error["message"] and error["error"]["type"] == "server_error"


async def test_routes_and_shadows_know_it(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str], as_admin: None
) -> None:
    engine.resident = set(digests)
    await put(client, PROD, version=1)
    await put(client, f"{PROD}/shadow", version=2, percent=100)
    for stream in (False, True):
        body = {"model": "sql@prod", "input": "Hello", "stream": stream, "temperature": 0}
        answer = await client.post(RESPONSES, json=body)
        assert answer.status_code == 200 and answer.headers[VERSION] == "sql@1"
    await until(lambda: not state.shadows._running)
    assert [request.adapters[0].digest for request in engine.requests].count(digests[1]) == 2
