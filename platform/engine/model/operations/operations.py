"""Operations: what a layer computes beside linears and attention. One file for each kind of device.

Shapes: T new tokens, C hidden size, I intermediate size, V tokens of the vocabulary.
"""

from typing import Protocol

import torch

from loraplex.lora.apply.batch import LoraBatch
from loraplex.quant.linears.scheme import Float8Rows


class Casts(Protocol):
    """Operations whose result is cast to float8 in the same launch, for a linear that reads it so. `scale`: as of
    Float8Inputs. Each answers the result as `Operations` does, for adapters, and the cast, bit for bit that of
    `quant/kernels/cuda/cast.py`."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, scale: float | None
    ) -> tuple[torch.Tensor, Float8Rows]: ...

    def multiply_gate(self, gate_up: torch.Tensor, scale: float | None) -> tuple[torch.Tensor, Float8Rows]: ...


class Operations(Protocol):
    @property
    def casts(self) -> Casts | None:
        """None: linears cast by themselves, where they do."""

    def embed(
        self, token_ids: torch.Tensor, table: torch.Tensor, dtype: torch.dtype, lora: LoraBatch | None
    ) -> torch.Tensor:
        """token_ids [T] int64, table [V, C] -> [T, C] in `dtype`, as the tokens' adapters have them; whatever for ids
        that neither the table nor the adapter has."""

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """residual += x, in place; then the RMS norm of the residual times weight [C], [T, C] in x's dtype."""

    def replace_norms(
        self,
        normed: torch.Tensor,
        residual: torch.Tensor,
        tokens: torch.Tensor | None,
        lora: LoraBatch,
        layer: int,
        kind: str,
        eps: float,
    ) -> torch.Tensor:
        """The norm `kind` of residual [N, C], rows of the tokens `tokens` [N] (None: of all), with the weight that each
        one's adapter brings, if any; else as in normed [N, C], which may be changed."""

    def multiply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [T, 2 I], gate first -> silu(gate) * up [T, I]."""

    def add_lora(self, y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
        """Add the adapters' part to y [T, sum of the kinds' out_features], of x [T, in], in place."""

    def widen_logits(self, logits: torch.Tensor, lora: LoraBatch | None) -> torch.Tensor:
        """logits [R, V] of the base in any float dtype -> float32, with room [R, at least V] for what `adapt_logits`
        puts there."""

    def adapt_logits(
        self, logits: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor, lora: LoraBatch
    ) -> torch.Tensor:
        """What `widen_logits` gave for hidden [R, C], the tokens `rows` [R] -> as their adapters have them, at least as
        wide as the largest vocabulary; -inf where a row's model has no such token. May work in place."""


def cpu_operations() -> Operations:
    from .cpu import CpuOperations

    return CpuOperations()


def cuda_operations() -> Operations:
    from .cuda import CudaOperations

    return CudaOperations()
