"""Everything wrong gets a 4xx with OpenAI's error body, naming the field; and the server answers afterwards.

One server hears all of it: what is refused leaves nothing behind.
"""

import gzip
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.web.state import State, open_state

from .conftest import make_settings, served
from .fake_engine import FakeEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
HUGE = 10**30
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.fixture(scope="module")
def state(first_data: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> State:
    folder = shutil.copytree(first_data, tmp_path_factory.mktemp("bad") / "data")
    return open_state(make_settings(Path(folder), checkpoint), checkpoint, FakeEngine(Tokenizer(checkpoint)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(state: State) -> AsyncIterator[httpx.AsyncClient]:
    async with served(state) as client:
        yield client


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


SHARED: list[tuple[str, Any, str]] = [
    *[("temperature", value, "temperature") for value in (-1, 2.1, "hot", True, [1], HUGE)],
    *[("top_p", value, "top_p") for value in (0, -0.1, 1.1, "1", {})],
    *[("top_k", value, "top_k") for value in (-2, 2**31, 1.5, "3", HUGE)],
    *[("min_p", value, "min_p") for value in (-0.1, 1.01, "x")],
    *[("n", value, "n") for value in (0, -1, 17, 2**31, 2**63, HUGE, 1.5, True, "2", [])],
    *[("max_tokens", value, "max_tokens") for value in (-1, 2**31, HUGE, 1.5, "16", True, 100_000)],
    *[("presence_penalty", value, "presence_penalty") for value in (-2.1, 2.1, "a")],
    *[("frequency_penalty", value, "frequency_penalty") for value in (-3, 3)],
    *[("repetition_penalty", value, "repetition_penalty") for value in (0, -1, 101, "no")],
    *[("seed", value, "seed") for value in (2**63, -(2**63) - 1, "s", 1.5, HUGE)],
    *[("min_tokens", value, "min_tokens") for value in (-1, 2**31, "1")],
    *[("stop", value, "stop") for value in ([""], "", ["x" * 257], ["x"] * 17, 5, [5], {"a": 1})],
    *[("bad_words", value, "bad_words") for value in (5, [""], [" "], ["a"] * 129, ["a" * 257], [5])],
    *[("stop_token_ids", value, "stop_token_ids") for value in ([-1], [320], [2**31], [HUGE], ["1"], 5, "5", [True])],
    *[("allowed_token_ids", value, "allowed_token_ids") for value in ([], [-1], [320], [HUGE], "all")],
    *[
        ("logit_bias", value, "logit_bias")
        for value in ({"a": 1}, {"320": 1}, {"-1": 1}, {"1": 101}, {"1": "x"}, {"5": 1, "005": 2}, [1])
    ],
    *[("prompt_logprobs", value, "prompt_logprobs") for value in (-1, 21, HUGE, "1", True)],
    *[("ignore_eos", value, "ignore_eos") for value in (1, "yes")],
    *[("stream", value, "stream") for value in ("yes", 1, [])],
    *[("priority", value, "priority") for value in (HUGE, "high", 0.5)],
    *[("cache_salt", value, "cache_salt") for value in ("", "x" * 257, 5)],
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("stream_options", "all", "stream_options"),
    ("skip_special_tokens", "no", "skip_special_tokens"),
    ("model", "", "model"),
    ("model", 5, "model"),
    ("model", "x" * 301, "model"),
    *[("guided_json", value, "guided_json") for value in (5, "", [])],
    *[("guided_regex", value, "guided_regex") for value in ("", {}, "a" * 20_000)],
    *[("guided_choice", value, "guided_choice") for value in ([], "a", [1], ["a"] * 3000)],
    ("guided_grammar", "", "guided_grammar"),
    *[("structured_outputs", value, "structured_outputs") for value in ({}, "json", {"regex": "a", "choice": ["a"]})],
    ("structured_outputs", {"json": {"enum": ["x" * 140_000]}}, "structured_outputs"),
    ("structured_outputs", {"regex": 5}, "structured_outputs.regex"),
    ("structured_outputs", {"structural_tag": "{}"}, "structured_outputs.structural_tag"),
    ("structured_outputs", {"json": {}, "whitespace_pattern": "x"}, "structured_outputs.whitespace_pattern"),
    ("response_format", "json", "response_format"),
    ("response_format", {"type": "structural_tag", "structures": []}, "response_format.type"),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
    ("response_format", {"type": "json_object", "schema": {}}, "response_format.schema"),
    ("response_format", {"type": "text", "json_schema": {"name": "a", "schema": {}}}, "response_format.json_schema"),
    *[(name, "[0-9]+", name) for name in ("regex", "ebnf", "stop_regex", "grammar", "json_schema", "lora_path")],
    *[(name, 2, name) for name in ("max_new_tokens", "min_new_tokens", "n_predict", "repeat_penalty", "top_n_sigma")],
    ("structural_tag", "{}", "structural_tag"),
    ("tool_choice", "required", "tool_choice"),
    ("functions", [{"name": "f"}], "functions"),
    ("best_of", 3, "best_of"),
    ("suffix", "end", "suffix"),
    ("use_beam_search", 1, "use_beam_search"),
    ("length_penalty", 2.0, "length_penalty"),
    ("length_penalty", 99, "length_penalty"),
    ("early_stopping", "soon", "early_stopping"),
    ("truncate_prompt_tokens", 5, "truncate_prompt_tokens"),
    ("prompt_embeds", "AAAA", "prompt_embeds"),
    ("chat_template", "{{ messages }}", "chat_template"),
    ("modalities", ["audio"], "modalities"),
    ("logits_processors", ["x"], "logits_processors"),
    ("return_token_ids", True, "return_token_ids"),
    ("repetition_detection", {"max_pattern_size": 4}, "repetition_detection"),
    ("early_stopping", True, "early_stopping"),
    ("detokenize", False, "detokenize"),
    *[(name, 1, name) for name in ("mirostat", "top_a", "dry_multiplier", "dry_base", "dry_allowed_length")],
    *[(name, 0.5, name) for name in ("typical_p", "tfs", "xtc_probability", "xtc_threshold", "smoothing_factor")],
    *[(name, 2, name) for name in ("num_beams", "diversity_penalty", "no_repeat_ngram_size", "mirostat_tau")],
    *[(name, 0.01, name) for name in ("mirostat_eta", "epsilon_cutoff", "eta_cutoff")],
]
ONLY_CHAT: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": "a", "prefix": True}]}, "messages[0].prefix"),
    ({"messages": [{"role": "assistant", "content": "a", "partial": True}]}, "messages[0].partial"),
    ({"messages": [{"role": "assistant", "content": "a", "reasoning_content": 5}]}, "messages[0].reasoning_content"),
    ({"messages": user(5)}, "messages[0].content"),
    ({"messages": user([IMAGE])}, "messages[0].content[0].type"),
    ({"messages": user([{"type": "text"}])}, "messages[0].content[0].text"),
    ({"messages": user([{"text": "no type"}])}, "messages[0].content[0].type"),
    ({"messages": user(["bare"])}, "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "content": "x", "function_call": {"n": 1}}]}, "messages[0].function_call.n"),
    ({"messages": user("x") * 5000}, "messages"),
    ({"messages": user("word " * 300)}, "messages"),
    ({"messages": user("x" * 600_000)}, "messages"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 9999}, "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    *[
        ({"chat_template_kwargs": {name: []}}, "chat_template_kwargs")
        for name in ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
    ],
    *[
        ({"chat_template_kwargs": {name: "x"}}, "chat_template_kwargs")
        for name in ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "chat_template")
    ],
    ({"echo": True}, "echo"),
    ({"tools": [TOOL]}, "tools"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
]
ONLY_COMPLETIONS: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": None}, "prompt"),
    ({"tools": [TOOL]}, "tools"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [["a"]]}, "prompt[0][0]"),
    ({"prompt": [5, "a"]}, "prompt"),
    ({"prompt": [5, [6]]}, "prompt"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [320]}, "prompt"),
    ({"prompt": [[1, 2], [3, 999]]}, "prompt"),
    ({"prompt": [HUGE]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [5] * 257}, "prompt"),
    ({"prompt": [5] * 256}, "prompt"),
    ({"prompt": [5] * 256, "max_tokens": 0, "echo": True}, "prompt"),
    ({"prompt": ["a"] * 257}, "prompt"),
    ({"prompt": "x" * 600_000}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"echo": "yes"}, "echo"),
    ({"stream": True, "echo": True, "logprobs": 1}, "echo"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
]
RAW: list[bytes] = [
    b"",
    b"  ",
    b"null",
    b"[]",
    b'"text"',
    b"5",
    b"{",
    b"{}}",
    b'{"model": "tiny",}',
    b"{'model': 'tiny'}",
    b'{"model": "tiny", "model": "tiny"}',
    b'{"messages": [{"role": "user", "role": "user"}]}',
    b'{"temperature": NaN}',
    b'{"temperature": Infinity}',
    b'{"temperature": -Infinity}',
    b'{"temperature": 1e999}',
    b'{"seed": ' + b"9" * 5000 + b"}",
    b'{"prompt": "\\ud800"}',
    b'{"prompt": ["ok", "\\udfff"]}',
    b'{"\\ud800": 1}',
    b'{"prompt": "\xff\xfe"}',
    b'\xef\xbb\xbf{"prompt": "a"}',
    b"\x00",
    b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}",
    b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"a":' * 20000 + b"1" + b"}" * 20000,
    b'{"prompt": "a\nb"}',
]


