"""Ollama's requests and lines as they are on the wire: options, forms, refusals by field, ends of streams."""

import json
from typing import Any

import httpx
import pytest

from loraplex.web.state import State

from ..fake_engine import BASE_SENTENCE, FakeEngine
from ..test_reasoning import TEMPLATE as THINKING
from ..tools import HELLO, SHORT, WEATHER, use_template

CHAT, GENERATE = "/api/chat", "/api/generate"


async def ask(client: httpx.AsyncClient, path: str = CHAT, status: int = 200, **fields: Any) -> Any:
    words = {"messages": HELLO} if path == CHAT else {"prompt": "Hello"}
    answer = await client.post(path, json={"model": "tiny", "stream": False, **words, **fields})
    assert answer.status_code == status, answer.text
    if status != 200:
        assert set(answer.json()) == {"error"}
        return answer.json()["error"]
    return answer.json()


async def test_lines_are_the_default(client: httpx.AsyncClient) -> None:
    answer = await client.post(CHAT, json={"model": "tiny", "messages": HELLO})
    assert answer.headers["content-type"] == "application/x-ndjson" and answer.text.endswith("\n")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == BASE_SENTENCE
    assert all(line["model"] == "tiny" and line["created_at"].endswith("Z") for line in lines)
    whole = await client.post(CHAT, json={"model": "tiny", "messages": HELLO, "stream": False})
    assert whole.headers["content-type"] == "application/json" and whole.json()["message"]["content"] == BASE_SENTENCE


async def test_options_arrive_at_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    options = {
        "num_predict": 5,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.8,
        "min_p": 0.1,
        "repeat_penalty": 1.3,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 11,
        "stop": ["xyz"],
    }
    for path, more in ((CHAT, {}), (GENERATE, {}), (GENERATE, {"raw": True})):
        await ask(client, path, options=options, **more)
        params = engine.requests[-1].params
        assert (params.max_tokens, params.temperature, params.top_k, params.top_p) == (5, 0.5, 7, 0.8)
        assert (params.min_p, params.repetition_penalty, params.seed, params.stop) == (0.1, 1.3, 11, ["xyz"])
        assert (params.presence_penalty, params.frequency_penalty) == (0.2, 0.3)
    await ask(client, options={"num_predict": 1 << 20})
    request = engine.requests[-1]
    assert request.params.max_tokens == engine.info.max_model_len - len(request.prompt_token_ids)  # type: ignore[union-attr]
    whole = {"num_predict": -1, "stop": "xyz", "repeat_last_n": 0, "repeat_penalty": 2}
    await ask(client, GENERATE, raw=True, options=whole)
    request = engine.requests[-1]
    assert request.params.stop == ["xyz"] and request.params.repetition_penalty == 1.0
    assert request.params.max_tokens == engine.info.max_model_len - len(request.prompt_token_ids)  # type: ignore[union-attr]


@pytest.mark.parametrize(("form", "kind"), [("json", "json_object"), ({"type": "object"}, "json")])
async def test_a_form_is_enforced(client: httpx.AsyncClient, engine: FakeEngine, form: object, kind: str) -> None:
    for path, more in ((CHAT, {}), (GENERATE, {}), (GENERATE, {"raw": True})):
        await ask(client, path, format=form, **more)
        outputs = engine.requests[-1].params.structured_outputs
        assert outputs is not None and getattr(outputs, kind)
    await ask(client, format="")
    assert engine.requests[-1].params.structured_outputs is None


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (CHAT, {"options": {"temperature": 3}}, "options.temperature"),
        (CHAT, {"options": {"num_predict": "many"}}, "options.num_predict"),
        (CHAT, {"options": {"mirostat": 2}}, "options.mirostat is not supported"),
        (CHAT, {"options": {"typical_p": 0.5}}, "options.typical_p is not supported"),
        (CHAT, {"options": {"repeat_last_n": 64, "repeat_penalty": 1.2}}, "options.repeat_last_n"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        (CHAT, {"messages": [{"role": "nobody", "content": "x"}]}, "messages[0]"),
        (CHAT, {"messages": "x"}, "messages"),
        (CHAT, {"format": "xml"}, "format"),
        (CHAT, {"think": "deeply"}, "think"),
        (CHAT, {"think": True}, "does not support thinking"),
        (GENERATE, {"raw": True, "system": "Be brief."}, "system is for the chat template, which raw leaves out"),
        (GENERATE, {"raw": True, "template": "{{ .Prompt }}"}, "template is not supported"),
        (GENERATE, {"raw": True, "suffix": "end"}, "suffix is not supported"),
        (GENERATE, {"raw": True, "context": [1]}, "context is not supported"),
        (GENERATE, {"suffix": "end"}, "suffix is not supported"),
        (GENERATE, {"template": "{{ .Prompt }}"}, "template is not supported"),
        (GENERATE, {"context": [1, 2]}, "context is not supported: send the turns so far to /api/chat"),
        (GENERATE, {"images": ["aGk="]}, "images is not supported"),
        (GENERATE, {"prompt": "x " * 100_000, "raw": True}, "maximum context length"),
        (GENERATE, {"prompt": "x " * 100_000}, "your prompt resulted in"),
        (GENERATE, {"prompt": 5}, "prompt"),
    ],
)
async def test_what_cannot_be_had_names_its_field(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any], words: str
) -> None:
    assert words in await ask(client, path, 400, **fields)


