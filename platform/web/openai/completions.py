"""POST /v1/completions: from texts or token ids to prompts and a spec."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..endpoints.dependencies import CallerWithRoom, InferenceOf
from ..http.errors import ApiError, invalid
from ..http.event_stream import ended
from ..inference.answer import answer
from ..inference.resolve import Served
from ..inference.spec import GenerationSpec, parameters_checked
from ..settings.settings import Settings
from ..text.text_processor import TextProcessor
from .completion_format import CompletionFormat
from .fields import read_fields
from .profile_defaults import filled, output_tokens
from .prompts import completion_prompts
from .schemas import DEFAULT_COMPLETION_TOKENS, CompletionRequest
from .translated.chat_fields import without_chat_fields

router = APIRouter(tags=["OpenAI"])
INSTEAD: Final = {
    "messages": "prompt",
    "max_completion_tokens": "max_tokens",
    "top_logprobs": "a number as logprobs",
}
"""Fields of a chat -> what says the same of a completion."""


@router.post("/v1/completions")
async def create_completion(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """The continuation of one or more prompts, given as text or as token ids."""
    timeout = inference.settings.body_timeout
    fields, sent, headers = await read_fields(request, timeout, CompletionRequest, _without_chat_fields)
    _check(fields)
    return await answer(request, inference, caller, CompletionCall(fields, sent), headers)


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """`sent`: members of the body; the serving profile has a say on the others."""

    wants_text: ClassVar[bool] = True
    fields: CompletionRequest
    sent: frozenset[str]

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        return await completion_prompts(text_processor, self.fields, settings)

    def spec(
        self, served: Served, prompts: list[list[int]], max_model_len: int
    ) -> tuple[GenerationSpec, CompletionFormat]:
        fields, room = self.fields, max_model_len - max(map(len, prompts))
        max_tokens = output_tokens(served.profile, fields.max_tokens, DEFAULT_COMPLETION_TOKENS, room, "max_tokens")
        assert max_tokens is not None, "there is a default"
        whole = filled(fields, self.sent, served.profile)
        with parameters_checked():
            params = whole.sampling(max_tokens, fields.logprobs, _prompt_logprobs(fields, max_tokens))
        spec = GenerationSpec(
            served=served,
            prompts=prompts,
            params=params,
            beam_search=fields.beam_search(),
            prompt_field="prompt",
            priority=fields.priority,
            cache_salt=fields.cache_salt or "",
        )
        return spec, CompletionFormat(fields)

    def explain_refusal(self, error: ApiError) -> ApiError:
        return error

    def ending(self, error: ApiError | None) -> bytes:
        return ended(error)


def _without_chat_fields(body: dict[str, Any]) -> dict[str, Any]:
    for name, here in INSTEAD.items():
        if name in body:
            raise invalid(f"{name} belongs to /v1/chat/completions. Send {here} here.", name, "unsupported")
    return without_chat_fields(body, CompletionRequest.__struct_fields__)


def _prompt_logprobs(fields: CompletionRequest, max_tokens: int) -> int | None:
    """Echoed log-probabilities need the prompt's; an echo of nothing but the prompt is computed as such."""
    if fields.echo and (fields.logprobs is not None or max_tokens == 0):
        return max(fields.logprobs or 0, fields.prompt_logprobs or 0)
    return fields.prompt_logprobs


def _check(fields: CompletionRequest) -> None:
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid("prompt_logprobs cannot be streamed; leave it out, or set stream to false.", "prompt_logprobs")
    if fields.stream and fields.echo and fields.logprobs is not None:
        raise invalid("echo with logprobs cannot be streamed; leave one out, or set stream to false.", "echo")