async def assert_refused(client: httpx.AsyncClient, response: httpx.Response, param: str | None) -> None:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["param"] == param or (param and str(error["param"]).startswith((f"{param}[", f"{param}."))), error
    assert response.headers["x-request-id"]
    alive = await client.post(COMPLETIONS, json={"model": "tiny", "prompt": [5], "max_tokens": 1})
    assert alive.status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("field", "value", "param"), SHARED)
async def test_shared_fields(client: httpx.AsyncClient, path: str, field: str, value: Any, param: str) -> None:
    body = {"model": "tiny", field: value} | ({"messages": user("hi")} if path == CHAT else {"prompt": "hi"})
    await assert_refused(client, await client.post(path, content=json.dumps(body)), param)


@pytest.mark.parametrize(("fields", "param"), ONLY_CHAT)
async def test_chat_fields(client: httpx.AsyncClient, fields: dict[str, Any], param: str | None) -> None:
    response = await client.post(CHAT, json={"model": "tiny", "messages": user("hi"), **fields})
    await assert_refused(client, response, param)


@pytest.mark.parametrize(("fields", "param"), ONLY_COMPLETIONS)
async def test_completion_fields(client: httpx.AsyncClient, fields: dict[str, Any], param: str | None) -> None:
    response = await client.post(COMPLETIONS, json={"model": "tiny", "prompt": "hi", **fields})
    await assert_refused(client, response, param)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE])
