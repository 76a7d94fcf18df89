"""The real openai client against the real server: every answer is that of transformers + peft."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from loraplex.engine.text.tokenizer import Tokenizer

from .live_server import BASE, LiveServer
from .reference import Reference
from .talk import greedy, put_files, text_of, upload

MODELS: dict[str, str | None] = {BASE: None, "one": "one", "eight": "eight", "twenty": "twenty"}
PROMPTS = ("The quick brown fox", "Select name from users where", "Zoë, Zürich 😀🎉")
COUNT = 24
WHOLE: dict[str, Any] = {"ignore_eos": True, "skip_special_tokens": False}
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def expected(reference: Reference, tokenizer: Tokenizer) -> dict[tuple[str, str], str]:
    """(model, prompt) -> text."""
    return {
        (model, prompt): tokenizer.decode(reference.greedy(adapter, tuple(tokenizer.encode(prompt)), COUNT), False)
        for model, adapter in MODELS.items()
        for prompt in PROMPTS
    }


def test_each_model_says_something_else(expected: dict[tuple[str, str], str]) -> None:
    assert len(set(expected.values())) == len(expected)


async def test_completions_together_whole_and_streamed(
    sdk: openai.AsyncOpenAI, tokenizer: Tokenizer, expected: dict[tuple[str, str], str]
) -> None:
    async def whole(model: str, prompt: Any) -> str:
        answer = await sdk.completions.create(
            model=model, prompt=prompt, max_tokens=COUNT, temperature=0, extra_body=WHOLE
        )
        assert (answer.choices[0].finish_reason, answer.model) == ("length", model)
        assert answer.usage is not None and answer.usage.completion_tokens == COUNT
        return answer.choices[0].text

    async def streamed(model: str, prompt: str) -> str:
        stream = await sdk.completions.create(
            model=model, prompt=prompt, max_tokens=COUNT, temperature=0, stream=True, extra_body=WHOLE
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    texts = await asyncio.gather(
        *(whole(model, prompt) for model, prompt in expected),
        *(streamed(model, prompt) for model, prompt in expected),
        *(whole(model, tokenizer.encode(prompt)) for model, prompt in expected),
    )
    assert texts == 3 * [*expected.values()]


async def test_lists_of_prompts_and_n(
    sdk: openai.AsyncOpenAI, tokenizer: Tokenizer, expected: dict[tuple[str, str], str]
) -> None:
    lists: list[Any] = [list(PROMPTS), [tokenizer.encode(prompt) for prompt in PROMPTS]]
    for prompts in lists:
        answer = await sdk.completions.create(
            model="eight", prompt=prompts, n=2, max_tokens=COUNT, temperature=0, extra_body=WHOLE
        )
        assert [choice.index for choice in answer.choices] == list(range(6))
        assert [choice.text for choice in answer.choices] == [
            expected["eight", prompt] for prompt in PROMPTS for _ in range(2)
        ]


async def test_chat_whole_and_streamed(sdk: openai.AsyncOpenAI, reference: Reference, tokenizer: Tokenizer) -> None:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Again and again?"}]
    text = "<|system|>Be brief.</s><|user|>Again and again?</s><|assistant|>"
    prompt = tuple(tokenizer.encode(text, add_special_tokens=False))

    async def ask(model: str) -> tuple[str | None, str]:
        whole = await sdk.chat.completions.create(
            model=model, messages=messages, max_completion_tokens=COUNT, temperature=0, extra_body=WHOLE
        )
        streamed, usage = "", None
        async for chunk in await sdk.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=COUNT,
            temperature=0,
            extra_body=WHOLE,
            stream=True,
            stream_options={"include_usage": True},
        ):
            usage = chunk.usage or usage
            streamed += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), COUNT)
        return whole.choices[0].message.content, streamed

    answers = await asyncio.gather(*map(ask, MODELS))
    for answer, adapter in zip(answers, MODELS.values(), strict=True):
        assert answer == (tokenizer.decode(reference.greedy(adapter, prompt, COUNT), False),) * 2


@pytest.mark.parametrize("model", MODELS)
async def test_log_probabilities_of_prompt_and_answer(
    http: httpx.AsyncClient, reference: Reference, tokenizer: Tokenizer, model: str
) -> None:
    prompt = tokenizer.encode(PROMPTS[1])
    said = reference.greedy(MODELS[model], tuple(prompt), COUNT)
    wanted = reference.logprobs(MODELS[model], prompt + said)
    response = await http.post("/v1/completions", json=greedy(model, prompt, COUNT, logprobs=3, echo=True))
    logprobs = response.json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    for position, token_id in enumerate([*prompt, *said][1:]):
        row, best = wanted[position], logprobs["top_logprobs"][position + 1]
        assert logprobs["token_logprobs"][position + 1] == pytest.approx(row[token_id], abs=TOLERANCE)
        assert max(best.values()) == pytest.approx(max(row), abs=TOLERANCE)


async def test_chat_log_probabilities(sdk: openai.AsyncOpenAI, reference: Reference, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("<|user|>Hi</s><|assistant|>", add_special_tokens=False)
    answer = await sdk.chat.completions.create(
        model="twenty",
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=4,
        extra_body=WHOLE,
    )
    said = reference.greedy("twenty", tuple(prompt), 8)
    wanted = reference.logprobs("twenty", prompt + said)[len(prompt) - 1 :]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 8
    for entry, token_id, row in zip(logprobs.content, said, wanted, strict=False):
        assert entry.logprob == pytest.approx(row[token_id], abs=TOLERANCE)
        tops = [top.logprob for top in entry.top_logprobs]
        assert tops == pytest.approx(sorted(row, reverse=True)[:4], abs=TOLERANCE)


async def test_stop_strings_end_the_text_before_them(
    http: httpx.AsyncClient, sdk: openai.AsyncOpenAI, expected: dict[tuple[str, str], str]
) -> None:
    text = expected["one", PROMPTS[0]]
    stop = text[9:12]
    whole = await http.post("/v1/completions", json=greedy("one", PROMPTS[0], COUNT, stop=[stop, "never said"]))
    choice = whole.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text.split(stop)[0], "stop", stop)
    stream = await sdk.completions.create(
        model="one", prompt=PROMPTS[0], max_tokens=COUNT, temperature=0, stop=stop, stream=True, extra_body=WHOLE
    )
    assert "".join([chunk.choices[0].text async for chunk in stream]) == text.split(stop)[0]


async def test_a_seed_says_the_same_in_any_company(http: httpx.AsyncClient) -> None:
    seeded = {
        model: greedy(model, PROMPTS[0], COUNT, temperature=1.0, top_p=0.95, seed=seed)
        for seed, model in enumerate(MODELS)
    }
    alone = {model: await text_of(http, body) for model, body in seeded.items()}
    noise = [greedy(model, prompt, 40, temperature=1.0) for model in MODELS for prompt in PROMPTS]
    company = await asyncio.gather(*(text_of(http, body) for body in [*noise, *seeded.values(), *noise]))
    assert company[len(noise) : -len(noise)] == [*alone.values()]
    without_seeds = [text for text, body in zip(company, noise, strict=False) if body["model"] == BASE]
    assert len(set(without_seeds + company[-len(noise) :])) > len(noise)


async def test_servable_right_after_the_answer(
    server: LiveServer, http: httpx.AsyncClient, adapter_folders: dict[str, Path], expected: dict[tuple[str, str], str]
) -> None:
    with server.client() as client:
        digests = put_files(client, "fresh", adapter_folders["eight"])
        created = client.post("/api/v1/adapters/fresh/versions", json=digests)
        assert created.status_code == 201, created.text
        assert await text_of(http, greedy("fresh", PROMPTS[0], COUNT)) == expected["eight", PROMPTS[0]]
        upload(client, "other", adapter_folders["one"])
    texts = [await text_of(http, greedy(name, PROMPTS[0], COUNT)) for name in ("other", f"{BASE}:fresh@1")]
    assert texts == [expected["one", PROMPTS[0]], expected["eight", PROMPTS[0]]]


def test_models_with_the_synchronous_client(server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.admin_key) as client:
        names = [model.id for model in client.models.list()]
        assert names[0] == BASE and set(MODELS) <= set(names)
        assert client.models.retrieve("eight@1").id == "eight@1"
        with pytest.raises(openai.NotFoundError, match="eight"):
            client.completions.create(model="eigth", prompt="a")


async def test_an_offer_of_http2_is_not_taken_and_harms_nothing(server: LiveServer) -> None:
    """Java's client makes it with every request."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAABAAMAAABk"}
    async with httpx.AsyncClient(base_url=server.url, headers=offer, timeout=60) as http:
        for body in (b'{"model": "tiny", "prompt": "a", "max_tokens": 2}', None):
            answer = await http.post(
                "/v1/completions",
                content=body or _pieces(b'{"model": "one", "prompt": "a", "max_tokens": 2}'),
                headers={"authorization": f"Bearer {server.admin_key}", "content-type": "application/json"},
            )
            assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """Sent without a length, in chunks."""
    for start in range(0, len(body), 7):
        yield body[start : start + 7]
