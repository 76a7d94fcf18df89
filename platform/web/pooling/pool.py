"""POST /pooling: vectors or classes of inputs, or of each of their tokens, as vLLM has it."""

from fastapi import APIRouter, Request
from msgspec.structs import replace
from starlette.responses import Response

from loraplex.engine.pooling.wanted import PoolingKind
from loraplex.engine.protocol import EngineInfo

from ..endpoints.dependencies import CallerWithRoom, InferenceOf, request_id_of
from ..http.errors import invalid
from ..inference.answer import answer
from ..inference.call import Call
from .classify import ClassifyCall
from .embeddings import EmbeddingCall
from .inputs import facts_of, read_pooled_fields
from .schemas import PoolingRequest

router = APIRouter(tags=["Pooling"])


@router.post("/pooling")
async def pool(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """The vectors of one or more inputs, or of their tokens. Without a task: what the base was made for."""
    fields, headers = await read_pooled_fields(request, inference, PoolingRequest)
    call = _call(fields, facts_of(inference), request_id_of(request))
    return await answer(request, inference, caller, call, headers)


def _call(fields: PoolingRequest, info: EngineInfo, request_id: str) -> Call:
    """Raises ApiError for what the task has no use for."""
    task = fields.task or usual_task(info)
    by_token = task.startswith("token_")
    if task.endswith("embed"):
        fields = replace(fields, normalize=_normalize(fields))
        return EmbeddingCall(fields, info, request_id, "pooling", by_token)
    for name in ("dimensions", "normalize"):
        if getattr(fields, name) is not None:
            raise invalid(f"{name} is for embeddings; classify has use_activation.", name)
    return ClassifyCall(fields, info, request_id, fields.use_activation is not False, "pooling", by_token)


def usual_task(info: EngineInfo) -> str:
    if info.classes is None:
        return "embed"
    return "token_classify" if info.classified_by is PoolingKind.ALL else "classify"


def _normalize(fields: PoolingRequest) -> bool | None:
    said = {value for value in (fields.normalize, fields.use_activation) if value is not None}
    if len(said) > 1:
        raise invalid("normalize and use_activation are the same of embeddings; send one of them.", "use_activation")
    return next(iter(said), None)