@pytest.mark.parametrize("raw", RAW, ids=lambda raw: repr(raw[:24]))
async def test_bodies_that_are_no_json_object(client: httpx.AsyncClient, path: str, raw: bytes) -> None:
    await assert_refused(client, await client.post(path, content=raw), None)


async def test_an_integer_too_long_to_read_is_refused_in_our_words(client: httpx.AsyncClient) -> None:
    response = await client.post(COMPLETIONS, content=b'{"seed": ' + b"9" * 5000 + b"}")
    message = response.json()["error"]["message"]
    assert message == "The body has an integer of more than 4300 digits, which is too large."


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"prompt": 5}, "prompt"),
        (TOKENIZE, {"prompt": "x" * 600_000}, "prompt"),
        (TOKENIZE, {"messages": []}, "messages"),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": [320]}, "tokens"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens[0]"),
        (DETOKENIZE, {"tokens": ["a"]}, "tokens[0]"),
        (CHAT, {"messages": user("hi")}, "model"),
        (COMPLETIONS, {"prompt": "hi"}, "model"),
        (CHAT, {"model": "tiny"}, "messages"),
        (COMPLETIONS, {"model": "tiny"}, "prompt"),
    ],
)
async def test_missing_and_wrong_members(client: httpx.AsyncClient, path: str, body: Any, param: str) -> None:
    await assert_refused(client, await client.post(path, json=body), param)


