"""What the endpoints of vectors answer, as types that a document can be made of."""

from typing import Literal, NotRequired, TypedDict

from .public_answers import Usage


class Embedding(TypedDict):
    """`embedding` is base64 of little-endian float32 where the request says so."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: Usage


class Pooled(TypedDict):
    """`data` has a list for each token where `task` is one of tokens; base64 has one after the other."""

    object: Literal["pooling"]
    index: int
    data: list[float | list[float]] | str


class PoolingAnswer(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Pooled]
    usage: Usage


class Classified(TypedDict):
    """`label` is null where an adapter's head classifies: its files name no classes."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassifyAnswer(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Classified]
    usage: Usage


class Scored(TypedDict):
    index: int
    object: Literal["score"]
    score: float


class ScoreAnswer(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Scored]
    usage: Usage


class RankedDocument(TypedDict):
    text: str


class Ranked(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[RankedDocument]


class RerankAnswer(TypedDict):
    id: str
    model: str
    results: list[Ranked]
    usage: Usage
