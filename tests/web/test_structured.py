"""Structured output through HTTP: what requests and profiles say reaches the engine, and random answers parse."""

import asyncio
import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from loraplex.web.state import State
from tests.checkpoints import make_adapter

from .fake_engine import FakeEngine
from .test_adapters_api import add, as_admin
from .test_real_engine import http, real
from .tokenizer_folders import save_tokenizer
from .tools import tools_are_called

__all__ = ["as_admin", "http", "real"]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
CHAT = "/v1/chat/completions"


class Pair(BaseModel):
    a: int
    b: bool


class Answer(BaseModel):
    kind: str
    pairs: list[Pair]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 200, "seed": 3} | fields


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": FORMAT}, "json", json.dumps(SCHEMA)),
        ({"response_format": {"type": "json_object"}}, "json", '{"type": "object"}'),
        ({"structured_outputs": {"json": SCHEMA}}, "json", json.dumps(SCHEMA)),
        ({"structured_outputs": {"json": '{"const":1}', "regex": None}}, "json", '{"const":1}'),
        ({"structured_outputs": {"regex": "a+", "disable_fallback": True}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", '["a", "b"]'),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "grammar", 'start: "a"'),
        ({"structured_outputs": {"json_object": True}}, "json", '{"type": "object"}'),
        ({"guided_json": {"maximum": 10**30}}, "json", '{"maximum": ' + str(10**30) + "}"),
        ({"guided_regex": "a", "guided_decoding_backend": "outlines"}, "regex", "a"),
        ({"guided_choice": ["a"]}, "choice", '["a"]'),
        ({"guided_grammar": "g"}, "grammar", "g"),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, "regex", "a"),
    ],
    ids=str,
)
async def test_every_way_of_saying_it_is_one(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], kind: str, text: str
) -> None:
    for path, prompt in ((CHAT, {}), ("/v1/completions", {"prompt": "a"})):
        body = chat(**fields) | prompt
        response = await client.post(path, json=body if not prompt else {k: body[k] for k in body if k != "messages"})
        assert response.status_code == 200, response.text
        form = engine.requests[-1].params.structured_outputs
        assert form is not None and form.source() == (kind, text)


