"""POST /score and /rerank, under /v1 too: how well texts fit each other.

A classification head of one class judges both texts in one prompt. A model without one embeds them: the score is the
cosine of the two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.engine.pooling.pairs import check_classes, paired
from loraplex.engine.pooling.vectors import Vector, cosine
from loraplex.engine.pooling.wanted import TOKENS_ALONE, PairTemplate, Pooling, PoolingKind, classification
from loraplex.engine.protocol import EngineInfo

from ..access.caller import Caller
from ..chat_templates.chat_template import TemplateFailure
from ..endpoints.dependencies import CallerWithRoom, InferenceOf, request_id_of
from ..http.errors import ApiError, invalid, overloaded
from ..http.event_stream import ended
from ..inference.answer import answer
from ..inference.inference import Inference
from ..inference.resolve import Served, find_served
from ..inference.spec import GenerationSpec, check_chars
from ..settings.settings import Settings
from ..text.text_processor import TextProcessor
from .classify import has_own_head
from .format import PooledFormat, listed
from .inputs import embedding, embeddings_of, facts_of, most_tokens, pooled_spec, read_pooled_fields
from .schemas import Document, PooledFields, RerankRequest, ScoreRequest

router = APIRouter(tags=["Pooling"])
SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
CUTTING = {
    "max_tokens_per_doc": "Cut the documents, or leave it out",
    "max_chunks_per_doc": "Cut the documents, or leave it out",
    "rank_fields": "A document has one text: put the fields that count into it, and leave rank_fields out",
}
"""Cohere's ways to say which part of a document counts, and what to do instead."""
Scores = list[float]


