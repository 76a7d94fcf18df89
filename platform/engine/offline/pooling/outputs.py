"""What the methods of `PoolingCalls` return. The field names and meanings are vLLM's."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ...pooling.vectors import Vector, cosine
from ..lora_request import LoRARequest
from ..prompts import Adapter

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class PoolingOutput:
    vector: Vector

    @property
    def data(self) -> "torch.Tensor":
        """The vector as a tensor, float32; [tokens, numbers] where each token has one."""
        import torch

        return torch.from_numpy(self.vector)


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    score: float


@dataclass(slots=True, kw_only=True)
class Answered:
    """What each output says of its request."""

    request_id: str
    prompt_token_ids: list[int]
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    adapter: Adapter | None = None
    """The adapter it ran with, as it was asked for; None for the base."""
    lora_request: LoRARequest | None = None
    finished: bool = True


@dataclass(slots=True, kw_only=True)
class PoolingRequestOutput(Answered):
    """One prompt with its vector, or with those of its tokens."""

    outputs: PoolingOutput


@dataclass(slots=True, kw_only=True)
class EmbeddingRequestOutput(Answered):
    """One prompt with its embedding."""

    outputs: EmbeddingOutput

    @classmethod
    def from_base(cls, base: PoolingRequestOutput) -> "EmbeddingRequestOutput":
        return cls(outputs=EmbeddingOutput(base.outputs.vector.tolist()), **_facts(base))


@dataclass(slots=True, kw_only=True)
class ClassificationRequestOutput(Answered):
    """One prompt with a number for each class."""

    outputs: ClassificationOutput

    @classmethod
    def from_base(cls, base: PoolingRequestOutput) -> "ClassificationRequestOutput":
        return cls(outputs=ClassificationOutput(base.outputs.vector.tolist()), **_facts(base))


@dataclass(slots=True, kw_only=True)
class ScoringRequestOutput(Answered):
    """A pair of texts with its score. `prompt_token_ids`: of the pair, or of both texts one after the other."""

    outputs: ScoringOutput

    @classmethod
    def from_base(cls, base: PoolingRequestOutput) -> "ScoringRequestOutput":
        """Of a pair that was classified."""
        return cls(outputs=ScoringOutput(float(base.outputs.vector[0])), **_facts(base))

    @classmethod
    def from_embeddings(cls, first: PoolingRequestOutput, second: PoolingRequestOutput) -> "ScoringRequestOutput":
        facts = _facts(second) | {
            "prompt_token_ids": first.prompt_token_ids + second.prompt_token_ids,
            "num_cached_tokens": first.num_cached_tokens + second.num_cached_tokens,
        }
        return cls(outputs=ScoringOutput(cosine(first.outputs.vector, second.outputs.vector)), **facts)


def _facts(base: PoolingRequestOutput) -> dict[str, Any]:
    return {field.name: getattr(base, field.name) for field in fields(Answered)}
