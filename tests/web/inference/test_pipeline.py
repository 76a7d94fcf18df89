"""The line of a request: an endpoint is a render, a spec and a format; quotas and words for refusals wrap it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx
import pytest
from starlette.requests import Request

from loraplex.engine.sampling_params import SamplingParams
from loraplex.registry.access.quotas import Quota
from loraplex.registry.adapters.routes import Asker
from loraplex.web.access.caller import Caller
from loraplex.web.http.errors import ApiError, invalid
from loraplex.web.inference.answer import answer
from loraplex.web.inference.generation import Answers, Delta, Generation, collect
from loraplex.web.inference.pipeline import running
from loraplex.web.inference.resolve import Served
from loraplex.web.inference.spec import GenerationSpec
from loraplex.web.quotas.meters import Usage
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State
from loraplex.web.text.text_processor import TextProcessor
from tests.web.fake_engine import BASE_SENTENCE

CALLER = Caller("default", "key:test", frozenset())


@dataclass(frozen=True)
class EchoFields:
    text: str
    stream: bool = False
    model: str = "tiny"

    def adapter_scales(self) -> Mapping[str, float] | None:
        return None

    def asker(self, actor: str, request_id: str) -> Asker:
        return Asker(actor, request_id)


@dataclass(frozen=True)
class EchoCall:
    """An endpoint that no API has."""

    wants_text: ClassVar[bool] = True
    fields: EchoFields
    refusal: str = ""
    patience: float = 0.0

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        await asyncio.sleep(self.patience)
        if self.refusal:
            raise invalid(self.refusal, "prompt")
        return [await text_processor.encode(self.fields.text, add_special_tokens=False)]

    def spec(self, served: Served, prompts: list[list[int]], max_model_len: int) -> "tuple[GenerationSpec, EchoFormat]":
        params = SamplingParams(max_tokens=max_model_len - len(prompts[0]))
        return GenerationSpec(served=served, prompts=prompts, params=params, prompt_field="text"), EchoFormat()

    def explain_refusal(self, error: ApiError) -> ApiError:
        return ApiError(error.status, f"echo: {error.message}", param="text")

    def ending(self, error: ApiError | None) -> bytes:
        return b"never begun"


class EchoFormat:
    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        return {"said": answers.choices[0].text}

    def events(self, delta: Delta, generation: Generation) -> bytes:
        return delta.text.encode()

    def last_events(self, usage: Usage) -> bytes:
        return b" (%d)" % usage.completion_tokens

    def ending(self, error: ApiError | None) -> bytes:
        return b" over" if error is None else b" broken"


async def asgi(state: State, call: EchoCall) -> tuple[int, bytes]:
    """Status and body of `answer`, to a client that stays."""
    body, status, gone = b"", 0, asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal body, status
        status = message.get("status", status)
        body += message.get("body", b"")

    scope = {"type": "http", "method": "POST", "path": "/echo", "headers": [], "state": {"request_id": "r1"}}
    response = await answer(Request(scope, receive), state, CALLER, call, {})
    await response(scope, receive, send)
    return status, body


async def test_an_endpoint_is_a_render_a_spec_and_a_format(client: httpx.AsyncClient, state: State) -> None:
    status, body = await asgi(state, EchoCall(EchoFields("Hello")))
    assert (status, body) == (200, f'{{"said":"{BASE_SENTENCE}"}}'.encode())
    status, body = await asgi(state, EchoCall(EchoFields("Hello", stream=True)))
    assert status == 200 and body.decode().startswith(BASE_SENTENCE) and body.endswith(b") over")


async def test_quotas_and_places_wrap_the_line(client: httpx.AsyncClient, state: State) -> None:
    caller = Caller("default", "key:test", frozenset(), quota=Quota(requests_per_minute=2, max_concurrent=1))
    async with running(state, caller, EchoCall(EchoFields("Hello")), "r1") as run:
        assert state.requests.taken == 1
        assert run.headers["x-ratelimit-remaining-requests"] == "1"
        with pytest.raises(ApiError) as refused:
            async with running(state, caller, EchoCall(EchoFields("Hello")), "r2"):
                raise AssertionError("one at a time")
        assert refused.value.status == 429 and not refused.value.message.startswith("echo: "), "of no field"
        await collect(run.generations)
    assert state.requests.taken == 0
    [row] = [one for one in state.metrics.recent if one.request_id == "r1"]
    assert (row.actor, row.status) == ("key:test", "stop")


async def test_a_refusal_is_in_terms_of_the_endpoint(client: httpx.AsyncClient, state: State) -> None:
    for call in (EchoCall(EchoFields(""), refusal="no prompt."), EchoCall(EchoFields("a", model="nobody"))):
        with pytest.raises(ApiError, match=r"^echo: ") as refused:
            async with running(state, CALLER, call, "r1"):
                raise AssertionError("refused")
        assert refused.value.param == "text" and state.requests.taken == 0


async def test_a_stream_that_a_ping_has_opened_ends_as_the_endpoint_says(
    client: httpx.AsyncClient, state: State
) -> None:
    call = EchoCall(EchoFields("", stream=True), refusal="no prompt.", patience=3 * state.settings.ping_seconds)
    status, body = await asgi(state, call)
    assert status == 200 and body.startswith(b": ping") and body.endswith(b"never begun")
    assert state.requests.taken == 0
