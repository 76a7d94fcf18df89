"""Decoder: one transformer for every supported family; its configuration decides what the layers hold."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from loraplex.quant.linears.scheme import LinearMethod

from ..attention.backend import AttentionBackend
from ..batch import Batch
from .layers import DecoderLayer, Norm
from .operations.operations import Operations

if TYPE_CHECKING:
    from .fused import FusedDecoder


Ends = tuple[torch.Tensor, torch.Tensor]
"""x and residual [T, C]: what the last layer gave, and what it is to be added to."""


@dataclass(slots=True)
class Decoder:
    embedding: torch.Tensor
    """[V, C], in the stored dtype."""
    layers: list[DecoderLayer]
    norm: Norm
    head: LinearMethod
    operations: Operations
    fused: "FusedDecoder | None" = None
    """All of it as one call, where `fuse` found that it can be; the same results."""

    def fuse(self, cache: AttentionBackend) -> None:
        """Compute over `cache` in one call from now on, if everything fits: on a CPU."""
        from .fused import fuse

        self.fused = fuse(self.embedding, self.layers, self.norm, self.head, cache)

    def forward(self, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """Logits [R, V] float32 of the batch's sample_rows; writes keys and values of all its tokens to `cache`."""
        return self.forward_with_ends(batch, cache)[0]

    def forward_with_ends(self, batch: Batch, cache: AttentionBackend) -> tuple[torch.Tensor, Ends]:
        """As `forward`, with what `hidden` takes, good until the next step."""
        if self.fused is not None:
            return self.fused.forward(batch, cache), self.fused.ends()
        ends = self.compute(batch, cache)
        return self.end(*ends, batch), ends

    def compute(self, batch: Batch, cache: AttentionBackend) -> Ends:
        """What the last layer gives, x and residual [T, C], for `end`, which can be asked for some rows at a time."""
        x = self.begin(batch)
        residual = torch.zeros_like(x)
        for layer in self.layers:
            x = layer.apply(x, residual, batch, cache)
        return x, residual

    def begin(self, batch: Batch) -> torch.Tensor:
        """What the first layer takes, [T, C]; the residual stream before it is zero."""
        return self.operations.embed(batch.token_ids, self.embedding, self.norm.weight.dtype, batch.lora)

    def end(self, x: torch.Tensor, residual: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the last layer gave, x and residual [T, C], to logits as those of `forward`. Changes neither."""
        logits, hidden = self._base_logits(x, residual, batch)
        if batch.lora is None or not len(batch.sample_rows):
            return logits
        return self.operations.adapt_logits(logits, hidden, batch.sample_rows, batch.lora)

    def _base_logits(self, x: torch.Tensor, residual: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The base's logits and what they are computed of, in which norms are the adapters' already."""
        rows = batch.sample_rows
        if not len(rows):
            return torch.empty(0, self.embedding.shape[0], device=x.device), x[rows]
        x = self.hidden(x, residual, rows, batch)
        return self.operations.widen_logits(self.head.apply(x), batch.lora), x

    def hidden(self, x: torch.Tensor, residual: torch.Tensor, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the last layer gave, x and residual [T, C], after the last norm: [R, C] of the tokens `rows` [R], at
        least one. Changes neither."""
        x, residual = x[rows], residual[rows]
        x = self.norm.apply_to_sum(x, residual)
        if batch.lora is not None and "norm" in batch.lora.changed:
            x = self.operations.replace_norms(x, residual, rows, batch.lora, 0, "norm", self.norm.eps)
        return x

    def weight_bytes(self) -> int:
        linears = [
            linear.method
            for layer in self.layers
            for linear in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down)
        ]
        return self.embedding.nbytes + self.head.weight_bytes() + sum(linear.weight_bytes() for linear in linears)
