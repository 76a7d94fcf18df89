"""OllamaCall: a request of either kind, run as the chat or the completion that it became."""

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Final, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import JSONResponse, Response

from ..access.caller import Caller
from ..http.errors import ApiError, invalid
from ..http.json_body import convert, read_json
from ..inference.answer import answer
from ..inference.inference import Inference
from ..inference.resolve import Served, find_model
from ..inference.spec import GenerationSpec
from ..openai.chat import ChatCall
from ..openai.completions import CompletionCall
from ..openai.fields import ignored_header, note_model
from ..openai.schemas import ChatRequest, CompletionRequest
from ..openai.tools.answer_reader import Reading
from ..openai.tools.reasoning_use import plan_reasoning
from ..settings.settings import Settings
from ..text.text_processor import TextProcessor
from .as_chat import chat_of, explain_refusal, name_of
from .errors import error_line
from .format import OllamaFormat, line_of
from .options import ignored_members
from .schemas import Asked, OllamaChat, OllamaEmbed, OllamaEmbedding, OllamaGenerate

LINES: Final = {"content-type": "application/x-ndjson"}
PING: Final = b" "
"""Before the next line: clients read line by line, and white space before JSON is none of it."""
DURATION: Final = re.compile(r"[-+]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
"""As Go writes it."""
Body = TypeVar("Body", OllamaChat, OllamaGenerate, OllamaEmbed, OllamaEmbedding)


@dataclass(frozen=True, slots=True)
class OllamaCall:
    """`asked`: what the client sent; `inner`: the same as a chat or a completion."""

    wants_text: ClassVar[bool] = True
    asked: Asked
    inner: ChatCall | CompletionCall
    as_message: bool

    @property
    def fields(self) -> ChatRequest | CompletionRequest:
        return self.inner.fields

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        if self.asked.think not in (None, False) and text_processor.reasoning_marks is None:
            raise invalid(f"{self.asked.model!r} does not support thinking. Leave think out.", "think", "unsupported")
        return await self.inner.render(text_processor, settings)

    def spec(self, served: Served, prompts: list[list[int]], max_model_len: int) -> tuple[GenerationSpec, OllamaFormat]:
        """num_predict is cut down to what there is room for; without it the answer may fill the context."""
        room, asked = max(1, max_model_len - len(prompts[0])), self.fields.max_tokens
        most = None if asked is None else min(asked, room)
        reading = Reading()
        if isinstance(self.inner, ChatCall):
            chat = msgspec.structs.replace(self.inner.fields, max_tokens=most)
            plan = replace(self.inner, fields=chat).plan(served, prompts, max_model_len)
            spec, reading = plan.spec, plan.reading
        else:
            completion = msgspec.structs.replace(self.inner.fields, max_tokens=room if most is None else most)
            spec, _ = replace(self.inner, fields=completion).spec(served, prompts, max_model_len)
            reading = self._reading_of_raw(served, prompts[0], spec)
            spec = replace(spec, shown_tokens=reading.shown_tokens)
        return spec, OllamaFormat(self.asked.model, reading, self.as_message, self.asked.logprobs)

    def _reading_of_raw(self, served: Served, prompt: list[int], spec: GenerationSpec) -> Reading:
        """As Ollama does: thinking is told apart unless `think` is false, also when the prompt opens it."""
        assert isinstance(self.asked, OllamaGenerate)
        if self.asked.think is False or spec.params.structured_outputs is not None:
            return Reading()
        return Reading(plan_reasoning(chat_of(self.asked)[0], served.text_processor, prompt))

    def explain_refusal(self, error: ApiError) -> ApiError:
        return explain_refusal(error, is_prompt=not self.as_message)

    def ending(self, error: ApiError | None) -> bytes:
        return error_line(error)


async def read_body(request: Request, body_timeout: float, schema: type[Body]) -> tuple[Body, dict[str, str]]:
    """The body, and response headers that name what was ignored."""
    body = await read_json(request, body_timeout)
    ignored = ignored_members(body, schema.__struct_fields__)
    fields = convert(body, schema)
    if isinstance(fields.keep_alive, str) and not DURATION.fullmatch(fields.keep_alive):
        words = f"keep_alive {fields.keep_alive!r} is no duration. Send seconds as a number, or a text such as '5m'."
        raise invalid(words, "keep_alive")
    note_model(request, fields.model)
    return fields, ignored_header(ignored)


async def answer_call(
    request: Request, inference: Inference, caller: Caller, call: OllamaCall, headers: dict[str, str]
) -> Response:
    """One document, or lines."""
    return await answer(request, inference, caller, call, headers | (LINES if call.fields.stream else {}), PING)


def answer_empty(inference: Inference, caller: Caller, fields: Asked, body: dict[str, object]) -> Response:
    """Of a request without words, which asks that the model be loaded, or unloaded. Neither has an effect: models come
    before their first token, and leave by last use. ApiError."""
    find_model(inference.snapshots, caller, name_of(fields.model))
    reason = "unload" if _is_zero(fields.keep_alive) else "load"
    return JSONResponse(line_of(fields.model, body) | {"done": True, "done_reason": reason})


def _is_zero(keep_alive: float | str | None) -> bool:
    """Seconds, or a duration."""
    return not re.search("[1-9]", keep_alive) if isinstance(keep_alive, str) else keep_alive == 0
