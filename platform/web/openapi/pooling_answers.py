"""What the endpoints of vectors answer, as types that a document can be made of."""

from typing import Literal, TypedDict

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
    object: Literal["pooling"]
    index: int
    data: list[float] | str


class PoolingAnswer(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Pooled]
    usage: Usage
