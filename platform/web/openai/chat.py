"""POST /v1/chat/completions: from a conversation to its prompt and its spec."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import msgspec
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
from .chat_format import ChatFormat
from .fields import read_fields
from .profile_defaults import filled, output_tokens
from .prompts import chat_prompt
from .schemas import ChatRequest
from .tools.answer_reader import Reading
from .tools.reasoning_use import plan_reasoning
from .tools.tool_use import plan_tools
from .translated.functions import explain_refusal, with_tools

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """An answer to a conversation, whole or as a stream. `model` names an adapter or the base."""
    fields, sent, headers = await read_fields(request, inference.settings.body_timeout, ChatRequest)
    check_chat(fields)
    return await answer(request, inference, caller, ChatCall(with_tools(fields), sent), headers)


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """What is known of a chat before its first token."""

    fields: ChatRequest
    """With what the serving profile says for the request."""
    reading: Reading
    spec: GenerationSpec


@dataclass(frozen=True, slots=True)
class ChatCall:
    """`sent`: members of the body; the serving profile has a say on the others."""

    wants_text: ClassVar[bool] = True
    fields: ChatRequest
    sent: frozenset[str]

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        return [await chat_prompt(text_processor, self.fields, settings.max_prompt_chars)]

    def spec(self, served: Served, prompts: list[list[int]], max_model_len: int) -> tuple[GenerationSpec, ChatFormat]:
        plan = self.plan(served, prompts, max_model_len)
        return plan.spec, ChatFormat(self.fields, plan.reading)

    def plan(self, served: Served, prompts: list[list[int]], max_model_len: int) -> ChatPlan:
        """Raises ApiError."""
        fields, [prompt] = self.fields, prompts
        completion = fields.max_completion_tokens
        asked, field = (
            (fields.max_tokens, "max_tokens") if completion is None else (completion, "max_completion_tokens")
        )
        logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
        max_tokens = output_tokens(served.profile, asked, None, max_model_len - len(prompt), field)
        whole = filled(fields, self.sent, served.profile)
        with parameters_checked(field):
            params = whole.sampling(max_tokens, logprobs, fields.prompt_logprobs)
        tools, explain_refusal = plan_tools(whole, served.text_processor), None
        begins_with_form = params.structured_outputs is not None
        if tools is not None:
            form, begins_with_form = tools.form(whole), tools.begins_with_form(whole)
            with parameters_checked(field):
                params = msgspec.structs.replace(params, structured_outputs=form)
            explain_refusal = None if form is None else partial(tools.explain_refusal, form)
        reasoning = None if begins_with_form else plan_reasoning(whole, served.text_processor, prompt)
        reading = Reading(reasoning, tools)
        spec = GenerationSpec(
            served=served,
            prompts=prompts,
            params=params,
            beam_search=fields.beam_search(),
            shown_tokens=reading.shown_tokens,
            explain_refusal=explain_refusal,
            prompt_field="messages",
            max_tokens_field=field,
            priority=fields.priority,
            cache_salt=fields.cache_salt or "",
        )
        return ChatPlan(whole, reading, spec)

    def explain_refusal(self, error: ApiError) -> ApiError:
        return explain_refusal(self.fields, error)

    def ending(self, error: ApiError | None) -> bytes:
        return ended(error)


def check_chat(fields: ChatRequest) -> None:
    """Raises ApiError for fields that do not go together."""
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid("top_logprobs needs logprobs: true.", "top_logprobs")
    both = fields.max_tokens is not None and fields.max_completion_tokens is not None
    if both and fields.max_tokens != fields.max_completion_tokens:
        raise invalid("max_tokens and max_completion_tokens differ; send one of them.", "max_tokens")
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid("prompt_logprobs cannot be streamed; leave it out, or set stream to false.", "prompt_logprobs")