@router.post("/score")
@router.post("/v1/score")
async def score(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """The score of each pair: of one text with each of several, or of as many with as many. As vLLM has it."""
    fields, headers = await read_pooled_fields(request, inference, ScoreRequest)
    first, second = _sides(fields)
    try:
        firsts, seconds = paired(getattr(fields, first), getattr(fields, second))
    except ValueError as error:
        raise invalid(f"{error}.", second) from None
    request_id = request_id_of(request)

    def write(scores: Scores) -> dict[str, Any]:
        data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
        return listed("score", request_id, fields.model, data)

    judge = await _judge(inference, caller, fields, fields.use_activation is not False, request_id)
    return await answer(request, inference, caller, ScoreCall(fields, firsts, seconds, second, judge, write), headers)


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v2/rerank")
async def rerank(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """Documents by how well they fit a query, the best first. As vLLM, Jina and Cohere have it."""
    fields, headers = await read_pooled_fields(request, inference, RerankRequest)
    for name, instead in CUTTING.items():
        if getattr(fields, name) is not None:
            raise invalid(f"{name} is not supported and would change the scores. {instead}.", name, "unsupported")
    texts = [document.text if isinstance(document, Document) else document for document in fields.documents]
    if not texts:
        raise invalid("documents is an empty list; send at least one.", "documents")
    request_id = request_id_of(request)

    def write(scores: Scores) -> dict[str, Any]:
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: fields.top_n or None]
        documents = [{"document": {"text": text}} if fields.return_documents else {} for text in texts]
        results = [{"index": index, "relevance_score": scores[index]} | documents[index] for index in order]
        return {"id": f"rerank-{request_id}", "model": fields.model, "results": results}

    judge = await _judge(inference, caller, fields, fields.use_activation is not False, request_id)
    call = ScoreCall(fields, [fields.query] * len(texts), texts, "documents", judge, write)
    return await answer(request, inference, caller, call, headers)


@dataclass(frozen=True, slots=True)
class Judge:
    """How pairs are scored: by one prompt for both texts, or by the embeddings of each."""

    info: EngineInfo
    pooling: Pooling
    reads_pairs: bool
    own_head: bool
    template: PairTemplate | None = None
    """By which pairs become prompts. None: as the tokenizer joins them."""


@dataclass(frozen=True, slots=True)
class ScoreCall:
    wants_text: ClassVar[bool] = False
    fields: PooledFields
    firsts: list[str]
    seconds: list[str]
    field: str
    """Of the request, that holds the second texts."""
    judge: Judge
    write: Callable[[Scores], dict[str, Any]]

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        if len(self.seconds) > settings.max_inputs:
            words = f"{self.field} has {len(self.seconds)} texts; this server takes at most {settings.max_inputs}."
            raise invalid(words, self.field)
        for text in (*self._distinct(), *self.seconds):
            check_chars(len(text), settings.max_prompt_chars, self.field)
        pairs = zip(self.firsts, self.seconds, strict=True)
        if self.judge.template is not None:
            return [await _templated(text_processor, self.judge.template, *pair) for pair in pairs]
        if self.judge.reads_pairs:
            most = most_tokens(self.fields, self.judge.info) if self.judge.info.keeps_beginning else None
            return [await text_processor.encode_pair(first, second, most) for first, second in pairs]
        before = embeddings_of(self.judge.info).prompt
        return [await text_processor.encode(before + text, True) for text in (*self._distinct(), *self.seconds)]

    def spec(self, served: Served, prompts: list[list[int]], max_model_len: int) -> tuple[GenerationSpec, PooledFormat]:
        if has_own_head(served) is not self.judge.own_head:
            raise overloaded("The model was replaced while this request was prepared. Send it again.")
        spec = pooled_spec(self.fields, served, prompts, self.judge.pooling, self.field, self.judge.info)
        return spec, PooledFormat(lambda vectors: self.write(self._scores(vectors)))

    def explain_refusal(self, error: ApiError) -> ApiError:
        return error

    def ending(self, error: ApiError | None) -> bytes:
        return ended(error)

    def _scores(self, vectors: Sequence[Vector]) -> Scores:
        if self.judge.reads_pairs:
            _check_classes(len(vectors[0]))
            return [float(vector[0]) for vector in vectors]
        left, right = vectors[: -len(self.seconds)], vectors[-len(self.seconds) :]
        left = [left[0]] * len(right) if len(left) == 1 else left
        return [cosine(*pair) for pair in zip(left, right, strict=True)]

    def _distinct(self) -> list[str]:
        """The first texts; once, where it is one beside many."""
        return self.firsts[:1] if len(set(self.firsts)) == 1 else self.firsts


def _sides(fields: ScoreRequest) -> tuple[str, str]:
    """Names of the two sides that were sent."""
    sent = [name for name in ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")
            if getattr(fields, name) is not None]  # fmt: skip
    sides = next((pair for pair in SIDES if set(pair) == set(sent)), None)
    if sides is None:
        words = "Send two sides: text_1 and text_2, queries and documents, queries and items, or data_1 and data_2."
        raise invalid(words, next((name for name in sent), "text_1"))
    return sides


async def _judge(
    inference: Inference, caller: Caller, fields: PooledFields, activation: bool, request_id: str
) -> Judge:
    """Raises ApiError, also for a model that cannot score."""
    info = facts_of(inference)
    asker = fields.asker(caller.actor, request_id)
    served = await find_served(inference, caller, fields.model, fields.adapter_scales(), asker)
    own_head = has_own_head(served)
    if info.classified_by is PoolingKind.ALL:
        raise invalid(f"{TOKENS_ALONE}, or compare the vectors of /v1/embeddings.", "model", "unsupported")
    if not own_head and info.classes is None:
        return Judge(info, embedding(embeddings_of(info), normalize=True), reads_pairs=False, own_head=False)
    if not own_head and info.classes is not None:
        _check_classes(len(info.classes.labels))
    template = None if own_head or info.classes is None else info.classes.pairs
    pooling = classification(info.classes, info.classified_by, activation)
    return Judge(info, pooling, reads_pairs=True, own_head=own_head, template=template)


async def _templated(text_processor: TextProcessor, pairs: PairTemplate, query: str, document: str) -> list[int]:
    template = text_processor.template
    if template is None:
        raise invalid("This model has no chat template to join a query and a document by.", "model", "no_chat_template")
    try:
        text = await template.render(pairs.messages(query, document), pairs.add_generation_prompt, False, {})
    except TemplateFailure as error:
        raise invalid(f"{error}.", "model", "chat_template_error") from None
    return await text_processor.encode(text, False)


def _check_classes(count: int) -> None:
    try:
        check_classes(count)
    except ValueError as error:
        raise invalid(f"{error}.", "model", "unsupported") from None
