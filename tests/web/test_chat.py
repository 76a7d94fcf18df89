import json
from typing import Any

import httpx
import pytest

from .fake_engine import BASE_SENTENCE, FakeEngine, logprob_of
from .tools import use_template

HELLO = [{"role": "user", "content": "Hello"}]


async def chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, **fields})


async def chunks(client: httpx.AsyncClient, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:
    """The events of a stream, [DONE] included."""
    body = {"model": "tiny", "stream": True, **fields}
    async with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


async def test_whole_answer(client: httpx.AsyncClient) -> None:
    response = await chat(client)
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny"
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": BASE_SENTENCE, "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"], choice["index"]) == ("stop", None, 0)
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}


async def test_template_and_tokenizer_make_the_prompt(
    client: httpx.AsyncClient, engine: FakeEngine, state: Any
) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    ]
    await chat(client, messages=messages)
    text = state.tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert text == "<|system|>Be brief.</s><|user|>one\ntwo</s><|assistant|>"


async def test_reasoning_reaches_a_template_that_knows_it(
    client: httpx.AsyncClient, engine: FakeEngine, state: Any
) -> None:
    use_template(
        state,
        "{% for m in messages %}{% if m.reasoning_content is string %}<{{ m.reasoning_content }}>{% endif %}"
        "{{ m.reasoning or '' }}{{ m.content }}{% endfor %}",
    )
    messages = [
        *HELLO,
        {"role": "assistant", "content": "b", "reasoning_content": "two", "prefix": False},
        {"role": "assistant", "content": "c", "reasoning": "three", "partial": None},
    ]
    await chat(client, messages=messages)
    text = state.tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert text == "Hello<two>bthreec"


PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "content", "prompt"),
    [
        (PARTS, "What is 2?", "<user>[What is 2?]"),
        (PARTS, [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}], "<user>[a][ b]"),
        (PARTS.replace("p.text", "p['text'] | upper if p.text else raise_exception('no')"), "A", "<user>[A]"),
        ("{% for m in messages %}{{ m.content if m.content is string else 'no' }}{% endfor %}", "a", "a"),
        ("{% for m in messages %}{{ m.content[:4] }}{% endfor %}", "I am long", "I am"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "a", "A"),
        ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", " a ", "a"),
    ],
)  # fmt: skip
async def test_templates_that_read_parts_get_parts(
    client: httpx.AsyncClient, engine: FakeEngine, state: Any, template: str, content: Any, prompt: str
) -> None:
    """As transformers hands them over; what users say is never left out."""
    use_template(state, template)
    await chat(client, messages=[{"role": "user", "content": content}])
    text = state.tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert text == prompt


async def test_continue_final_message(client: httpx.AsyncClient, engine: FakeEngine, state: Any) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "I was saying "}]
    await chat(client, messages=messages, continue_final_message=True)
    text = state.tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert text == "<|user|>Hello</s><|assistant|>I was saying "


async def test_every_sampling_field_arrives(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    fields = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100},
        "allowed_token_ids": [3, 4],
        "seed": 11,
        "min_tokens": 1,
        "stop": ["x"],
        "stop_token_ids": [9],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "prompt_logprobs": 1,
        "max_tokens": 3,
    }
    response = await chat(client, **fields, logprobs=True, top_logprobs=2, priority=3, cache_salt="mine")
    assert response.status_code == 200
    request = engine.requests[-1]
    for name, value in fields.items():
        expected = {5: -100.0} if name == "logit_bias" else value
        assert getattr(request.params, name) == expected, name
    assert request.params.logprobs == 2
    assert request.priority == 3
    assert request.cache_salt == "default\0mine"


