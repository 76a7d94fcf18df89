"""POST /api/embed and /api/embeddings: vectors of texts, by the call that /v1/embeddings makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..endpoints.dependencies import CallerWithRoom, InferenceOf, request_id_of
from ..http.errors import ApiError
from ..inference.answer import answer
from ..inference.generation import Answers, Generation
from ..inference.resolve import Served
from ..inference.spec import GenerationSpec
from ..pooling.embeddings import EmbeddingCall
from ..pooling.format import PooledFormat, vectors_of
from ..pooling.inputs import facts_of
from ..pooling.schemas import EmbeddingsRequest
from ..settings.settings import Settings
from ..text.text_processor import TextProcessor
from .as_chat import name_of
from .call import read_body
from .errors import error_line
from .format import durations
from .schemas import OllamaEmbed, OllamaEmbedding

router = APIRouter(tags=["Ollama"])


@router.post("/api/embed")
async def embed(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """The embedding of each input."""
    fields, headers = await read_body(request, inference.settings.body_timeout, OllamaEmbed)
    wanted = EmbeddingsRequest(model=name_of(fields.model), input=list(fields.texts), dimensions=fields.dimensions)
    inner = EmbeddingCall(wanted, facts_of(inference), request_id_of(request), "embedding")
    return await answer(request, inference, caller, EmbedCall(fields.model, fields.truncate, inner), headers)


@router.post("/api/embeddings")
async def embeddings(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """The embedding of one prompt, as older clients ask for it."""
    fields, headers = await read_body(request, inference.settings.body_timeout, OllamaEmbedding)
    wanted = EmbeddingsRequest(model=name_of(fields.model), input=[fields.prompt])
    inner = EmbeddingCall(wanted, facts_of(inference), request_id_of(request), "embedding")
    return await answer(request, inference, caller, EmbedCall(None, True, inner), headers)


class EmbedFormat(PooledFormat):
    """`model` None: the older form, with one vector and nothing else."""

    def __init__(self, model: str | None) -> None:
        super().__init__(lambda vectors: {"embeddings": [vector.tolist() for vector in vectors]})
        self._model = model

    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        found = [vector.tolist() for vector in vectors_of(answers)]
        if self._model is None:
            return {"embedding": found[0]}
        spent = [durations(generation.finished) for generation in generations]
        longest = {name: max(one.get(name, 0) for one in spent) for name in ("total_duration", "load_duration")}
        count = answers.usage.prompt_tokens
        return {"model": self._model, "embeddings": found, **longest, "prompt_eval_count": count}

    def ending(self, error: ApiError | None) -> bytes:
        return error_line(error)


@dataclass(frozen=True, slots=True)
class EmbedCall:
    """`truncate`: of an input that is too long, the beginning is used."""

    wants_text: ClassVar[bool] = False
    model: str | None
    truncate: bool
    inner: EmbeddingCall

    @property
    def fields(self) -> EmbeddingsRequest:
        return self.inner.fields

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        return await self.inner.render(text_processor, settings)

    def spec(self, served: Served, prompts: list[list[int]], max_model_len: int) -> tuple[GenerationSpec, EmbedFormat]:
        tokenizer = served.text_processor.tokenizer
        cut = [tokenizer.cut(prompt, max_model_len) for prompt in prompts] if self.truncate else prompts
        spec, _ = self.inner.spec(served, cut, max_model_len)
        return spec, EmbedFormat(self.model)

    def explain_refusal(self, error: ApiError) -> ApiError:
        return error

    def ending(self, error: ApiError | None) -> bytes:
        return error_line(error)
