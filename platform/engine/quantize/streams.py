"""Hidden states of many sequences on their way through the layers, a few sequences at a time; and what the end makes of
them. They wait on the CPU, so that a device holds one layer and one batch.
"""

import math
from collections.abc import Callable
from typing import Final

import torch

from .ends import End
from .plain.forward import LayerForward, LayerTensors, Observe

BATCH_TOKENS: Final = 512
HEAD_ROWS: Final = 2048
"""Of the vocabulary at a time: a head in float32 can be larger than a layer."""


class Stream:
    """[S, L, C] float32."""

    def __init__(self, token_ids: torch.Tensor, embed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """token_ids [S, L]; `embed` makes [S, L, C] of some of them."""
        self._token_ids = token_ids
        batches = torch.split(token_ids, max(1, BATCH_TOKENS // token_ids.shape[1]))
        self._batches = [embed(batch) for batch in batches]

    @property
    def num_tokens(self) -> int:
        return self._token_ids.numel()

    def observe(self, layer: LayerForward, tensors: LayerTensors, observe: Observe) -> None:
        """Show what the layer's linears read; the stream stays before the layer."""
        for batch in self._batches:
            layer.apply(tensors, batch.to(layer.device), observe)

    def advance(self, layer: LayerForward, tensors: LayerTensors, observe: Observe | None = None) -> None:
        """Through the layer."""
        for number, batch in enumerate(self._batches):  # so that no more than a batch is there twice
            self._batches[number] = layer.apply(tensors, batch.to(layer.device), observe).cpu()

    def error(self, layer: LayerForward, tensors: LayerTensors, other: LayerTensors) -> float:
        """|other(x) - layer(x)| / |layer(x) - x| for another form of the layer; the stream stays before it."""
        wrong = norm = 0.0
        for batch in self._batches:
            x = batch.to(layer.device)
            right = layer.apply(tensors, x)
            norm += (right - x).square().sum().item()
            wrong += (layer.apply(other, x) - right).square().sum().item()
        return math.sqrt(wrong / norm) if wrong else 0.0

    def perplexity(self, end: End, head: torch.Tensor, device: torch.device) -> float:
        """After the last layer: exp of the mean negative log-likelihood of each sequence's tokens but its first.

        head [V, E] in any float dtype; computed on `device`, where `end` is.
        """
        hidden = [end.rows(batch[:, :-1].flatten(0, 1).to(device)) for batch in self._batches]
        totals = [torch.full((len(rows),), -math.inf, device=device) for rows in hidden]
        for first in range(0, len(head), HEAD_ROWS):
            part = head[first : first + HEAD_ROWS].to(device, torch.float32).T
            totals = [
                torch.logaddexp(total, end.logits(rows @ part).logsumexp(-1))
                for total, rows in zip(totals, hidden, strict=True)
            ]
        targets = torch.split(self._token_ids[:, 1:].flatten(), [len(rows) for rows in hidden])
        wanted = [end.logits((rows * head[own].to(rows)).sum(-1)) for rows, own in zip(hidden, targets, strict=True)]
        return (torch.cat(totals) - torch.cat(wanted)).mean().exp().item()


def _device(layer: LayerForward) -> torch.device:
    return layer.device
