"""Reference: the unquantized model with the adapter in its weights, on whole prompts, in float32, a layer at a time.

It shares nothing with the served path but configurations, rotary tables and the names of tensors.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from ..model.config import ModelConfig
from ..model.loader import Checkpoint
from ..quantize.ends import End, embed_tokens
from ..quantize.float_layers import stored_layer
from ..quantize.forward import LayerTensors, layer_forward, plain_linear
from .merged import MergedAdapter
from .prompts import Prompt

HEAD_ROWS: Final = 16384
"""Of the vocabulary at a time: a head in float32 can be larger than a layer."""
CPU: Final = torch.device("cpu")


class Reference:
    """`advance` through every layer in order, then ask for `logits`. Prompts of L tokens; C hidden size."""

    def __init__(
        self, config: ModelConfig, checkpoint: Checkpoint, adapter: MergedAdapter, prompts: Sequence[Prompt]
    ) -> None:
        self._config, self._checkpoint, self._adapter = config, checkpoint, adapter
        self._starts = [prompt.start for prompt in prompts]
        self._longest = max(len(prompt.token_ids) for prompt in prompts)
        embedding = adapter.embedding(checkpoint.tensor(f"{config.spec.embedding.path}.weight"))
        embed = partial(embed_tokens, config.spec, checkpoint, embedding)
        self._hidden = [embed(torch.tensor([prompt.token_ids])) for prompt in prompts]

    def advance(self, layer: int) -> None:
        """All prompts through the next layer."""
        base = {name: tensor.float() for name, tensor in stored_layer(self._checkpoint, layer).items()}
        adapted, forward = self._adapted(layer, base), layer_forward(self._config.spec.layers[layer], self._longest)
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
        spec = self._config.spec
        end = End.read(spec, self._checkpoint, CPU)
        if spec.norm is not None:
            weight = f"{spec.norm.path}.weight"
            end.norm[weight] = self._adapter.norm(0, spec.norm.kind, end.norm[weight])
        names = (f"{spec.head.path}.weight", f"{spec.embedding.path}.weight")
        head = self._checkpoint.tensor(next(name for name in names if name in self._checkpoint))
        return ReferenceHead(end, head, *self._adapter.head(head))

    def _adapted(self, layer: int, base: LayerTensors) -> dict[str, torch.Tensor]:
        """The layer's tensors with the adapter in them."""
        tensors = dict(base)
        norms = {norm.path for norm in self._config.spec.layers[layer].norms()}
        for name in [name.removesuffix(".weight") for name in base if name.endswith(".weight")]:
            kind, weight, bias = name.rpartition(".")[2], base[f"{name}.weight"], base.get(f"{name}.bias")
            if name in norms:
                tensors[f"{name}.weight"] = self._adapter.norm(layer, kind, weight)
                continue
            weight, bias = self._adapter.linear(layer, kind, weight, bias)
            tensors |= {f"{name}.weight": weight} | ({} if bias is None else {f"{name}.bias": bias})
        return tensors


class ReferenceHead:
    """The last norm and the output head."""

    def __init__(
        self,
        end: End,
        base: torch.Tensor,
        adapted: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        """heads [V, C] in any float dtype, the same object where no adapter changes it; bias [V] of
        the adapted one, float32."""
        self._end, self._base, self._adapted, self._bias = end, base, adapted, bias

    def logits(self, hidden: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        """hidden [R, C] float32 -> [R, V] float32; `active` [R] bool: where the adapter acts."""
        x = self._end.rows(hidden)
        logits = _multiply(x, self._adapted)
        logits = logits if self._bias is None else logits + self._bias
        if self._adapted is self._base or bool(active.all()):
            return self._end.logits(logits)
        return self._end.logits(torch.where(active[:, None], logits, _multiply(x, self._base)))


def _linear_from(start: int, before: LayerTensors, tensors: LayerTensors, name: str, x: torch.Tensor) -> torch.Tensor:
    """An activated LoRA: up to `start` the tokens of x [S, L, in] read the base's weight."""
    return torch.cat([plain_linear(before, name, x[:, :start]), plain_linear(tensors, name, x[:, start:])], dim=1)


def _multiply(x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    return torch.cat([x @ rows.float().T for rows in torch.split(head, HEAD_ROWS)], dim=1)
