"""GenerateCall and EmbedCall: a message of gRPC, run as the chat, completion or embedding that it says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ..http.errors import ApiError, invalid
from ..http.json_body import convert
from ..inference.generation import Answers, Delta, Generation
from ..inference.resolve import Served
from ..inference.speaks import EMBEDDINGS
from ..inference.spec import GenerationSpec
from ..openai.chat import ChatCall, check_chat
from ..openai.completions import CompletionCall
from ..openai.schemas import ChatRequest, CompletionRequest
from ..openai.translated.refusals import in_terms_of
from ..pooling.embeddings import EmbeddingCall
from ..pooling.format import vectors_of
from ..quotas.meters import Usage
from ..settings.settings import Settings
from ..text.text_processor import TextProcessor
from .messages import given, message

INPUTS: Final = ("prompt", "prompt_token_ids", "chat", "request_id")


class GrpcFormat:
    """Each event is one message. Errors are told by gRPC itself."""

    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        raise AssertionError("generations are streamed")

    def events(self, delta: Delta, generation: Generation) -> bytes:
        told = message("GenerateResponse")(index=delta.index, text=delta.text, token_ids=delta.token_ids)
        if delta.finish_reason is not None:
            told.finish_reason = delta.finish_reason
        return bytes(told.SerializeToString())

    def last_events(self, usage: Usage) -> bytes:
        return bytes(message("GenerateResponse")(usage=usage_of(usage)).SerializeToString())

    def ending(self, error: ApiError | None) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class GenerateCall:
    wants_text: ClassVar[bool] = True
    inner: ChatCall | CompletionCall

    @property
    def fields(self) -> ChatRequest | CompletionRequest:
        return self.inner.fields

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        return await self.inner.render(text_processor, settings)

    def spec(self, served: Served, prompts: list[list[int]], max_model_len: int) -> tuple[GenerationSpec, GrpcFormat]:
        spec, _ = self.inner.spec(served, prompts, max_model_len)
        return spec, GrpcFormat()

    def explain_refusal(self, error: ApiError) -> ApiError:
        return in_terms_of(error, lambda text: text.replace(EMBEDDINGS, "Embed"))

    def ending(self, error: ApiError | None) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class EmbedFormat(GrpcFormat):
    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        vectors = [message("Vector")(values=vector.tolist()) for vector in vectors_of(answers)]
        return {"message": message("EmbedResponse")(embeddings=vectors, usage=usage_of(answers.usage))}


@dataclass(frozen=True, slots=True)
class EmbedCall:
    wants_text: ClassVar[bool] = False
    inner: EmbeddingCall

    @property
    def fields(self) -> Any:
        return self.inner.fields

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        return await self.inner.render(text_processor, settings)

    def spec(self, served: Served, prompts: list[list[int]], max_model_len: int) -> tuple[GenerationSpec, EmbedFormat]:
        spec, _ = self.inner.spec(served, prompts, max_model_len)
        return spec, EmbedFormat()

    def explain_refusal(self, error: ApiError) -> ApiError:
        return error

    def ending(self, error: ApiError | None) -> bytes:
        return b""


def generate_call(sent: Any) -> GenerateCall:
    """Checked as the HTTP API checks it. Raises ApiError."""
    fields, kind = given(sent), sent.WhichOneof("input")
    body = {name: value for name, value in fields.items() if name not in INPUTS} | {"stream": True}
    if kind == "chat":
        body["messages"] = [{"role": one.role, "content": one.content} for one in sent.chat.messages]
        chat = convert(body, ChatRequest)
        check_chat(chat)
        return GenerateCall(ChatCall(chat, frozenset(body)))
    if kind is None:
        raise invalid("input is missing; set prompt, prompt_token_ids or chat.", "input")
    body["prompt"] = sent.prompt if kind == "prompt" else list(sent.prompt_token_ids.ids)
    return GenerateCall(CompletionCall(convert(body, CompletionRequest), frozenset(body)))


def usage_of(usage: Usage) -> Any:
    return message("Usage")(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )
