"""Reference: the unquantized model with the adapter in its weights, on whole prompts, in float32, a layer at a time.

It shares nothing with the served path but configurations, rotary tables and the names of tensors.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F

from ..model.config import ModelConfig
from ..model.expected import EMBEDDING, HEAD
from ..model.loader import Checkpoint
from ..model.rope import rope_tables
from ..quantize.float_layers import stored_layer
from ..quantize.forward import LayerForward, LayerTensors, plain_linear, rms_norm
from .merged import MergedAdapter
from .prompts import Prompt

HEAD_ROWS: Final = 16384
"""Of the vocabulary at a time: a head in float32 can be larger than a layer."""


class Reference:
    """`advance` through every layer in order, then ask for `logits`. Prompts of L tokens; C hidden size."""

    def __init__(
        self, config: ModelConfig, checkpoint: Checkpoint, adapter: MergedAdapter, prompts: Sequence[Prompt]
    ) -> None:
        self._config, self._checkpoint, self._adapter = config, checkpoint, adapter
        self._starts = [prompt.start for prompt in prompts]
        self._tables = rope_tables(config.rope, config.head_dim, max(len(prompt.token_ids) for prompt in prompts))
        embedding = adapter.embedding(checkpoint.tensor(f"{EMBEDDING}.weight"))
        self._hidden = [F.embedding(torch.tensor([prompt.token_ids]), embedding).float() for prompt in prompts]

    def advance(self, layer: int) -> None:
        """All prompts through the next layer."""
        base = {name: tensor.float() for name, tensor in stored_layer(self._checkpoint, layer).items()}
        adapted, forward = self._adapted(layer, base), LayerForward(self._config, layer, self._tables)
        for number, (hidden, start) in enumerate(zip(self._hidden, self._starts, strict=True)):
            split = replace(forward, linear=partial(_linear_from, start, base)) if start else forward
            self._hidden[number] = split.apply(adapted, hidden)

    def outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """After the last layer, prompt after prompt: what predicts every token but each one's first, [R, C], and
        whether the adapter acts there, [R] bool."""
        hidden = torch.cat([hidden[0, :-1] for hidden in self._hidden])
        places = zip(self._starts, self._hidden, strict=True)
        return hidden, torch.cat([torch.arange(hidden.shape[1] - 1) >= start for start, hidden in places])

    def head(self) -> "ReferenceHead":
        norm = self._adapter.norm(0, "norm", self._checkpoint.tensor("model.norm.weight").float())
        name = next(name for name in (f"{HEAD}.weight", f"{EMBEDDING}.weight") if name in self._checkpoint)
        head = self._checkpoint.tensor(name)
        return ReferenceHead(norm, self._config.rms_norm_eps, head, *self._adapter.head(head))

    def _adapted(self, layer: int, base: LayerTensors) -> dict[str, torch.Tensor]:
        """The layer's tensors with the adapter in them."""
        tensors = dict(base)
        for name in [name.removesuffix(".weight") for name in base if name.endswith(".weight")]:
            kind, weight, bias = name.rpartition(".")[2], base[f"{name}.weight"], base.get(f"{name}.bias")
            if kind.endswith("norm"):
                tensors[f"{name}.weight"] = self._adapter.norm(layer, kind, weight)
                continue
            weight, bias = self._adapter.linear(layer, kind, weight, bias)
            tensors |= {f"{name}.weight": weight} | ({} if bias is None else {f"{name}.bias": bias})
        return tensors


class ReferenceHead:
    """The last norm and the output head."""

    def __init__(
        self,
        norm: torch.Tensor,
        eps: float,
        base: torch.Tensor,
        adapted: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        """norm [C] float32; heads [V, C] in any float dtype, the same object where no adapter changes it; bias [V] of
        the adapted one, float32."""
        self._norm, self._eps, self._base, self._adapted, self._bias = norm, eps, base, adapted, bias

    def logits(self, hidden: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        """hidden [R, C] float32 -> [R, V] float32; `active` [R] bool: where the adapter acts."""
        x = rms_norm(self._norm, hidden, self._eps)
        logits = _multiply(x, self._adapted)
        logits = logits if self._bias is None else logits + self._bias
        if self._adapted is self._base or bool(active.all()):
            return logits
        return torch.where(active[:, None], logits, _multiply(x, self._base))


def _linear_from(start: int, before: LayerTensors, tensors: LayerTensors, name: str, x: torch.Tensor) -> torch.Tensor:
    """An activated LoRA: up to `start` the tokens of x [S, L, in] read the base's weight."""
    return torch.cat([plain_linear(before, name, x[:, :start]), plain_linear(tensors, name, x[:, start:])], dim=1)


def _multiply(x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    return torch.cat([x @ rows.float().T for rows in torch.split(head, HEAD_ROWS)], dim=1)
