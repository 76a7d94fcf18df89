"""DecoderLoader: a Decoder from the tensors of a checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch

from loraplex.quant.formats.specification import Linear
from loraplex.quant.linears.scaled_input import ScaledInputLinear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.schemes.selector import SchemeSelector
from loraplex.quant.weights.finite import finite_floats
from loraplex.quant.weights.online import OnlineQuantization
from loraplex.quant.weights.weights import Weight

from ..attention.backend import Rotary
from .config import ModelConfig
from .decoder import Decoder
from .expected import EMBEDDING, HEAD, layer_linear
from .layers import Attention, DecoderLayer, Mlp, Norm
from .linear import LoraLinear
from .loader import Checkpoint
from .operations.operations import Operations, cpu_operations
from .rope import RopeTables, rope_tables
from .unfold import FoldedScales, scaled_rows

CPU: Final = torch.device("cpu")


@dataclass(slots=True)
class DecoderLoader:
    """Builds a Decoder group by group: a group's tensors are read, packed and dropped before the next is read."""

    config: ModelConfig
    checkpoint: Checkpoint
    scheme: SchemeSelector
    stored_dtype: torch.dtype
    """What float weights are rounded to before anything else."""
    online: OnlineQuantization = field(default_factory=OnlineQuantization)
    """What is done to them then."""
    linears: Callable[[str, Callable[[], LinearMethod]], LinearMethod] = lambda name, make: make()
    """(name, what makes it) -> each finished linear; it may come from elsewhere, if it is the same."""
    device: torch.device = CPU
    """Of all that is no linear; those know their own."""
    operations: Operations = field(default_factory=cpu_operations)
    folded: FoldedScales = field(init=False)

    def __post_init__(self) -> None:
        self.folded = FoldedScales(self.checkpoint.folder, self.config)

    def load(self, max_model_len: int) -> Decoder:
        """ValueError when the tensors do not fit the configuration."""
        decoder = self.load_ends()
        cos, sin = rope_tables(self.config.rope, self.config.head_dim, max_model_len)
        tables = cos.to(self.device), sin.to(self.device)
        decoder.layers = [self.load_layer(layer, tables) for layer in range(self.config.num_layers)]
        return decoder

    def load_ends(self) -> Decoder:
        """All but the layers. ValueError when the tensors, those of the layers too, do not fit the configuration."""
        self.checkpoint.verify(self.config)
        head = self.linears("head", self._head)  # first: while it is packed, it can take more memory than a layer
        embedding = self._tensor(f"{EMBEDDING}.weight", copy=True).to(self.device)
        return Decoder(embedding, layers=[], norm=self._norm("model.norm"), head=head, operations=self.operations)

    def load_layer(self, layer: int, tables: RopeTables) -> DecoderLayer:
        attention = Attention(
            layer=layer,
            qkv=self._linear(layer, "q_proj", "k_proj", "v_proj"),
            output=self._linear(layer, "o_proj"),
            rotary=self._rotary(layer, tables),
        )
        gate_up, down = self._linear(layer, "gate_proj", "up_proj"), self._linear(layer, "down_proj")
        mlp = Mlp(gate_up, down, self.operations)
        names = (f"model.layers.{layer}.{place}_layernorm" for place in ("input", "post_attention"))
        input_norm, mlp_norm = (self._norm(name, self.folded.of_norm(layer, name.rpartition(".")[2])) for name in names)
        return DecoderLayer(input_norm, attention, mlp_norm, mlp)

    def _rotary(self, layer: int, tables: RopeTables) -> Rotary:
        if not self.config.qk_norm:
            return Rotary(*tables)
        names = (f"model.layers.{layer}.self_attn.{part}_norm.weight" for part in "qk")
        query_norm, key_norm = (self._tensor(name).float().to(self.device) for name in names)
        return Rotary(*tables, query_norm, key_norm, self.config.rms_norm_eps)

    def _linear(self, layer: int, *kinds: str) -> LoraLinear:
        method = self.linears(f"{layer}.{kinds[0]}", lambda: self._packed(layer, kinds))
        return LoraLinear(method, layer, kinds, self.operations)

    def _packed(self, layer: int, kinds: tuple[str, ...]) -> LinearMethod:
        linears = [layer_linear(self.config, layer, kind) for kind in kinds]
        weights = [self._weight(linear) for linear in linears]
        method, scales = self.scheme.create_for(weights), self.folded.of_input(layer, kinds)
        if scales is not None:
            method = ScaledInputLinear(method, scales.to(self.device))
        for part, (kind, linear) in enumerate(zip(kinds, linears, strict=True)):
            outputs, bias = self.folded.of_output(layer, kind), self._bias(kind, linear)
            if outputs is not None:
                weights[part], bias = scaled_rows(weights[part], outputs), None if bias is None else bias * outputs
            method.load(part, weights[part], bias)
        method.finish()
        return method

    def _weight(self, linear: Linear) -> Weight:
        name = f"{linear.name}.weight"
        return self.online.linear(self._stored(name, self.checkpoint.weight(self.config, linear)), name)

    def _bias(self, kind: str, linear: Linear) -> torch.Tensor | None:
        name = f"{linear.name}.bias"
        if self.config.has_bias(kind):
            return self._tensor(name)
        if name in self.checkpoint and bool(self.checkpoint.tensor(name).any()):
            raise ValueError(
                f"{name} is not zero, and a {self.config.architecture} of this config.json has no such bias"
            )
        return None

    def _head(self) -> LinearMethod:
        name = f"{HEAD if self.checkpoint.suffixes(HEAD) else EMBEDDING}.weight"
        weight = self.online.head_weight(self._stored(name, self.checkpoint.head(self.config)), name)
        method = self.scheme.create_for([weight])
        method.load(0, weight, None)
        method.finish()
        return method

    def _stored(self, name: str, weight: Weight) -> Weight:
        return finite_floats(name, weight, self.stored_dtype) if isinstance(weight, torch.Tensor) else weight

    def _norm(self, name: str, scales: torch.Tensor | None = None) -> Norm:
        weight = self._tensor(f"{name}.weight").to(self.scheme.compute_dtype, copy=True)
        weight = weight if scales is None else (weight * scales).to(weight.dtype)
        return Norm(weight.to(self.device), self.config.rms_norm_eps, self.operations)

    def _tensor(self, name: str, copy: bool = False) -> torch.Tensor:
        return finite_floats(name, self.checkpoint.tensor(name), self.stored_dtype, copy)
