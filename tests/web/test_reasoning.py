"""What models think is told apart from what they answer, whole and streamed."""

import functools
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken

from loraplex.web.state import State

from .fake_engine import BASE_SENTENCE, FakeEngine
from .test_adapters_api import as_admin
from .test_chat import chunks
from .test_own_tokenizer import register
from .test_responses import ask as ask_responses
from .test_responses import events_of, text_of
from .tools import CALL, CHAT, HELLO, SCHEMA, TIME, WEATHER, say, use_template

__all__ = ["as_admin"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] if m.content else '' }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{% endfor %}"
    "{% for t in tools or [] %}<tool_call> arguments {{ t.function.name }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if thinking %}<think>\n{% endif %}{% endif %}"
)
OPEN = {"chat_template_kwargs": {"thinking": True}}
THOUGHT = "<think>\nThe sun\n\nis up.\n</think>\n\nIt is day."


@pytest.fixture(autouse=True)
def with_reasoning(state: State) -> None:
    use_template(state, TEMPLATE)
    say(state, THOUGHT)


async def ask(client: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await client.post(CHAT, json={"model": "tiny", "messages": HELLO, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def said(client: httpx.AsyncClient, **fields: Any) -> tuple[str | None, str | None]:
    """Reasoning and content, which a stream has too. Both names of the reasoning have the same, and never nothing."""
    message = (await ask(client, **fields))["choices"][0]["message"]
    assert message.get("reasoning") == message.get("reasoning_content") != ""
    events = await chunks(client, messages=HELLO, **fields)
    deltas = [choice["delta"] for event in events[:-1] for choice in event["choices"]]
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)
    assert not any(delta.get("reasoning") and "content" in delta for delta in deltas)
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    words = "".join(delta.get("content") or "" for delta in deltas)
    assert (thought, words) == (message.get("reasoning_content") or "", message["content"] or "")
    return message.get("reasoning_content"), message["content"]


async def test_whole_and_streamed(client: httpx.AsyncClient, state: State) -> None:
    assert await said(client) == ("The sun\n\nis up.", "It is day.")
    say(state, "The sun is up.</think>It is day.")
    assert await said(client, **OPEN) == ("The sun is up.", "It is day."), "the prompt ends with the opening"
    assert await said(client) == (None, "The sun is up.</think>It is day."), "and here it does not"
    say(state, "<think>The sun")
    assert await said(client) == ("The sun", None)
    say(state, "<think>\n\n</think>\n\nIt is day.")
    assert await said(client) == (None, "It is day.")
    say(state, " It is day.")
    assert await said(client) == (None, " It is day.")


async def test_the_template_the_setting_and_the_request_decide(client: httpx.AsyncClient, state: State) -> None:
    apart, together = ("The sun\n\nis up.", "It is day."), (None, THOUGHT)
    assert await said(client, separate_reasoning=False) == together
    assert await said(client, include_reasoning=False) == (None, "It is day.")
    base = state.text_processors.base
    state.text_processors.base = replace(base, reasoning_parser="none")
    assert await said(client) == together
    state.text_processors.base = replace(base, reasoning_parser="mistral")
    assert await said(client) == together
    use_template(state, TEMPLATE.replace("</think>", "</thought>"))
    state.text_processors.base = replace(state.text_processors.base, reasoning_parser="auto")
    assert await said(client) == together, "a template that knows no reasoning"
    state.text_processors.base = replace(state.text_processors.base, reasoning_parser="think")
    assert await said(client) == apart


async def test_the_profile_decides(client: httpx.AsyncClient, state: State, engine: FakeEngine, as_admin: None) -> None:
    await register(state, "sql", b"one", None)
    [digest] = engine.registered
    engine.says[digest] = state.tokenizer.encode("[THINK]Why[/THINK]So", add_special_tokens=False)
    path = "/api/v1/adapters/sql/profile"
    assert await said(client, model="sql") == (None, "[THINK]Why[/THINK]So")
    assert (await client.put(path, json={"reasoning_parser": "mistral"})).status_code == 200
    assert await said(client, model="sql") == ("Why", "So")
    assert await said(client) == ("The sun\n\nis up.", "It is day."), "the base has none"
    refused = await client.put(path, json={"reasoning_parser": "deepseek"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "reasoning_parser")
    assert "auto, none, think, mistral, harmony" in refused.json()["error"]["message"]


async def test_marks_that_are_special_tokens_are_seen(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    marks = [AddedToken(mark, special=True) for mark in ("[THINK]", "[/THINK]")]
    tokenizer = state.tokenizer.extended(marks, {})
    state.text_processors.base = replace(state.text_processors.base, tokenizer=tokenizer, reasoning_parser="mistral")
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)
    pad = tokenizer.token_id("<pad>")
    assert pad is not None
    engine.says[""] = [*encode("[THINK]Why"), pad, *encode("[/THINK]So"), pad]
    assert await said(client) == ("Why", "So")
    assert await said(client, separate_reasoning=False) == (None, "WhySo")
    usage = (await ask(client))["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(encode("[THINK]Why[/THINK]")) + 1


async def test_channels_of_special_tokens_are_seen(client: httpx.AsyncClient, state: State, engine: FakeEngine) -> None:
    """As gpt-oss writes them."""
    marks = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>")
    tokenizer = state.tokenizer.extended([AddedToken(mark, special=True) for mark in marks], {})
    state.text_processors.base = replace(state.text_processors.base, tokenizer=tokenizer, reasoning_parser="harmony")
    answer = tokenizer.encode("<|channel|>final<|message|>So<|return|>", add_special_tokens=False)
    thought = "<|channel|>analysis<|message|>Why<|end|><|start|>assistant"
    engine.says[""] = [*tokenizer.encode(thought, add_special_tokens=False), *answer]
    assert await said(client) == ("Why", "So")
    engine.says[""] = answer
    assert await said(client) == (None, "So")


async def test_each_choice_and_each_token_counts(client: httpx.AsyncClient, state: State) -> None:
    body = await ask(client, n=2)
    assert [choice["message"]["reasoning_content"] for choice in body["choices"]] == ["The sun\n\nis up."] * 2
    length = len(state.tokenizer.encode(THOUGHT.partition("It is")[0].rstrip(), add_special_tokens=False))
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * length}
    assert body["usage"]["completion_tokens"] > 2 * length
    usages = [
        (await chunks(client, messages=HELLO, n=2, stream_options={"include_usage": True}, **fields))[-2]["usage"]
        for fields in ({}, {"stop": ["day"]})
    ]
    assert usages[0] == body["usage"]
    assert usages[1]["completion_tokens_details"] == {"reasoning_tokens": 2 * length}, "with text that is held back"
    running = {"include_usage": True, "continuous_usage_stats": True}
    counted = [event["usage"] for event in (await chunks(client, messages=HELLO, stream_options=running))[:-1]]
    details = [usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0) for usage in counted]
    assert details == sorted(details) and details[-2:] == [length] * 2 and len({*details}) > 2, "counting along"
    say(state, "<think>The sun is up")
    usage = (await ask(client, max_tokens=9))["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 9} and usage["completion_tokens"] == 9
    say(state, BASE_SENTENCE)
    assert "completion_tokens_details" not in (await ask(client))["usage"]


async def test_log_probabilities_are_of_all_tokens(client: httpx.AsyncClient, state: State) -> None:
    body = await ask(client, logprobs=True)
    tokens = [entry["token"] for entry in body["choices"][0]["logprobs"]["content"]]
    assert "".join(tokens).startswith(THOUGHT)
    events = await chunks(client, messages=HELLO, logprobs=True)
    streamed = [
        entry["token"]
        for event in events[:-1]
        for choice in event["choices"]
        for entry in (choice.get("logprobs") or {}).get("content", [])
    ]
    assert streamed == tokens


async def test_calls_are_looked_for_behind_the_reasoning(client: httpx.AsyncClient, state: State) -> None:
    inside = CALL.replace("Zürich", "Bern")
    say(state, f"<think>I could say {inside} or not.</think>\nSee:\n{CALL}")
    fields: dict[str, Any] = {"tools": [WEATHER, TIME]}
    assert await said(client, **fields) == (f"I could say {inside} or not.", "See:")
    choice = (await ask(client, **fields))["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert "Zürich" in call["function"]["arguments"] and choice["finish_reason"] == "tool_calls"
    say(state, f"<think>Why</think>{CALL}")
    assert await said(client, **fields) == ("Why", None)
    say(state, f"<think>Only {CALL}")
    choice = (await ask(client, **fields))["choices"][0]
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


async def test_a_form_begins_with_the_first_token_so_nothing_is_thought(
    client: httpx.AsyncClient, state: State
) -> None:
    say(state, '{"city": "Bern"}')
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for fields in ({"response_format": form}, {"structured_outputs": {"json": SCHEMA}}):
        assert await said(client, **OPEN, **fields) == (None, '{"city": "Bern"}')
    say(state, CALL)
    choice = (await ask(client, **OPEN, tools=[WEATHER], tool_choice="required"))["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1 and "reasoning" not in choice["message"]


async def test_an_answer_is_continued_where_it_was(client: httpx.AsyncClient, state: State) -> None:
    say(state, " up.</think>Day.")

    async def continued(content: Any) -> tuple[str | None, str | None]:
        messages = [*HELLO, {"role": "assistant", "content": content}]
        fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
        message = (await ask(client, **fields))["choices"][0]["message"]
        return message.get("reasoning_content"), message["content"]

    use_template(state, "{# </think> #}{% for m in messages %}{{ m.content }}{% endfor %}")
    assert await continued("<think>The sun is") == ("up.", "Day.")
    assert await continued([{"type": "text", "text": "<think>The sun is"}]) == ("up.", "Day.")
    assert await continued("<think>Why</think>It is") == (None, " up.</think>Day.")


async def test_reasoning_is_sent_back_to_templates_that_know_it(client: httpx.AsyncClient, state: State) -> None:
    message = (await ask(client))["choices"][0]["message"]
    await ask(client, messages=[*HELLO, message, *HELLO])
    assert text_of(state) == "<|user|>Hello<|assistant|>It is day.(The sun\n\nis up.)<|user|>Hello<|assistant|>"


async def test_responses_have_an_item_of_it(client: httpx.AsyncClient, state: State) -> None:
    body = await ask_responses(client)
    thought, message = body["output"]
    assert thought["type"] == "reasoning" and thought["summary"] == [] and thought["id"].startswith("rs_")
    assert thought["content"] == [{"type": "reasoning_text", "text": "The sun\n\nis up."}]
    assert message["content"][0]["text"] == "It is day."
    details = body["usage"]["output_tokens_details"]
    assert 0 < details["reasoning_tokens"] < body["usage"]["output_tokens"]

    events = await events_of(client)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:4] == ["output_item.added", "content_part.added"]
    told = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(told) == "The sun\n\nis up." and len(told) > 1
    ended = kinds.index("reasoning_text.done")
    assert kinds[ended + 1 : ended + 5] == [
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
    ]
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message"]
    assert [item["content"][0]["text"] for item in final["output"]] == ["The sun\n\nis up.", "It is day."]
    assert final["usage"]["output_tokens_details"] == details

    again = [{"role": "user", "content": "Hello"}, *final["output"], {"role": "user", "content": "Hello"}]
    await ask_responses(client, input=again)
    assert text_of(state) == "<|user|>Hello<|assistant|>It is day.(The sun\n\nis up.)<|user|>Hello<|assistant|>"


async def test_responses_of_reasoning_only_have_an_empty_message(client: httpx.AsyncClient, state: State) -> None:
    body = await ask_responses(client, max_output_tokens=9)
    assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
    assert body["output"][1]["content"][0]["text"] == "" and body["status"] == "incomplete"
    assert [event["type"] for event in await events_of(client, max_output_tokens=9)][-1] == "response.incomplete"


async def test_responses_have_log_probabilities_of_the_words_only(client: httpx.AsyncClient) -> None:
    fields = {"include": ["message.output_text.logprobs"]}
    part = (await ask_responses(client, **fields))["output"][1]["content"][0]
    tokens = [entry["token"] for entry in part["logprobs"]]
    assert "".join(tokens).lstrip().startswith("It is day.") and "sun" not in "".join(tokens)
    events = await events_of(client, **fields)
    streamed = [
        entry for event in events if event["type"].endswith("_text.delta") for entry in event.get("logprobs", [])
    ]
    assert [entry["token"] for entry in streamed] == tokens
    assert events[-1]["response"]["output"][1]["content"][0]["logprobs"] == part["logprobs"]


async def test_log_probabilities_without_words_are_the_message_s_too(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    pad = state.tokenizer.token_id("<pad>")
    assert pad is not None
    engine.says[""] = [*state.tokenizer.encode("<think>Why</think>", add_special_tokens=False), pad]
    fields = {"include": ["message.output_text.logprobs"]}
    whole, streamed = await ask_responses(client, **fields), (await events_of(client, **fields))[-1]["response"]
    for response in (whole, streamed):
        [part] = response["output"][1]["content"]
        assert part["text"] == "" and [entry["token"] for entry in part["logprobs"]] == ["<pad>", "</s>"]
