"""The vectors of the fake engine: another one for other tokens and adapters, always the same for the same."""

import numpy as np
import numpy.typing as npt

from loraplex.engine.pooling.vectors import Hidden, Vector, finish_vector, to_wire
from loraplex.engine.pooling.wanted import ModelPooling, PoolingKind
from loraplex.engine.protocol import FinishReason, GenerateRequest, Tokens

SIZE = 8
POOLING = ModelPooling(kind=PoolingKind.MEAN, normalize=True, size=SIZE, source="the fake engine")


def vector_of(request: GenerateRequest, classes: int = 0) -> Vector:
    """`classes`: of the head that classifies."""
    assert request.pooling is not None
    shift = sum(int(adapter.digest[:6], 16) * adapter.scale for adapter in request.adapters)
    tokens, places = np.array(request.prompt_token_ids)[:, None], np.arange(1, SIZE + 1)
    head = np.cos(np.arange(classes * SIZE, dtype=np.float32)).reshape(classes, SIZE)
    hidden = np.cos(tokens * places + shift)
    hidden = hidden if request.pooling.by_token else hidden.sum(axis=0)

    def classify(one: Hidden) -> npt.NDArray[np.float64]:
        return np.asarray(one @ head.T, dtype=np.float64)

    vector = finish_vector(request.pooling, hidden, len(tokens), classify)
    assert vector is not None
    return vector


def pooled_answer(request: GenerateRequest, classes: int = 0) -> Tokens:
    return Tokens(
        request_id=request.request_id,
        index=0,
        token_ids=[],
        pooled=to_wire(vector_of(request, classes)),
        finish_reason=FinishReason.STOP,
        queue_seconds=0.001,
        load_seconds=0.0,
    )
