"""Hidden states of many sequences on their way through the layers, a few sequences at a time; and what the end makes of
them. They wait on the CPU, so that a device holds one layer and one batch.
"""

import math
from typing import Final

import torch
import torch.nn.functional as F

from .forward import LayerForward, LayerTensors, Observe, rms_norm

BATCH_TOKENS: Final = 2048
HEAD_ROWS: Final = 16384
"""Of the vocabulary at a time: a head in float32 can be larger than a layer."""


class Stream:
    """[S, L, C] float32."""

    def __init__(self, token_ids: torch.Tensor, embedding: torch.Tensor) -> None:
        """token_ids [S, L]; embedding [V, C] in any float dtype."""
        self._token_ids = token_ids
        batches = torch.split(token_ids, max(1, BATCH_TOKENS // token_ids.shape[1]))
        self._batches = [F.embedding(batch, embedding).float() for batch in batches]

    @property
    def num_tokens(self) -> int:
        return self._token_ids.numel()

    def observe(self, layer: LayerForward, tensors: LayerTensors, observe: Observe) -> None:
        """Show what the layer's linears read; the stream stays before the layer."""
        for batch in self._batches:
            layer.apply(tensors, batch.to(_device(tensors)), observe)

    def advance(self, layer: LayerForward, tensors: LayerTensors, observe: Observe | None = None) -> None:
        """Through the layer."""
        self._batches = [layer.apply(tensors, batch.to(_device(tensors)), observe).cpu() for batch in self._batches]

    def error(self, layer: LayerForward, tensors: LayerTensors, other: LayerTensors) -> float:
        """|other(x) - layer(x)| / |layer(x) - x| for another form of the layer; the stream stays before it."""
        wrong = norm = 0.0
        for batch in self._batches:
            x = batch.to(_device(tensors))
            right = layer.apply(tensors, x)
            norm += (right - x).square().sum().item()
            wrong += (layer.apply(other, x) - right).square().sum().item()
        return math.sqrt(wrong / norm) if wrong else 0.0

    def perplexity(self, norm: torch.Tensor, eps: float, head: torch.Tensor) -> float:
        """After the last layer: exp of the mean negative log-likelihood of each sequence's tokens but its first.

        norm [C] float32, on the device to compute on; head [V, C] in any float dtype.
        """
        hidden = rms_norm(norm, torch.cat(self._batches)[:, :-1].flatten(0, 1).to(norm.device), eps)
        targets = self._token_ids[:, 1:].flatten()
        wanted = (hidden * head[targets].to(hidden)).sum(-1)
        total = torch.full_like(wanted, -math.inf)
        for first in range(0, len(head), HEAD_ROWS):
            logits = hidden @ head[first : first + HEAD_ROWS].to(hidden).T
            total = torch.logaddexp(total, logits.logsumexp(-1))
        return (total - wanted).mean().exp().item()


def _device(tensors: LayerTensors) -> torch.device:
    return next(iter(tensors.values())).device
