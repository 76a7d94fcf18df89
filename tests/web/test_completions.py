from typing import Any

import httpx
import pytest

from loraplex.engine.protocol import BeamSearch
from loraplex.engine.text.bad_word_tokens import bad_word_tokens

from .fake_engine import BASE_SENTENCE, FakeEngine, logprob_of
from .test_chat import chunks


async def complete(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/completions", json={"model": "tiny", "prompt": "The dog", **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_whole_answer(client: httpx.AsyncClient, engine: FakeEngine, state: Any) -> None:
    body = await complete(client)
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert engine.requests[-1].prompt_token_ids == state.tokenizer.encode("The dog")
    assert engine.requests[-1].params.max_tokens == 16
    assert body["choices"][0]["finish_reason"] == "length"
    assert BASE_SENTENCE.startswith(body["choices"][0]["text"])


async def test_bad_words_reach_the_engine_as_tokens(client: httpx.AsyncClient, engine: FakeEngine, state: Any) -> None:
    await complete(client, bad_words=["dog"])
    assert engine.requests[-1].params.bad_words == ["dog"]
    assert engine.requests[-1].bad_words == bad_word_tokens(["dog"], state.tokenizer) != []


async def test_a_beam_search_reaches_the_engine_and_gives_n_choices(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    fields = {"use_beam_search": True, "n": 3, "best_of": 3, "length_penalty": 0.5, "early_stopping": "never"}
    body = await complete(client, **fields)
    assert engine.requests[-1].beam_search == BeamSearch(length_penalty=0.5, early_stopping="never")
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    await complete(client, use_beam_search=False, length_penalty=1.0, early_stopping=False)
    assert engine.requests[-1].beam_search is None


async def test_every_form_of_prompt(client: httpx.AsyncClient, engine: FakeEngine, state: Any) -> None:
    forms = ["a b", ["a b", "c"], [5, 6, 7], [[5, 6], [7]]]
    texts = [state.tokenizer.encode(text) for text in ("a b", "c")]
    expected = [texts[:1], texts, [[5, 6, 7]], [[5, 6], [7]]]
    for form, prompts in zip(forms, expected, strict=True):
        engine.requests.clear()
        body = await complete(client, prompt=form, n=2)
        assert sorted(request.prompt_token_ids for request in engine.requests) == sorted(prompts)
        assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(prompts)))
        assert body["usage"]["prompt_tokens"] == sum(map(len, prompts))


