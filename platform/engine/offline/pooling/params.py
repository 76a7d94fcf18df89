"""PoolingParams: how a prompt becomes a vector, or one of each token, in vLLM's terms."""

from typing import Final

import msgspec

from ...field_types import FLAG, INTEGER, TEXT, Fields, ParameterError
from ...pooling.wanted import Pooling, classification
from ...protocol import EngineInfo

EMBED: Final = "embed"
CLASSIFY: Final = "classify"
TOKEN_EMBED: Final = "token_embed"
TOKEN_CLASSIFY: Final = "token_classify"
TASKS: Final = (EMBED, CLASSIFY, TOKEN_EMBED, TOKEN_CLASSIFY)


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Types are checked as it is made: ParameterError, a ValueError."""

    truncate_prompt_tokens: int | None = None
    """Only so many last tokens of the prompt are used; -1: as many as the model takes."""
    dimensions: int | None = None
    """Only so many first numbers of an embedding, scaled anew; None: all."""
    normalize: bool | None = None
    """Whether an embedding is scaled to length 1; None: as the model says."""
    use_activation: bool | None = None
    """Whether a classification is told as probabilities; None: it is. False: as the head's scores. Of an embedding:
    vLLM's new name of `normalize`."""
    task: str | None = None

    def __post_init__(self) -> None:
        FIELDS.check(self)
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens != -1:
            _at_least_one("truncate_prompt_tokens", self.truncate_prompt_tokens)
        if self.dimensions is not None:
            _at_least_one("dimensions", self.dimensions)
        if self.task is not None and self.task not in TASKS:
            raise ParameterError("task", f"task {self.task!r} is not supported; supported: {', '.join(TASKS)}")

    def scales(self) -> bool | None:
        """Whether an embedding is scaled; None: as the model says. ParameterError where its two names disagree."""
        if None not in (self.normalize, self.use_activation) and self.normalize is not self.use_activation:
            raise ParameterError("use_activation", "normalize and use_activation are the same of embeddings; give one")
        return self.use_activation if self.normalize is None else self.normalize


FIELDS: Final = Fields(
    {
        "truncate_prompt_tokens": INTEGER.or_none(),
        "dimensions": INTEGER.or_none(),
        "normalize": FLAG.or_none(),
        "use_activation": FLAG.or_none(),
        "task": TEXT.or_none(),
    }
)


def truncating(params: PoolingParams, most: int | None) -> PoolingParams:
    """With the value that a call gives beside them. ValueError for another one in them."""
    if most is None:
        return params
    if params.truncate_prompt_tokens not in (None, most):
        words = "truncate_prompt_tokens of the call and of pooling_params differ; give one of them"
        raise ParameterError("truncate_prompt_tokens", words)
    return PoolingParams(**msgspec.structs.asdict(params) | {"truncate_prompt_tokens": most})


def wanted_pooling(task: str | None, params: PoolingParams, info: EngineInfo) -> Pooling:
    """What the engine is asked for. ValueError for what the model cannot do."""
    task = task or params.task
    if task is None:
        raise ValueError(f"encode() needs a pooling_task; there are {', '.join(TASKS)}")
    if task not in TASKS:
        raise ValueError(f"pooling_task {task!r} is not supported; there are {', '.join(TASKS)}")
    if params.task not in (None, task):
        raise ValueError(f"pooling_params have the task {params.task!r}, and the call is for {task!r}")
    by_token = task in (TOKEN_EMBED, TOKEN_CLASSIFY)
    return _classification(params, info, by_token) if task.endswith(CLASSIFY) else _embedding(params, info, by_token)


def _embedding(params: PoolingParams, info: EngineInfo, by_token: bool) -> Pooling:
    if info.pooling is None:
        raise ValueError(f"this model makes no embeddings: {info.pooling_refusal}")
    return info.pooling.pooling(params.dimensions, params.scales(), by_token)


def _classification(params: PoolingParams, info: EngineInfo, by_token: bool) -> Pooling:
    for name in ("dimensions", "normalize"):
        if getattr(params, name) is not None:
            raise ParameterError(name, f"{name} is for embeddings; classify has use_activation")
    return classification(info.classes, info.classified_by, params.use_activation is not False, by_token)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ParameterError(name, f"{name} must be at least 1, got {value}")
