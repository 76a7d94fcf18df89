"""PooledFormat: answers with one vector an input. They are never streamed."""

import base64
import time
from collections.abc import Callable, Sequence
from typing import Any

from loraplex.engine.pooling.vectors import Vector, from_wire

from ..http.errors import ApiError
from ..http.event_stream import ended
from ..inference.generation import Answers, Delta, Generation
from ..quotas.meters import Usage

Document = Callable[[Sequence[Vector]], dict[str, Any]]
"""From the vectors, in the order of the inputs, to what the answer has beside its usage."""


class PooledFormat:
    """`stream` is false in every request here."""

    def __init__(self, write: Document) -> None:
        self._write = write

    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        return self._write(vectors_of(answers)) | {"usage": pooled_usage(answers.usage)}

    def events(self, delta: Delta, generation: Generation) -> bytes:
        raise AssertionError("vectors are not streamed")

    def last_events(self, usage: Usage) -> bytes:
        raise AssertionError("vectors are not streamed")

    def ending(self, error: ApiError | None) -> bytes:
        return ended(error)


def vectors_of(answers: Answers) -> list[Vector]:
    vectors = list[Vector]()
    for choice in answers.choices:
        assert choice.pooled is not None, "each request for a vector ends with one"
        vectors.append(from_wire(choice.pooled))
    return vectors


def pooled_usage(usage: Usage) -> dict[str, Any]:
    """Nothing is put out: all of it is the prompts'."""
    cached = {"cached_tokens": usage.cached_tokens}
    prompt = usage.prompt_tokens
    return {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0, "prompt_tokens_details": cached}


def encoded(vector: Vector, encoding_format: str) -> list[float] | list[list[float]] | str:
    """base64: of float32, little-endian, token after token."""
    if encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] | list[list[float]] = vector.tolist()
    return numbers


def listed(prefix: str, request_id: str, model: str, data: list[dict[str, Any]]) -> dict[str, Any]:
    """The head that OpenAI's lists and vLLM's have."""
    return {
        "id": f"{prefix}-{request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
    }