async def test_stream_order(client: httpx.AsyncClient) -> None:
    events = await chunks(client, messages=HELLO, stream_options={"include_usage": True})
    first, *texts, last, usage, done = events
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert "".join(event["choices"][0]["delta"]["content"] for event in texts) == BASE_SENTENCE
    assert last["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 5
    assert done == "[DONE]"
    assert len({(event["id"], event["created"]) for event in events[:-1]}) == 1
    assert all(event["usage"] is None for event in events[:-2])


async def test_running_usage(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await chunks(client, messages=HELLO, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


async def test_stream_without_usage_has_no_such_member(client: httpx.AsyncClient) -> None:
    assert all("usage" not in event for event in (await chunks(client, messages=HELLO))[:-1])


async def test_a_choice_that_met_its_stop_string_is_ended_in_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.stagger = 7
    body = {"model": "tiny", "messages": HELLO, "stop": ["fox"], "n": 3, "max_tokens": 200, "ignore_eos": True}
    answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert [choice["stop_reason"] for choice in answer["choices"]] == ["fox"] * 3
    [request] = engine.requests
    assert engine.ended_choices == [(request.request_id, index) for index in range(2)]
    assert engine.aborted == [request.request_id]
    assert answer["usage"]["completion_tokens"] == engine.made


async def test_stop_string_never_leaks_and_ends_the_engine_request(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    events = await chunks(client, messages=HELLO, stop=["fox"], max_tokens=200, ignore_eos=True)
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
    assert text == "The quick brown "
    final = events[-2]["choices"][0]
    assert (final["finish_reason"], final["stop_reason"]) == ("stop", "fox")
    assert engine.aborted == [engine.requests[-1].request_id]


async def test_choices_are_separate(client: httpx.AsyncClient) -> None:
    body = (await chat(client, n=3)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in body["choices"]} == {BASE_SENTENCE}
    events = await chunks(client, messages=HELLO, n=3)
    texts = {0: "", 1: "", 2: ""}
    finishes = []
    for event in events[:-1]:
        [choice] = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        finishes += [choice["index"]] * (choice["finish_reason"] is not None)
    assert texts == dict.fromkeys(texts, BASE_SENTENCE)
    assert sorted(finishes) == [0, 1, 2]


async def test_logprobs(client: httpx.AsyncClient, state: Any) -> None:
    body = (await chat(client, logprobs=True, top_logprobs=3, max_tokens=4)).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"] == 4
    ids = state.tokenizer.encode(BASE_SENTENCE, add_special_tokens=False)[:4]
    for token_id, entry in zip(ids, entries, strict=True):
        expected = logprob_of(token_id, 3)
        assert entry["logprob"] == expected.logprob
        assert bytes(entry["bytes"]) == state.token_text.of(token_id)[1]
        assert [top["logprob"] for top in entry["top_logprobs"]] == [value for _, value in expected.top]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == body["choices"][0]["message"]["content"]


async def test_streamed_logprobs_are_those_of_the_whole_answer(client: httpx.AsyncClient) -> None:
    whole = (await chat(client, logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]["content"]
    events = await chunks(client, messages=HELLO, logprobs=True, top_logprobs=2)
    parts = [event["choices"][0]["logprobs"] for event in events[:-1]]
    assert [entry for part in parts if part for entry in part["content"]] == whole


async def test_prompt_logprobs(client: httpx.AsyncClient) -> None:
    body = (await chat(client, prompt_logprobs=1)).json()
    first, *others = body["prompt_logprobs"]
    assert first is None
    assert len(others) == body["usage"]["prompt_tokens"] - 1
    assert all(set(next(iter(entry.values()))) == {"logprob", "rank", "decoded_token"} for entry in others)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_limit(client: httpx.AsyncClient, field: str) -> None:
    choice = (await chat(client, **{field: 2})).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert BASE_SENTENCE.startswith(choice["message"]["content"])


async def test_nulls_are_absent(client: httpx.AsyncClient) -> None:
    names = ["seed", "logprobs", "stop", "tools", "n", "max_tokens", "response_format", "stream_options", "top_k"]
    assert (await chat(client, **dict.fromkeys(names))).status_code == 200


async def test_unknown_members_are_named_in_a_header(client: httpx.AsyncClient) -> None:
    response = await chat(client, brand_new=1, user="me", metadata={"a": "b"}, **{"odd\n": 2})
    assert response.status_code == 200
    assert response.headers["x-loraplex-ignored-fields"] == "brand_new, metadata, odd?"
    assert "x-loraplex-ignored-fields" not in (await chat(client, user="me")).headers


async def test_known_members_without_effect_are_named_where_they_ask_for_something(client: httpx.AsyncClient) -> None:
    prediction = {"type": "content", "content": "a"}
    asked = {"store": True, "service_tier": "flex", "prediction": prediction, "prompt_cache_key": "k"}
    response = await chat(client, **asked)
    assert response.headers["x-loraplex-ignored-fields"] == "store, service_tier, prediction, prompt_cache_key"
    nothing = {"store": False, "service_tier": "auto", "prediction": None, "metadata": {}, "parallel_tool_calls": True}
    assert "x-loraplex-ignored-fields" not in (await chat(client, **nothing)).headers


async def test_members_of_messages_that_no_template_is_handed_are_named_too(client: httpx.AsyncClient) -> None:
    said = {"role": "assistant", "content": "a", "refusal": None, "annotations": [], "audio": None, "tool_plan": "b"}
    asked = [HELLO[0], said, {"role": "user", "content": "c", "weight": 0, "documents": [1]}]
    for path in ("/v1/chat/completions", "/tokenize"):
        response = await client.post(path, json={"model": "tiny", "messages": asked, "brand_new": 1})
        assert response.status_code == 200, response.text
        named = "brand_new, messages.documents, messages.tool_plan, messages.weight"
        assert response.headers["x-loraplex-ignored-fields"] == named


async def test_tokenize_refuses_what_would_change_the_tokens(client: httpx.AsyncClient) -> None:
    for body in ({"messages": HELLO, "chat_template": "{{ 1 }}"}, {"prompt": "a", "truncate_prompt_tokens": 1}):
        response = await client.post("/tokenize", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported"), response.text


async def test_neutral_values_of_unsupported_members(client: httpx.AsyncClient) -> None:
    neutral = {"tools": [], "response_format": {"type": "text"}, "best_of": 1, "parallel_tool_calls": False}
    assert (await chat(client, **neutral)).status_code == 200
    tool = {"type": "function", "function": {"name": "f"}}
    assert (await chat(client, tools=[tool], tool_choice="none")).status_code == 200


async def test_off_values_of_unsupported_samplers(client: httpx.AsyncClient) -> None:
    off: dict[str, Any] = {"early_stopping": False, "detokenize": True, "echo": False, "repetition_detection": None}
    off |= dict.fromkeys(("typical_p", "tfs", "num_beams"), 1)
    off |= dict.fromkeys(("mirostat", "top_a", "dry_multiplier", "xtc_probability", "no_repeat_ngram_size"), 0.0)
    off |= dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "smoothing_factor", "diversity_penalty"), 0)
    response = await chat(client, **off)
    assert response.status_code == 200, response.text
    assert "x-loraplex-ignored-fields" not in response.headers


async def test_integers_written_as_floats(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    """As clients in JavaScript and Java may send them."""
    response = await chat(client, max_tokens=2.0, n=1.0, seed=-3.0, top_k=4.0, temperature=1.0)
    assert response.status_code == 200, response.text
    params = engine.requests[-1].params
    assert (params.max_tokens, params.n, params.seed, params.top_k, params.temperature) == (2, 1, -3, 4, 1.0)


async def test_other_template_variables_are_accepted(client: httpx.AsyncClient) -> None:
    assert (await chat(client, chat_template_kwargs={"enable_thinking": True})).status_code == 200


async def test_the_list_of_models_with_a_slash(client: httpx.AsyncClient) -> None:
    listed = await client.get("/v1/models/")
    assert listed.status_code == 200
    assert listed.json() == (await client.get("/v1/models")).json()


async def test_request_id(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models", headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    made = (await client.get("/v1/models", headers={"x-request-id": "not fit"})).headers["x-request-id"]
    assert made.startswith("req-")
