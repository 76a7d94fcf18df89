"""DecoderModules: the base's modules for what adapters say relative to them, whatever way their weights are stored."""

import torch

from loraplex.lora.files.manifest import EMBEDDING, HEAD
from loraplex.lora.files.values import Bits
from loraplex.lora.residency.page_copier import bits_of
from loraplex.lora.residency.pages import DTYPE_NAMES

from .config import ModelConfig
from .decoder import Decoder
from .expected import EMBEDDING as EMBEDDING_NAME
from .layers import Norm
from .linear import LoraLinear
from .loader import Checkpoint


class DecoderModules:
    """lora.finish.BaseModules of the layers that the decoder has: a kind's part of the group it is multiplied in."""

    def __init__(self, decoder: Decoder, checkpoint: Checkpoint, config: ModelConfig) -> None:
        self._decoder = decoder
        self._checkpoint = checkpoint
        self._config = config
        self._layers = {layer.attention.layer: layer for layer in decoder.layers}
        self._linears: dict[tuple[int, str], tuple[LoraLinear, slice]] = {}
        for layer in decoder.layers:
            for linear in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down):
                self._add(linear)

    def columns(self, layer: int, kind: str, first: int, last: int) -> torch.Tensor:
        if kind == EMBEDDING:
            return self._decoder.embedding[first:last].float()
        if kind == HEAD:
            return self._decoder.head.columns(first, last)
        linear, part = self._linears[layer, kind]
        return linear.method.columns(first, last)[:, part]

    def bias(self, layer: int, kind: str) -> torch.Tensor:
        if kind == EMBEDDING:
            return torch.zeros(self._decoder.embedding.shape[1], device=self._decoder.embedding.device)
        if kind == HEAD:
            return self._decoder.head.bias()
        linear, part = self._linears[layer, kind]
        return linear.method.bias()[part]

    def norm(self, layer: int, kind: str) -> torch.Tensor:
        at = self._layers[layer]
        norms: dict[str, Norm | torch.Tensor | None] = {
            "norm": self._decoder.norm,
            "input_layernorm": at.input_norm,
            "post_attention_layernorm": at.mlp_norm,
            "q_norm": at.attention.rotary.query_norm,
            "k_norm": at.attention.rotary.key_norm,
        }
        norm = norms[kind]
        assert norm is not None
        return norm.weight.float() if isinstance(norm, Norm) else norm

    def stored_rows(self, kind: str) -> tuple[Bits, str]:
        """The head as in the checkpoint: what it is served as may be in an order of its own. So the embedding too where
        it is on a device: its way back would be one of the steps', which wait behind it."""
        rows = self._embedding() if kind == EMBEDDING else self._head()
        return bits_of(rows), DTYPE_NAMES[rows.dtype]

    def _embedding(self) -> torch.Tensor:
        rows = self._decoder.embedding
        return rows if rows.device.type == "cpu" else self._checkpoint.tensor(f"{EMBEDDING_NAME}.weight")

    def _head(self) -> torch.Tensor:
        weight = self._checkpoint.head(self._config)
        return weight if isinstance(weight, torch.Tensor) else weight.dequantized()

    def _add(self, linear: LoraLinear) -> None:
        first = 0
        for kind, width in zip(linear.kinds, linear.method.out_features, strict=True):
            self._linears[linear.layer, kind] = linear, slice(first, first := first + width)
