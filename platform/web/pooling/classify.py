"""POST /classify: a number for each class of an input, as vLLM has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.engine.pooling.vectors import Vector
from loraplex.engine.pooling.wanted import Pooling, classification
from loraplex.engine.protocol import EngineInfo

from ..endpoints.dependencies import CallerWithRoom, InferenceOf, request_id_of
from ..http.errors import ApiError, invalid
from ..http.event_stream import ended
from ..inference.answer import answer
from ..inference.resolve import Served
from ..inference.spec import GenerationSpec
from ..settings.settings import Settings
from ..text.text_processor import TextProcessor
from .format import PooledFormat, encoded, listed
from .inputs import check_numbers, facts_of, input_prompts, pooled_spec, read_pooled_fields
from .schemas import ClassifyRequest, InputFields, PoolingRequest

router = APIRouter(tags=["Pooling"])
NO_HEAD = (
    "Neither the base nor the adapter has a classification head. Name an adapter of TaskType SEQ_CLS, or serve a model "
    "for sequence classification."
)


@router.post("/classify")
async def classify(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """The probability of each class, by the adapter's own classification head, else by the base's."""
    fields, headers = await read_pooled_fields(request, inference, ClassifyRequest)
    said = {value for value in (fields.use_activation, fields.activation, fields.softmax) if value is not None}
    if len(said) > 1:
        raise invalid("use_activation, activation and softmax are the same; send one of them.", "use_activation")
    call = ClassifyCall(fields, facts_of(inference), request_id_of(request), False not in said, "classify")
    return await answer(request, inference, caller, call, headers)


@dataclass(frozen=True, slots=True)
class ClassifyCall:
    wants_text: ClassVar[bool] = False
    fields: InputFields
    info: EngineInfo
    request_id: str
    activation: bool
    kind: str
    """classify, or pooling: then the numbers are all that is told."""
    by_token: bool = False

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        return await input_prompts(text_processor, self.fields, settings)

    def spec(self, served: Served, prompts: list[list[int]], max_model_len: int) -> tuple[GenerationSpec, PooledFormat]:
        own, base = has_own_head(served), self.info.classes
        pooling = self._pooling()
        if base is None and not own:
            raise invalid(NO_HEAD, "model", "unsupported")
        labels = None if own or base is None else base.labels
        spec = pooled_spec(self.fields, served, prompts, pooling, "input", self.info)
        if self.by_token and labels is not None:
            check_numbers(spec.prompts, len(labels))
        return spec, PooledFormat(lambda vectors: self._write(vectors, labels))

    def explain_refusal(self, error: ApiError) -> ApiError:
        return error

    def ending(self, error: ApiError | None) -> bytes:
        return ended(error)

    def _pooling(self) -> Pooling:
        """Raises ApiError for classes of tokens where there are those of whole texts, and the other way round."""
        try:
            return classification(self.info.classes, self.info.classified_by, self.activation, self.by_token)
        except ValueError as error:
            raise invalid(f"{error}.", "task" if self.kind == "pooling" else "model", "unsupported") from None

    def _write(self, vectors: Sequence[Vector], labels: Sequence[str] | None) -> dict[str, Any]:
        """`labels` None: an adapter's head, whose classes have no names in its files."""
        fields = self.fields
        if isinstance(fields, PoolingRequest):
            data = [
                {"object": self.kind, "index": index, "data": encoded(vector, fields.encoding_format)}
                for index, vector in enumerate(vectors)
            ]
            return listed("pool", self.request_id, fields.model, data)
        return listed("classify", self.request_id, fields.model, [_entry(*it, labels) for it in enumerate(vectors)])


def has_own_head(served: Served) -> bool:
    """Whether an adapter brings a classification head. Raises ApiError where several do."""
    heads = [name for name, (adapter, _) in served.adapters.items() if adapter.classifies]
    if len(heads) > 1:
        raise invalid(f"{' and '.join(heads)} have a classification head each; name one of them.", "adapters")
    return bool(heads)


def _entry(index: int, vector: Vector, labels: Sequence[str] | None) -> dict[str, Any]:
    label = None if labels is None else labels[int(vector.argmax())]
    return {"index": index, "label": label, "probs": vector.tolist(), "num_classes": len(vector)}
