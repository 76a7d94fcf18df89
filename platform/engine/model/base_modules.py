"""DecoderModules: the base's modules for what adapters say relative to them, whatever way their weights are stored."""

import torch

from loraplex.lora.files.manifest import EMBEDDING, HEAD
from loraplex.lora.files.values import Bits
from loraplex.lora.residency.page_copier import bits_of
from loraplex.lora.residency.pages import DTYPE_NAMES
from loraplex.quant.linears.scheme import LinearMethod

from .config import ModelConfig
from .decoder import Decoder
from .layers import Attention, Norm
from .linear import LoraLinear
from .loader import Checkpoint


class DecoderModules:
    """lora.finish.BaseModules of the layers that the decoder has: a kind's part of the group it is multiplied in."""

    def __init__(self, decoder: Decoder, checkpoint: Checkpoint, config: ModelConfig) -> None:
        self._decoder = decoder
        self._checkpoint = checkpoint
        self._config = config
        self._linears: dict[tuple[int, str], tuple[LoraLinear, slice]] = {}
        self._norms: dict[tuple[int, str], torch.Tensor] = {}
        self._norm_biases: dict[tuple[int, str], torch.Tensor] = {}
        if decoder.norm is not None:
            self._add_norms(0, [decoder.norm])
        for linear in decoder.projections():
            self._add(linear)
        for layer in decoder.layers:
            for linear in layer.all_linears():
                self._add(linear)
            self._add_norms(layer.index, layer.norms())
            if isinstance(layer.mixer, Attention):
                rotary = layer.mixer.rotary
                heads = zip(rotary.norm_kinds, (rotary.query_norm, rotary.key_norm), strict=True)
                self._norms |= {(layer.index, kind): norm for kind, norm in heads if norm is not None}

    def columns(self, layer: int, kind: str, first: int, last: int) -> torch.Tensor:
        if kind == EMBEDDING:
            return self._decoder.embedding.table[first:last].float()
        if kind == HEAD:
            return self._head_method().columns(first, last)
        linear, part = self._linears[layer, kind]
        return linear.method.columns(first, last)[:, part]

    def bias(self, layer: int, kind: str) -> torch.Tensor:
        if kind == EMBEDDING:
            return torch.zeros(self._decoder.embedding.table.shape[1], device=self._decoder.embedding.table.device)
        if kind == HEAD:
            return self._head_method().bias()
        if (layer, kind) in self._norm_biases:
            return self._norm_biases[layer, kind].float()
        linear, part = self._linears[layer, kind]
        return linear.method.bias()[part]

    def norm(self, layer: int, kind: str) -> torch.Tensor:
        return self._norms[layer, kind].float()

    def stored_rows(self, kind: str) -> tuple[Bits, str]:
        """The head as in the checkpoint: what it is served as may be in an order of its own. So the embedding too where
        it is on a device: its way back would be one of the steps', which wait behind it."""
        rows = self._embedding() if kind == EMBEDDING else self._head()
        return bits_of(rows), DTYPE_NAMES[rows.dtype]

    def _embedding(self) -> torch.Tensor:
        rows = self._decoder.embedding.table
        return (
            rows if rows.device.type == "cpu" else self._checkpoint.tensor(f"{self._config.spec.embedding.path}.weight")
        )

    def _head(self) -> torch.Tensor:
        weight = self._checkpoint.head(self._config)
        return weight if isinstance(weight, torch.Tensor) else weight.dequantized()

    def _head_method(self) -> LinearMethod:
        assert self._decoder.head is not None
        return self._decoder.head.method

    def _add(self, linear: LoraLinear) -> None:
        first = 0
        for kind, width in zip(linear.kinds, linear.method.out_features, strict=True):
            self._linears[linear.layer, kind] = linear, slice(first, first := first + width)

    def _add_norms(self, layer: int, norms: list[Norm]) -> None:
        self._norms |= {(layer, norm.kind): norm.weight for norm in norms}
        self._norm_biases |= {(layer, norm.kind): norm.bias for norm in norms if norm.bias is not None}
