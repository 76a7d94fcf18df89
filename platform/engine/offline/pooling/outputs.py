"""What `LLM.embed` and `LLM.encode` return. The field names and meanings are vLLM's."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...pooling.vectors import Vector
from ..lora_request import LoRARequest
from ..prompts import Adapter

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class PoolingOutput:
    vector: Vector

    @property
    def data(self) -> "torch.Tensor":
        """The vector as a tensor, float32."""
        import torch

        return torch.from_numpy(self.vector)


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True, kw_only=True)
class PoolingRequestOutput:
    """One prompt with its vector."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    adapter: Adapter | None = None
    """The adapter it ran with, as it was asked for; None for the base."""
    lora_request: LoRARequest | None = None
    finished: bool = True


@dataclass(slots=True, kw_only=True)
class EmbeddingRequestOutput:
    """One prompt with its embedding."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    adapter: Adapter | None = None
    lora_request: LoRARequest | None = None
    finished: bool = True

    @classmethod
    def from_base(cls, base: PoolingRequestOutput) -> "EmbeddingRequestOutput":
        return cls(
            request_id=base.request_id,
            outputs=EmbeddingOutput(base.outputs.vector.tolist()),
            prompt_token_ids=base.prompt_token_ids,
            num_cached_tokens=base.num_cached_tokens,
            adapter=base.adapter,
            lora_request=base.lora_request,
        )
