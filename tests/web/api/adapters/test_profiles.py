"""Serving profiles over HTTP: set, refused in words, and each request the one that spells its profile out."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from loraplex.engine.protocol import GenerateRequest
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.web.chat_templates import process
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State

from ...conftest import make_settings
from ...fake_engine import FakeEngine
from ...test_adapters_api import as_admin
from ...test_own_tokenizer import register
from ...test_template_workers import ATTACKS, SLOW

__all__ = ["as_admin"]
PATH = "/api/v1/adapters/sql/profile"
USER = {"role": "user", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Answer in SQL. Zürich 😀"}
SAMPLING: dict[str, Any] = {
    "temperature": 0.25,
    "top_p": 0.9,
    "top_k": 7,
    "min_p": 0.1,
    "presence_penalty": 0.2,
    "frequency_penalty": -0.3,
    "repetition_penalty": 1.1,
    "seed": 11,
    "stop": ["\n\n", "###"],
}
WHOLE = SAMPLING | {"system_prompt": SYSTEM["content"], "max_tokens": 9}
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[answer]{% endif %}"
)


@pytest.fixture
def settings(first_data: Path, checkpoint: Path, tmp_path: Path) -> Settings:
    data = Path(shutil.copytree(first_data, tmp_path / "data"))
    return make_settings(data, checkpoint).model_copy(update={"adapter_tokenizers": True, "max_prompt_chars": 100_000})


@pytest_asyncio.fixture(autouse=True)
async def sql(client: httpx.AsyncClient, state: State, as_admin: None) -> None:
    await register(state, "sql", b"one", None)


async def put(client: httpx.AsyncClient, profile: dict[str, Any], path: str = PATH) -> Any:
    answer = await client.put(path, json=profile)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ask(client: httpx.AsyncClient, path: str, status: int = 200, **fields: Any) -> Any:
    answer = await client.post(path, json={"model": "sql", **fields})
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]


async def chat(client: httpx.AsyncClient, *messages: dict[str, str], status: int = 200, **fields: Any) -> Any:
    return await ask(client, "/v1/chat/completions", status, messages=[*messages] or [USER], **fields)


async def complete(client: httpx.AsyncClient, status: int = 200, **fields: Any) -> Any:
    return await ask(client, "/v1/completions", status, **{"prompt": "Hello", **fields})


def order(engine: FakeEngine) -> GenerateRequest:
    """The last, but for what no two requests share."""
    return msgspec.structs.replace(engine.requests[-1], request_id="", share=("", ""))


def prompt_of(state: State, engine: FakeEngine) -> str:
    return state.tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


async def test_set_look_and_clear(client: httpx.AsyncClient, state: State) -> None:
    assert (await client.get(PATH)).json() == {"version": 1, "digest": None, "profile": None}
    made = await put(client, WHOLE)
    assert (made["version"], made["profile"]) == (1, WHOLE)
    assert (await client.get(PATH)).json() == made
    assert (await client.get("/api/v1/adapters/sql")).json()["versions"][0]["profile_digest"] == made["digest"]
    [_, card] = (await client.get("/v1/models")).json()["data"]
    assert card["serving_profile"] == sorted(WHOLE) == (await client.get("/v1/models/sql")).json()["serving_profile"]
    assert (await put(client, {"stop": "###", "seed": None, "system_prompt": ""}))["profile"] == {"stop": ["###"]}
    assert (await client.delete(PATH)).status_code == 204
    assert (await client.get(PATH)).json()["profile"] is None
    assert (await client.get("/v1/models/sql")).json()["serving_profile"] is None
    actions = [entry.action for entry in await asyncio.to_thread(state.registry.audit.entries, 3)]
    assert actions == ["profile.clear", "profile.set", "profile.set"]


async def test_a_request_is_the_one_that_spells_the_profile_out(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    spelled = SAMPLING | {"max_tokens": 9}
    await chat(client, SYSTEM, USER, **spelled)
    wanted_chat = order(engine)
    await complete(client, **spelled)
    wanted_text = order(engine)
    await put(client, WHOLE)
    await chat(client)
    assert order(engine) == wanted_chat
    await chat(client, **dict.fromkeys(spelled))
    assert order(engine) == wanted_chat, "null is absent"
    await complete(client)
    assert order(engine) == wanted_text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name, value in {**SAMPLING, "temperature": 1.0, "seed": 0, "stop": []}.items()),
        ("stop", "x"),
        ("max_tokens", 3),
        ("max_completion_tokens", 3),
    ],
)
async def test_what_a_request_says_wins(client: httpx.AsyncClient, engine: FakeEngine, field: str, value: Any) -> None:
    """Also where it says what requests without a profile mean."""
    other: dict[str, Any] = {"temperature": 2, "top_p": 0.1, "top_k": 3, "min_p": 0.9, "presence_penalty": 2}
    other |= {"frequency_penalty": 2, "repetition_penalty": 2, "seed": 9, "stop": ["y"], "max_tokens": 40}
    await put(client, other)
    await chat(client, **{field: value})
    name = "max_tokens" if field == "max_completion_tokens" else field
    expected = [value] if field == "stop" and isinstance(value, str) else value
    params = msgspec.structs.asdict(engine.requests[-1].params)
    assert {name: params[name] for name in other} == other | {name: expected}


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_a_system_message_of_the_request_stands_alone(
    client: httpx.AsyncClient, engine: FakeEngine, state: State, role: str
) -> None:
    await put(client, {"system_prompt": "Be brief."})
    await chat(client)
    assert prompt_of(state, engine) == "<|system|>Be brief.</s><|user|>Hello</s><|assistant|>"
    for text in ("Sing.", ""):
        await chat(client, USER, {"role": role, "content": text}, USER)
        assert prompt_of(state, engine).startswith(f"<|user|>Hello</s><|system|>{text}</s>")
        assert "Be brief." not in prompt_of(state, engine)
    error = await chat(client, USER, {"role": "wizard", "content": ""}, status=400)
    assert error["param"] == "messages[1].role", "numbered as the client wrote them"


async def test_tokenize_agrees_with_the_chat(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await put(client, {"system_prompt": "Be brief.", "chat_template": TEMPLATE})
    for messages in ([USER], [SYSTEM, USER], [USER, {"role": "assistant", "content": "Hi"}]):
        await chat(client, *messages)
        body = {"model": "sql", "messages": messages}
        assert (await client.post("/tokenize", json=body)).json()["tokens"] == engine.requests[-1].prompt_token_ids
    bare = (await client.post("/tokenize", json={"model": "tiny", "prompt": "Hello"})).json()["tokens"]
    assert (await client.post("/tokenize", json={"model": "sql", "prompt": "Hello"})).json()["tokens"] == bare


async def test_a_template_of_the_profile(client: httpx.AsyncClient, engine: FakeEngine, state: State) -> None:
    await put(client, {"system_prompt": "Be brief.", "chat_template": TEMPLATE})
    await chat(client)
    assert prompt_of(state, engine) == "[system]Be brief.[user]Hello[answer]"
    await chat(client, USER, {"role": "assistant", "content": "I was"}, continue_final_message=True)
    assert prompt_of(state, engine) == "[system]Be brief.[user]Hello[assistant]I was"
    await chat(client, model="tiny")
    assert prompt_of(state, engine) == "<|user|>Hello</s><|assistant|>"


async def test_the_operator_may_take_templates_back(client: httpx.AsyncClient, state: State) -> None:
    await put(client, {"chat_template": TEMPLATE})
    state.text_processors.allowed = False
    for error in (await chat(client, status=400), await complete(client, 400)):
        assert error["code"] == "adapter_unavailable" and "adapter_tokenizers" in error["message"]
    refused = (await client.put(PATH, json={"chat_template": TEMPLATE})).json()["error"]
    assert refused["param"] == "chat_template" and "adapter_tokenizers" in refused["message"]
    await put(client, {"system_prompt": "Be brief."})
    await chat(client)


async def test_bounds_of_the_answer(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    def asked() -> int | None:
        return engine.requests[-1].params.max_tokens

    await put(client, {"max_tokens_limit": 12})
    for call in (chat, complete):
        await call(client)
        assert asked() == 12, "instead of what there is room for, and of 16"
        await call(client, max_tokens=12)
        assert asked() == 12
        error = await call(client, max_tokens=13, status=400)
        assert (error["param"], error["code"]) == ("max_tokens", "above_profile_limit")
        assert "13" in error["message"] and "12" in error["message"]
    assert (await chat(client, max_completion_tokens=13, status=400))["param"] == "max_completion_tokens"
    await put(client, {"max_tokens": 20})
    for call in (chat, complete):
        await call(client)
        assert asked() == 20
    long = [5] * 250
    await complete(client, prompt=long)
    assert asked() == 6, "a default is shortened to what fits beside the prompt"
    assert (await complete(client, 400, prompt=long, max_tokens=20))["code"] == "context_length_exceeded"
    assert (await complete(client, 400, prompt=[5] * 256))["param"] == "prompt"
    await complete(client, prompt="a", max_tokens=0, echo=True)


async def test_the_base_and_sums_have_none(client: httpx.AsyncClient, engine: FakeEngine, state: State) -> None:
    await register(state, "json", b"two", None)
    parts: list[dict[str, Any]] = [{"name": "sql"}, {"name": "json", "scale": 0.5}]
    plain = {}
    for number in (1, 2):
        await chat(client, model="tiny", adapters=parts[:number])
        plain[number] = order(engine)
    await put(client, WHOLE | {"max_tokens_limit": 9})
    for number in (1, 2):
        await chat(client, model="tiny", adapters=parts[:number])
        assert order(engine) == plain[number]
    await chat(client, model="tiny", max_tokens=20)
    assert engine.requests[-1].params.temperature == 1.0


async def test_each_version_has_its_own(client: httpx.AsyncClient, engine: FakeEngine, state: State) -> None:
    await put(client, {"seed": 1})
    await register(state, "sql", b"two", None)
    assert (await client.get(PATH)).json()["version"] == 2
    await chat(client)
    assert engine.requests[-1].params.seed == 1, "taken over"
    await put(client, {"seed": 2})
    await client.put("/api/v1/adapters/sql/aliases/prod", json={"version": 1})
    seeds = {}
    for model in ("sql", "sql@2", "sql@1", "sql@prod", "tiny:sql@1"):
        await chat(client, model=model)
        seeds[model] = engine.requests[-1].params.seed
    assert seeds == {"sql": 2, "sql@2": 2, "sql@1": 1, "sql@prod": 1, "tiny:sql@1": 1}
    await client.patch("/api/v1/adapters/sql@2", json={"enabled": False})
    await chat(client)
    assert engine.requests[-1].params.seed == 1, "rolled back with the version"
    assert (await put(client, {"seed": 5}, "/api/v1/adapters/sql@prod/profile"))["version"] == 1


async def test_what_runs_keeps_the_profile_it_began_with(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await put(client, {"stop": ["fox"], "max_tokens": 50})
    engine.says = dict.fromkeys(engine.registered, engine._tokenizer.encode("The quick brown fox", False))
    engine.delay = 0.02
    running = asyncio.create_task(chat(client, ignore_eos=True))
    while not engine.running:
        await asyncio.sleep(0.005)
    await put(client, {"stop": ["quick"], "max_tokens": 60})
    assert (await running)["choices"][0]["message"]["content"] == "The quick brown "
    assert (await chat(client, ignore_eos=True))["choices"][0]["message"]["content"] == "The "


@pytest.mark.parametrize(
    ("profile", "field", "words"),
    [
        ({}, None, "The profile is empty"),
        ({"stop": [], "system_prompt": ""}, None, "The profile is empty"),
        ({"temperatur": 1}, "temperatur", "unknown field"),
        ({"temperature": 2.1}, "temperature", "<= 2"),
        ({"temperature": "hot"}, "temperature", "Expected `float"),
        ({"top_p": 0}, "top_p", "> 0"),
        ({"top_k": -2}, "top_k", ">= -1"),
        ({"top_k": 1.5}, "top_k", "Expected `int"),
        ({"min_p": 1.1}, "min_p", "<= 1"),
        ({"presence_penalty": 2.1}, "presence_penalty", "<= 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty", ">= -2"),
        ({"repetition_penalty": 0}, "repetition_penalty", ">= 0.01"),
        ({"seed": 2**63}, "seed", "seed"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": ["a" * 257]}, "stop", "1 to 256 characters"),
        ({"stop": ["a", ""]}, "stop", "1 to 256 characters"),
        ({"stop": [1]}, "stop[0]", "Expected `str`"),
        ({"max_tokens": 0}, "max_tokens", "between 1"),
        ({"max_tokens": 10**400}, "max_tokens", "between 1"),
        ({"seed": -(10**400)}, "seed", "seed"),
        ({"temperature": 10**400}, "temperature", "out of range"),
        ({"max_tokens_limit": 0}, "max_tokens_limit", "between 1"),
        ({"max_tokens_limit": 2**31}, "max_tokens_limit", "between 1"),
        ({"max_tokens": 9, "max_tokens_limit": 8}, "max_tokens", "above max_tokens_limit 8"),
        ({"system_prompt": "ü" * 20_000}, "system_prompt", "at most 32,768 bytes"),
        ({"system_prompt": "word " * 400}, "system_prompt", "this model takes fewer than 256"),
        ({"chat_template": "x" * 70_000}, "chat_template", "at most 65,536 bytes"),
        ({"chat_template": "  "}, "chat_template", "as empty text"),
        ({"system_prompt": "a", "chat_template": "{{ messages[-1].content }}"}, "system_prompt", "ignores system"),
        ({"system_prompt": "a", "chat_template": "{{ raise_exception('no') }}"}, "chat_template", "no"),
        ({"json_schema": []}, None, "profile is empty"),
        ({"json_schema": "{}"}, "json_schema", "Expected `object"),
        ({"json_schema": {"type": "foo"}}, "json_schema", "Invalid type: foo"),
        ({"json_schema": {"enum": ["x" * 40_000]}}, "json_schema", "at most 32,768 bytes"),
        ({"response_format": {"type": "json_object"}}, "response_format", "with json_schema"),
        ({"schema": {"type": "object"}, "seed": 1}, "schema", "with json_schema"),
        *(({"chat_template": source}, "chat_template", words) for source, words in ATTACKS.items()),
    ],
)
async def test_what_is_no_profile_is_refused_by_field(
    client: httpx.AsyncClient, profile: dict[str, Any], field: str | None, words: str
) -> None:
    kept = await put(client, {"seed": 7})
    answer = await client.put(PATH, json=profile)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field), error
    assert words in error["message"]
    assert (await client.get(PATH)).json() == kept


async def test_a_long_prompt_of_a_profile_is_tokenized_beside_the_event_loop(
    client: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, threads = Tokenizer.encode, []

    def watched(self: Tokenizer, text: str, **fields: Any) -> list[int]:
        threads.append(threading.current_thread())
        return encode(self, text, **fields)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    refused = await client.put(PATH, json={"system_prompt": "word " * 5000})
    assert refused.status_code == 400 and "tokens of a simple conversation" in refused.text
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


async def test_a_megabyte_and_half_a_character_are_refused(client: httpx.AsyncClient) -> None:
    for size in (1 << 20, (1 << 20) - 100):
        answer = await client.put(PATH, json={"system_prompt": "x" * size})
        assert answer.status_code in (400, 413), size
    assert (await client.put(PATH, content=b'{"system_prompt": "\\ud800"}')).status_code == 400
    assert (await client.put(PATH, content=b'["temperature"]')).status_code == 400
    assert (await client.get(PATH)).json()["profile"] is None


async def test_a_slow_template_is_refused_and_requests_do_not_wait_for_it(
    client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(client, {"chat_template": TEMPLATE})
    await chat(client)
    monkeypatch.setattr(process, "SECONDS", 1.5)
    slow = [asyncio.create_task(client.put(PATH, json={"chat_template": f"{SLOW}{n}"})) for n in range(3)]
    answered = 0
    while not any(task.done() for task in slow):
        await chat(client)
        answered += 1
    assert answered > 1
    for answer in await asyncio.gather(*slow):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template")
    assert "tried again after" in (await client.put(PATH, json={"chat_template": TEMPLATE})).text


async def test_an_unknown_adapter_has_no_profile(client: httpx.AsyncClient) -> None:
    for reference, status in (("nope", 404), ("sql@9", 404), ("Not-A-Name", 400), ("tiny", 404)):
        path = f"/api/v1/adapters/{reference}/profile"
        assert (await client.get(path)).status_code == status, reference
        assert (await client.put(path, json={"seed": 1})).status_code == status, reference
        assert (await client.delete(path)).status_code == status, reference
