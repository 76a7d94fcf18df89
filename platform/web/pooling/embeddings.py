"""POST /v1/embeddings: one embedding an input."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.engine.pooling.vectors import Vector
from loraplex.engine.protocol import EngineInfo

from ..endpoints.dependencies import CallerWithRoom, InferenceOf, request_id_of
from ..http.errors import ApiError
from ..http.event_stream import ended
from ..inference.answer import answer
from ..inference.resolve import Served
from ..inference.spec import GenerationSpec
from ..settings.settings import Settings
from ..text.text_processor import TextProcessor
from .format import PooledFormat, encoded, listed
from .inputs import check_numbers, embedding, embeddings_of, facts_of, input_prompts, pooled_spec, read_pooled_fields
from .schemas import EmbeddingsRequest

router = APIRouter(tags=["Pooling"])


@router.post("/v1/embeddings")
async def create_embeddings(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """The embeddings of one or more inputs, given as texts or as token ids."""
    fields, headers = await read_pooled_fields(request, inference, EmbeddingsRequest, default_model=False)
    call = EmbeddingCall(fields, facts_of(inference), request_id_of(request), "embedding")
    return await answer(request, inference, caller, call, headers)


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    wants_text: ClassVar[bool] = False
    fields: EmbeddingsRequest
    info: EngineInfo
    """ApiError for a model that makes no embeddings."""
    request_id: str
    kind: str
    """`object` of each entry: embedding, or pooling."""
    by_token: bool = False

    def __post_init__(self) -> None:
        embeddings_of(self.info)

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        return await input_prompts(text_processor, self.fields, settings, embeddings_of(self.info).prompt)

    def spec(self, served: Served, prompts: list[list[int]], max_model_len: int) -> tuple[GenerationSpec, PooledFormat]:
        fields, model = self.fields, embeddings_of(self.info)
        pooling = embedding(model, fields.dimensions, fields.normalize, self.by_token)
        spec = pooled_spec(fields, served, prompts, pooling, "input", self.info)
        if self.by_token:
            check_numbers(spec.prompts, fields.dimensions or model.size)
        return spec, PooledFormat(self._write)

    def explain_refusal(self, error: ApiError) -> ApiError:
        return error

    def ending(self, error: ApiError | None) -> bytes:
        return ended(error)

    def _write(self, vectors: Sequence[Vector]) -> dict[str, Any]:
        # vLLM names a vector after the endpoint, OpenAI after what it is.
        name, prefix = ("embedding", "embd") if self.kind == "embedding" else ("data", "pool")
        data = [
            {"object": self.kind, "index": index, name: encoded(vector, self.fields.encoding_format)}
            for index, vector in enumerate(vectors)
        ]
        return listed(prefix, self.request_id, self.fields.model, data)