async def test_stream_of_several_prompts(client: httpx.AsyncClient) -> None:
    events = await chunks(
        client, "/v1/completions", prompt=["a", "b"], n=2, max_tokens=99, stream_options={"include_usage": True}
    )
    texts: dict[int, str] = {}
    for event in events[:-2]:
        [choice] = event["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == dict.fromkeys(range(4), BASE_SENTENCE)
    whole = await complete(client, prompt=["a", "b"], n=2, max_tokens=99)
    assert events[-2]["usage"] == whole["usage"]


async def test_echo_without_logprobs(client: httpx.AsyncClient) -> None:
    whole = await complete(client, echo=True, max_tokens=3)
    assert whole["choices"][0]["text"].startswith("The dogThe")
    events = await chunks(client, "/v1/completions", prompt="The dog", echo=True, max_tokens=3)
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == whole["choices"][0]["text"]


async def test_loglikelihoods_as_lm_eval_reads_them(client: httpx.AsyncClient, state: Any) -> None:
    """Batched token ids, echo, one generated token that stays in the lists even though it may end the text."""
    prompts = [state.tokenizer.encode("The quick brown"), state.tokenizer.encode("fox jumps")]
    body = await complete(client, prompt=prompts, max_tokens=1, temperature=0, logprobs=1, echo=True, seed=1234)
    for prompt, choice in zip(prompts, sorted(body["choices"], key=lambda c: c["index"]), strict=True):
        logprobs = choice["logprobs"]
        assert all(len(entries) == len(prompt) + 1 for entries in logprobs.values())
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        rows = list(zip(prompt, logprobs["token_logprobs"][:-1], logprobs["top_logprobs"][:-1], strict=True))
        for token_id, logprob, top in rows[1:]:
            assert logprob == logprob_of(token_id, 1).logprob
            assert logprob == max(top.values())
        assert "".join(logprobs["tokens"][1:-1]) == choice["text"][: -len(logprobs["tokens"][-1])]
        shown = ["", *logprobs["tokens"][1:]]  # the first is special and not in the text
        starts = [sum(map(len, shown[:end])) for end in range(len(prompt) + 1)]
        assert logprobs["text_offset"] == starts


async def test_the_end_token_keeps_its_place_in_the_lists(client: httpx.AsyncClient) -> None:
    body = await complete(client, max_tokens=200, logprobs=2)
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["tokens"][-1] == "</s>"
    assert len(choice["logprobs"]["tokens"]) == body["usage"]["completion_tokens"]


async def test_echo_of_nothing_but_the_prompt(client: httpx.AsyncClient) -> None:
    body = await complete(client, echo=True, max_tokens=0, logprobs=1)
    choice = body["choices"][0]
    assert choice["text"] == "The dog"
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == body["usage"]["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("skip_special_tokens", [True, False])
async def test_offsets_are_places_in_the_text(client: httpx.AsyncClient, skip_special_tokens: bool) -> None:
    """Hidden special tokens take no room, and a character of several tokens takes that of one."""
    body = await complete(
        client, prompt="Zürich 😀 dog", echo=True, max_tokens=0, logprobs=0, skip_special_tokens=skip_special_tokens
    )
    [choice] = body["choices"]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert tokens[0] == "<s>"
    assert offsets[:2] == [0, 0 if skip_special_tokens else 3]
    whole = [(token, start) for token, start in zip(tokens, offsets, strict=True) if "\ufffd" not in token]
    assert len(whole) < len(tokens)
    for token, start in whole[1:]:
        assert choice["text"][start : start + len(token)] == token


async def test_the_default_limit_fits_a_long_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await complete(client, prompt=[[5] * 250, [5]])
    assert [request.params.max_tokens for request in engine.requests[-2:]] == [6, 6]


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 0, "echo": True}])
async def test_a_prompt_as_long_as_the_context(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    response = await client.post("/v1/completions", json={"model": "tiny", "prompt": [5] * 256, **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert "at most 255 tokens" in error["message"]
    assert error["message"].startswith("This model's maximum context length is 256 tokens. However, your prompt")


async def test_an_output_beyond_the_context_is_told_as_openai_does(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", json={"model": "tiny", "prompt": [5] * 250, "max_tokens": 20})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "This model's maximum context length is 256 tokens. However, you requested 270 tokens "
        "(250 in the prompt, 20 in the completion). Ask for at most 6 tokens."
    )


async def test_tokenize_and_back(client: httpx.AsyncClient, state: Any) -> None:
    text = "Zürich 😀"
    tokens = (await client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert tokens["tokens"] == state.tokenizer.encode(text)
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert tokens["max_model_len"] == 256
    back = (await client.post("/detokenize", json={"tokens": tokens["tokens"][1:]})).json()
    assert back == {"prompt": text}
    chat = (await client.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]})).json()
    assert state.tokenizer.decode(chat["tokens"], skip_special_tokens=False) == "<|user|>hi</s><|assistant|>"


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("max_completion_tokens", 5, "Send max_tokens here"),
        ("top_logprobs", 2, "Send a number as logprobs here"),
        ("messages", [{"role": "user", "content": "Hello"}], "Send prompt here"),
        ("chat_template_kwargs", {"enable_thinking": False}, "belongs to /v1/chat/completions"),
        ("continue_final_message", True, "belongs to /v1/chat/completions"),
    ],
)
async def test_fields_of_chats_are_refused_by_name(
    client: httpx.AsyncClient, engine: FakeEngine, field: str, value: object, advice: str
) -> None:
    response = await client.post("/v1/completions", json={"model": "tiny", "prompt": "The dog", field: value})
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == field and advice in error["message"]
    assert not engine.requests


async def test_fields_of_chats_that_change_nothing_pass(client: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "prompt": "The dog", "separate_reasoning": True, "chat_template_kwargs": {}}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200 and "x-loraplex-ignored-fields" not in response.headers