@pytest.mark.parametrize(
    ("one", "other"),
    [("response_format", "guided_json"), ("structured_outputs", "guided_regex"), ("guided_json", "guided_choice")],
)
async def test_two_forms_collide(client: httpx.AsyncClient, one: str, other: str) -> None:
    values = {
        "response_format": FORMAT,
        "structured_outputs": {"regex": "a"},
        "guided_json": {},
        "guided_regex": "b",
        "guided_choice": ["a"],
    }
    response = await client.post(CHAT, json=chat(**{one: values[one], other: values[other]}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == other and f"{one} and {other} both" in response.text


async def test_equal_forms_are_one(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    grammar = 'start: "a"'
    for same in (
        {"structured_outputs": {"grammar": grammar}, "guided_grammar": grammar},
        {"structured_outputs": {"json": {"type": "object"}}, "guided_json": '{"type": "object"}'},
        {"response_format": {"type": "text"}, "guided_json": {"type": "object"}},
    ):
        answer = await client.post(CHAT, json=chat(**same))
        assert answer.status_code == 200, answer.text
        form = engine.requests[-1].params.structured_outputs
        assert form is not None and (form.grammar == grammar or form.json == '{"type": "object"}')


async def test_a_schema_of_an_object_as_tgi_has_it(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    answer = await client.post(CHAT, json=chat(response_format={"type": "json_object", "value": schema}))
    assert answer.status_code == 200, answer.text
    form = engine.requests[-1].params.structured_outputs
    assert form is not None and form.json is not None and '"integer"' in form.json
    refused = await client.post(CHAT, json=chat(response_format={"type": "json_object", "value": 5}))
    assert refused.json()["error"]["param"] == "response_format.value"


async def test_a_text_or_nothing_is_free(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    for fields in ({}, {"response_format": {"type": "text"}}, {"response_format": None}):
        assert (await client.post(CHAT, json=chat(**fields))).status_code == 200
        assert engine.requests[-1].params.structured_outputs is None


async def test_the_whole_way(real: State, http: httpx.AsyncClient, tmp_path: Any, checkpoint: Any) -> None:
    """One server for all: starting one takes seconds."""
    await _whole_and_streamed(http)
    await _parsed_by_openai(real)
    await _refused(http)
    await _by_profile_and_own_tokens(http, tmp_path, checkpoint)
    await tools_are_called(real, http)
    assert (await http.get("/ready")).status_code == 200


async def _whole_and_streamed(http: httpx.AsyncClient) -> None:
    for _ in range(2):
        answer = (await http.post(CHAT, json=chat(response_format=FORMAT))).json()
        assert answer["choices"][0]["finish_reason"] == "stop", answer
        jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), SCHEMA)
        assert answer["usage"]["completion_tokens"] > 5
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    response = await http.post(CHAT, json=chat(response_format=FORMAT, **stream))
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert text == answer["choices"][0]["message"]["content"]
    assert events[-1]["usage"] == answer["usage"] | {
        "prompt_tokens_details": events[-1]["usage"]["prompt_tokens_details"]
    }
    short = (await http.post(CHAT, json=chat(response_format=FORMAT, max_tokens=2))).json()["choices"][0]
    assert short["finish_reason"] == "length"


async def _parsed_by_openai(real: State) -> None:
    token = real.registry.keys.create("sdk", ["inference"], actor="system").token
    real.registry.snapshots.refresh()
    address = f"http://127.0.0.1:{real.settings.port}/v1"
    async with openai.AsyncOpenAI(base_url=address, api_key=token, max_retries=0) as client:
        completion = await client.chat.completions.parse(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], response_format=Pair, seed=2, max_tokens=200
        )
        assert isinstance(completion.choices[0].message.parsed, Pair)
        with pytest.raises((openai.LengthFinishReasonError, openai.BadRequestError)):
            await client.chat.completions.parse(
                model="tiny", messages=[{"role": "user", "content": "Hi"}], response_format=Answer, max_tokens=2
            )


async def _refused(http: httpx.AsyncClient) -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"items": deep}
    for stream in (False, True):
        for form, words in (
            ({"json": {"enum": ["x" * (10 << 20)]}}, ""),
            ({"json": deep}, "nested more than 64 levels"),
        ):
            response = await http.post(CHAT, json=chat(structured_outputs=form, stream=stream))
            assert response.status_code in (400, 413) and words in response.text, response.text[:300]
        bad = {"type": "foo"}
        for field, value, words in (
            ("structured_outputs", {"regex": "("}, "unclosed group"),
            ("structured_outputs", {"json": {"$ref": "#"}}, "no text satisfies it"),
            ("guided_json", bad, "Invalid type: foo"),
            ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": bad}}, "Invalid type"),
        ):
            response = await http.post(CHAT, json=chat(**{field: value}, stream=stream))
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, field), response.text
            assert error["message"].startswith(f"{field} cannot be used: ") and words in error["message"]
    async with asyncio.timeout(60):  # metrics are as old as the last heartbeat
        while 'loraplex_structured_failed_total{reason="not_compiled"} 8.0' not in await _metrics(http):
            await asyncio.sleep(0.1)
    metrics = await _metrics(http)
    assert 'loraplex_structured_requests_total{kind="regex"} 2.0' in metrics
    for histogram in ("loraplex_grammar_compile_seconds", "loraplex_mask_wait_seconds"):
        assert f'{histogram}_bucket{{le="0.001"}} ' in metrics and f"{histogram}_count 0.0" not in metrics


async def _metrics(http: httpx.AsyncClient) -> str:
    return (await http.get("/metrics")).text


async def _by_profile_and_own_tokens(http: httpx.AsyncClient, tmp_path: Any, checkpoint: Any) -> None:
    """An adapter whose tokenizer has a token more, which only it can say."""
    folder = make_adapter(tmp_path / "own", checkpoint, rank=2)
    save_tokenizer(checkpoint, folder)
    assert (await add(http, "own", folder)).status_code == 201
    asked = {"regex": "(<call>){3}"}
    own = (await http.post(CHAT, json=chat(model="own", structured_outputs=asked, temperature=0))).json()
    base = (await http.post(CHAT, json=chat(structured_outputs=asked, temperature=0))).json()
    for answer in (own, base):
        assert answer["choices"][0]["message"]["content"] == "<call>" * 3
    assert own["usage"]["completion_tokens"] <= base["usage"]["completion_tokens"]

    refused = await http.put("/api/v1/adapters/own/profile", json={"json_schema": {"type": "foo"}})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "json_schema"
    saved = await http.put("/api/v1/adapters/own/profile", json={"json_schema": SCHEMA})
    assert saved.status_code == 200 and saved.json()["profile"] == {"json_schema": SCHEMA}
    by_profile = (await http.post(CHAT, json=chat(model="own"))).json()["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(by_profile), SCHEMA)
    by_request = (await http.post(CHAT, json=chat(model="own", guided_choice=["mine"]))).json()["choices"][0]
    assert by_request["message"]["content"] == "mine"
    free = await http.post(
        CHAT, json=chat(model="own", response_format={"type": "text"}, max_tokens=8, ignore_eos=True)
    )
    assert not free.json()["choices"][0]["message"]["content"].startswith("{")