@pytest.mark.parametrize("model", ["tinny", "tiny@1", "other:sql", "../../etc", "sql", "a\u0000b", "' OR 1=1", "tiny:"])
async def test_unknown_models(client: httpx.AsyncClient, model: str) -> None:
    for stream in (False, True):
        body = {"model": model, "messages": user("hi"), "stream": stream}
        response = await client.post(CHAT, json=body)
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["param"], error["code"], error["type"]) == ("model", "model_not_found", "invalid_request_error")
    assert "`tiny`" in (await client.post(CHAT, json={"model": "tinny", "messages": user("hi")})).text


@pytest.mark.parametrize(("path", "body"), [(TOKENIZE, {"prompt": "a"}), (DETOKENIZE, {"tokens": [5]})])
async def test_unknown_models_have_no_tokens(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    response = await client.post(path, json={"model": "tinny", **body})
    assert response.status_code == 404
    assert "`tiny`" in response.json()["error"]["message"]
    assert (await client.post(path, json={"model": "tiny", **body})).status_code == 200


async def test_an_unknown_model_is_answered_alike_by_get_and_post(client: httpx.AsyncClient) -> None:
    got = await client.get("/v1/models/tinny")
    posted = await client.post(CHAT, json={"model": "tinny", "messages": user("hi")})
    assert got.status_code == posted.status_code == 404
    assert got.json() == posted.json()


async def test_a_body_beyond_the_limit(client: httpx.AsyncClient) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x" * 10_000_000}).encode()

    async def pieces() -> Any:
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]

    for content in (body, pieces()):
        response = await client.post(COMPLETIONS, content=content)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"


async def test_content_types(client: httpx.AsyncClient) -> None:
    body = json.dumps({"model": "tiny", "prompt": "a"})
    for tolerated in (None, "application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8"):
        headers = {} if tolerated is None else {"content-type": tolerated}
        assert (await client.post(COMPLETIONS, content=body, headers=headers)).status_code == 200
    refused = await client.post(COMPLETIONS, content=body, headers={"content-type": "multipart/form-data"})
    assert refused.status_code == 415
    assert "application/json" in refused.json()["error"]["message"]


async def test_compressed_bodies(client: httpx.AsyncClient) -> None:
    body = json.dumps({"model": "tiny", "prompt": "a"}).encode()
    refused = await client.post(COMPLETIONS, content=gzip.compress(body), headers={"content-encoding": "gzip"})
    assert refused.status_code == 415
    error = refused.json()["error"]
    assert error["param"] == "content-encoding"
    assert "gzip is not accepted; send the body uncompressed" in error["message"]
    plain = await client.post(COMPLETIONS, content=body, headers={"content-encoding": "identity"})
    assert plain.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", CHAT, 405), ("DELETE", "/v1/models", 405)]
)
async def test_wrong_paths_and_methods(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/v1/chat/completions", "a base URL that already has it"),
        ("/chat/completions", "The API is under /v1"),
        ("/api/v1/nothing", "GET /api/v1/openapi.json lists"),
    ],
)
async def test_who_asks_for_another_api_hears_which_is_here(client: httpx.AsyncClient, path: str, words: str) -> None:
    response = await client.post(path, json={})
    assert response.status_code == 404 and words in response.json()["error"]["message"]


async def test_refused_requests_never_reach_the_engine(client: httpx.AsyncClient, state: State) -> None:
    assert isinstance(state.engine, FakeEngine)
    before = len(state.engine.requests)
    await client.post(CHAT, json={"model": "tiny", "messages": user("hi"), "n": 17})
    assert len(state.engine.requests) == before