async def test_an_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    assert "does not exist" in await ask(client, status=404, model="nowhere")
    assert "does not exist" in await ask(client, status=404, model="nowhere", messages=[])


async def test_what_has_no_effect_is_named(client: httpx.AsyncClient) -> None:
    body = {
        "model": "tiny",
        "messages": HELLO,
        "stream": False,
        "keep_alive": "5m",
        "truncate": True,
        "options": {"num_ctx": 4096, "num_gpu": 1, "seed": 1, "typical_p": 1.0},
    }
    answer = await client.post(CHAT, json=body)
    assert answer.headers["x-loraplex-ignored-fields"] == "truncate, options.num_ctx, options.num_gpu"


async def test_without_words_the_model_is_there(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    before = len(engine.requests)
    chat, generate = await ask(client, messages=[]), await ask(client, GENERATE, prompt="")
    assert (chat["done"], chat["done_reason"], chat["message"]["content"]) == (True, "load", "")
    assert (generate["done_reason"], generate["response"]) == ("load", "") and len(engine.requests) == before


@pytest.mark.parametrize("keep_alive", [0, 0.0, "0", "0s", "0m", "0h0m", "-0s", "0.0s"])
async def test_a_request_to_unload_is_answered_as_ollama_does(
    client: httpx.AsyncClient, engine: FakeEngine, keep_alive: float | str
) -> None:
    before = len(engine.requests)
    chat = await ask(client, messages=[], keep_alive=keep_alive)
    generate = await ask(client, GENERATE, prompt="", keep_alive=keep_alive)
    assert (chat["done"], chat["done_reason"], chat["message"]["content"]) == (True, "unload", "")
    assert (generate["done"], generate["done_reason"], generate["response"]) == (True, "unload", "")
    assert len(engine.requests) == before and not engine.evictions
    assert "does not exist" in await ask(client, GENERATE, 404, model="nowhere", prompt="", keep_alive=keep_alive)


@pytest.mark.parametrize("keep_alive", [None, -1, 5, 0.5, "5m", "10s", "-1m", "0.5s", "1h0m"])
async def test_other_times_ask_to_load(client: httpx.AsyncClient, keep_alive: float | str | None) -> None:
    assert (await ask(client, messages=[], keep_alive=keep_alive))["done_reason"] == "load"


@pytest.mark.parametrize("keep_alive", ["", "-1", "300", "soon", "5 m", "5d", "m", "1h0", "٥m"])
async def test_a_time_that_is_none_is_refused(client: httpx.AsyncClient, keep_alive: str) -> None:
    """By Go's rules, as Ollama does."""
    for path, words in ((CHAT, {}), (GENERATE, {}), ("/api/embed", {"input": "x"}), ("/api/embeddings", {})):
        assert "keep_alive" in await ask(client, path, 400, keep_alive=keep_alive, **words)


async def test_all_names_of_the_base_are_listed(client: httpx.AsyncClient, state: State) -> None:
    state.settings = state.settings.model_copy(update={"also_served_as": ("other", "third")})
    listed = (await client.get("/api/tags")).json()["models"]
    assert [one["name"] for one in listed] == ["tiny", "other", "third"]
    assert [one["id"] for one in (await client.get("/v1/models")).json()["data"]] == ["tiny", "other", "third"]
    assert {one["digest"] for one in listed} == {state.base.signature.fingerprint}
    assert {one["details"]["parent_model"] for one in listed} == {""}
    running = (await client.get("/api/ps")).json()["models"]
    assert [one["name"] for one in running] == ["tiny", "other", "third"]


async def capabilities(client: httpx.AsyncClient) -> list[str]:
    shown = await client.post("/api/show", json={"model": "tiny"})
    return list(shown.json()["capabilities"])


async def test_capabilities_are_those_that_requests_find(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    use_template(state, "{{ messages[0].content }}")
    assert await capabilities(client) == ["completion", "embedding"]
    use_template(state, "{# <tool_call> arguments #}{{ messages[0].content }}")
    assert await capabilities(client) == ["completion", "embedding"], "its format is known, but it leaves tools out"
    use_template(state, SHORT)
    assert await capabilities(client) == ["completion", "embedding", "tools"]
    use_template(state, THINKING)
    assert "thinking" in await capabilities(client)
    engine.pooling = None
    await engine.start()
    assert "embedding" not in await capabilities(client)
    engine.why_silent = "this model classifies"
    await engine.start()
    assert "completion" not in await capabilities(client)


async def test_a_template_without_tools_gives_no_advice_that_this_api_cannot_take(
    client: httpx.AsyncClient, state: State
) -> None:
    for template in (
        "{{ messages[0].content }}",
        "{# tools #}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}",
    ):
        use_template(state, template)
        error = await ask(client, status=400, tools=[WEATHER])
        assert "Or leave tools out." in error and "tool_choice" not in error


async def test_a_stream_that_fails_ends_with_the_error(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.crash_after = 2
    answer = await client.post(GENERATE, json={"model": "tiny", "prompt": "Hello"})
    *lines, last = [json.loads(line) for line in answer.text.splitlines()]
    assert set(last) == {"error"} and not any(line["done"] for line in lines)


async def test_the_management_api_keeps_its_own_errors(client: httpx.AsyncClient, state: State) -> None:
    assert set((await client.get("/api/v1/adapters/nowhere")).json()["error"]) == {"message", "type", "param", "code"}
    assert set((await client.get("/api/nowhere")).json()["error"]) == {"message", "type", "param", "code"}
    assert (await client.get("/api/chat")).status_code == 405
