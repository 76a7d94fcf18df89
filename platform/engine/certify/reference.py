"""Reference: the unquantized model with the adapter in its weights, on whole prompts, in float32, a layer at a time.

It shares nothing with the served path but configurations, rotary tables and the names of tensors.
"""

from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F

from ..model.config import ModelConfig
from ..model.expected import EMBEDDING, HEAD
from ..model.loader import Checkpoint
from ..model.rope import rope_tables
from ..quantize.float_layers import stored_layer
from ..quantize.forward import LayerForward, rms_norm
from .merged import MergedAdapter

HEAD_ROWS: Final = 16384
"""Of the vocabulary at a time: a head in float32 can be larger than a layer."""


class Reference:
    """`advance` through every layer in order, then ask for `logits`. Prompts of L tokens; C hidden size."""

    def __init__(
        self, config: ModelConfig, checkpoint: Checkpoint, adapter: MergedAdapter, prompts: Sequence[Sequence[int]]
    ) -> None:
        self._config, self._checkpoint, self._adapter = config, checkpoint, adapter
        self._tables = rope_tables(config.rope, config.head_dim, max(map(len, prompts)))
        embedding = adapter.embedding(checkpoint.tensor(f"{EMBEDDING}.weight"))
        self._hidden = [F.embedding(torch.tensor([prompt]), embedding).float() for prompt in prompts]

    def advance(self, layer: int) -> None:
        """All prompts through the next layer."""
        forward, tensors = LayerForward(self._config, layer, self._tables), self._adapted_layer(layer)
        self._hidden = [forward.apply(tensors, hidden) for hidden in self._hidden]

    def hidden(self, prompt: int) -> torch.Tensor:
        """After the last layer, [L - 1, C]: what predicts the tokens of this prompt but its first."""
        return self._hidden[prompt][0, :-1]

    def head(self) -> "ReferenceHead":
        norm = self._adapter.norm(0, "norm", self._checkpoint.tensor("model.norm.weight").float())
        name = next(name for name in (f"{HEAD}.weight", f"{EMBEDDING}.weight") if name in self._checkpoint)
        return ReferenceHead(norm, self._config.rms_norm_eps, *self._adapter.head(self._checkpoint.tensor(name)))

    def _adapted_layer(self, layer: int) -> dict[str, torch.Tensor]:
        """The layer's tensors in float32, by name within the layer."""
        tensors = {name: tensor.float() for name, tensor in stored_layer(self._checkpoint, layer).items()}
        for name in [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]:
            kind = name.rpartition(".")[2]
            if kind.endswith("norm"):
                tensors[f"{name}.weight"] = self._adapter.norm(layer, kind, tensors[f"{name}.weight"])
                continue
            weight, bias = self._adapter.linear(layer, kind, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))
            tensors |= {f"{name}.weight": weight} if bias is None else {f"{name}.weight": weight, f"{name}.bias": bias}
        return tensors


class ReferenceHead:
    """The last norm and the output head."""

    def __init__(self, norm: torch.Tensor, eps: float, head: torch.Tensor, bias: torch.Tensor | None) -> None:
        """norm [C] float32; head [V, C] in any float dtype; bias [V] float32."""
        self._norm, self._eps, self._head, self._bias = norm, eps, head, bias

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [R, C] float32 -> [R, V] float32."""
        x = rms_norm(self._norm, hidden, self._eps)
        logits = torch.cat([x @ rows.float().T for rows in torch.split(self._head, HEAD_ROWS)], dim=1)
        return logits if self._bias is None else logits + self._bias
