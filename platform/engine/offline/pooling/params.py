"""PoolingParams: how a prompt becomes a vector, in vLLM's terms."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ...field_types import FLAG, INTEGER, TEXT, Fields, ParameterError
from ...pooling.wanted import ModelPooling, Pooling

EMBED: Final = "embed"
TASKS: Final = (EMBED,)


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Types are checked as it is made: ParameterError, a ValueError."""

    truncate_prompt_tokens: int | None = None
    """Only so many last tokens of the prompt are used; -1: as many as the model takes."""
    dimensions: int | None = None
    """Only so many first numbers of an embedding, scaled anew; None: all."""
    normalize: bool | None = None
    """Whether an embedding is scaled to length 1; None: as the model says."""
    task: str | None = None

    def __post_init__(self) -> None:
        FIELDS.check(self)
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens != -1:
            _at_least_one("truncate_prompt_tokens", self.truncate_prompt_tokens)
        if self.dimensions is not None:
            _at_least_one("dimensions", self.dimensions)
        if self.task is not None and self.task not in TASKS:
            raise ParameterError("task", f"task {self.task!r} is not supported; supported: {', '.join(TASKS)}")


FIELDS: Final = Fields(
    {
        "truncate_prompt_tokens": INTEGER.or_none(),
        "dimensions": INTEGER.or_none(),
        "normalize": FLAG.or_none(),
        "task": TEXT.or_none(),
    }
)


def wanted_pooling(task: str | None, params: PoolingParams, model: ModelPooling | None, refusal: str) -> Pooling:
    """What the engine is asked for. `refusal`: why the model makes no embeddings. ValueError for what it cannot do."""
    task = task or params.task
    if task is None:
        raise ValueError(f"encode() needs a pooling_task; there are {', '.join(TASKS)}")
    if task not in TASKS:
        raise ValueError(f"pooling_task {task!r} is not supported; there are {', '.join(TASKS)}")
    if params.task not in (None, task):
        raise ValueError(f"pooling_params have the task {params.task!r}, and the call is for {task!r}")
    return _WANTED[task](params, model, refusal)


def _embedding(params: PoolingParams, model: ModelPooling | None, refusal: str) -> Pooling:
    if model is None:
        raise ValueError(f"this model makes no embeddings: {refusal}")
    return model.pooling(params.dimensions, params.normalize)


_WANTED: Final[Mapping[str, Callable[[PoolingParams, ModelPooling | None, str], Pooling]]] = {EMBED: _embedding}


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ParameterError(name, f"{name} must be at least 1, got {value}")
