"""DecoderLinears: the base's linears for what adapters say relative to them, whatever way their weights are stored."""

import torch

from .model.decoder import Decoder
from .model.linear import LoraLinear


class DecoderLinears:
    """lora.finish.BaseLinears: a kind's part of the group that it is multiplied in."""

    def __init__(self, decoder: Decoder) -> None:
        self._linears: dict[tuple[int, str], tuple[LoraLinear, slice]] = {}
        for layer in decoder.layers:
            for linear in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down):
                self._add(linear)

    def columns(self, layer: int, kind: str, first: int, last: int) -> torch.Tensor:
        linear, part = self._linears[layer, kind]
        return linear.method.columns(first, last)[:, part]

    def bias(self, layer: int, kind: str) -> torch.Tensor:
        linear, part = self._linears[layer, kind]
        return linear.method.bias()[part]

    def _add(self, linear: LoraLinear) -> None:
        first = 0
        for kind, width in zip(linear.kinds, linear.method.out_features, strict=True):
            self._linears[linear.layer, kind] = linear, slice(first, first := first + width)
