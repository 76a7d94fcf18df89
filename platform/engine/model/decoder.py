"""Decoder: one transformer for every supported family; its configuration decides what the layers hold."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from loraplex.quant.scheme import LinearMethod

from ..attention.backend import AttentionBackend
from ..batch import Batch
from .config import ModelConfig
from .layers import Attention, DecoderLayer, Mlp, Norm
from .linear import LoraLinear
from .loader import Checkpoint, linear_name
from .rope import rope_tables

MakeLinear = Callable[[int, tuple[int, ...]], LinearMethod]
"""(in_features, out_features of each part) -> an empty linear of the chosen scheme."""


@dataclass(slots=True)
class Decoder:
    embedding: torch.Tensor
    """[V, C], in the stored dtype."""
    layers: list[DecoderLayer]
    norm: Norm
    head: LinearMethod
    cos: torch.Tensor
    sin: torch.Tensor
    """[max_model_len, D / 2] float32."""

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [R, V] float32 of the batch's sample_rows; writes keys and values of all its tokens."""
        rotation = self.cos[batch.positions], self.sin[batch.positions]
        hidden = F.embedding(batch.token_ids, self.embedding).to(self.norm.weight.dtype)
        for layer in self.layers:
            hidden = layer.apply(hidden, rotation, batch)
        return self.head.apply(self.norm.apply(hidden[batch.sample_rows])).float()

    def weight_bytes(self) -> int:
        linears = [
            linear.method
            for layer in self.layers
            for linear in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down)
        ]
        return self.embedding.nbytes + self.head.weight_bytes() + sum(linear.weight_bytes() for linear in linears)


@dataclass(slots=True)
class DecoderLoader:
    """Builds a Decoder group by group: a group's tensors are read, packed and dropped before the next is read."""

    config: ModelConfig
    checkpoint: Checkpoint
    make_linear: MakeLinear
    stored_dtype: torch.dtype
    """What weights are rounded to before anything else."""
    compute_dtype: torch.dtype
    """Of activations and norms."""

    def load(self, backend: AttentionBackend, max_model_len: int) -> Decoder:
        """ValueError when the tensors do not fit the configuration."""
        self.checkpoint.verify(self.config)
        cos, sin = rope_tables(self.config.rope, self.config.head_dim, max_model_len)
        return Decoder(
            embedding=self._tensor("model.embed_tokens.weight").clone(),
            layers=[self._layer(layer, backend) for layer in range(self.config.num_layers)],
            norm=self._norm("model.norm"),
            head=self._head(),
            cos=cos,
            sin=sin,
        )

    def _layer(self, layer: int, backend: AttentionBackend) -> DecoderLayer:
        prefix = f"model.layers.{layer}"
        attention = Attention(
            layer=layer,
            head_dim=self.config.head_dim,
            qkv=self._linear(layer, "q_proj", "k_proj", "v_proj"),
            output=self._linear(layer, "o_proj"),
            query_norm=self._norm(f"{prefix}.self_attn.q_norm") if self.config.qk_norm else None,
            key_norm=self._norm(f"{prefix}.self_attn.k_norm") if self.config.qk_norm else None,
            backend=backend,
        )
        mlp = Mlp(self._linear(layer, "gate_proj", "up_proj"), self._linear(layer, "down_proj"))
        input_norm, mlp_norm = (self._norm(f"{prefix}.{name}_layernorm") for name in ("input", "post_attention"))
        return DecoderLayer(input_norm, attention, mlp_norm, mlp)

    def _linear(self, layer: int, *kinds: str) -> LoraLinear:
        shapes = self.config.linear_shapes()
        method = self.make_linear(shapes[kinds[0]][0], tuple(shapes[kind][1] for kind in kinds))
        for part, kind in enumerate(kinds):
            name = linear_name(layer, kind)
            bias = self._tensor(f"{name}.bias") if self.config.has_bias(kind) else None
            method.load(part, self._tensor(f"{name}.weight"), bias)
        method.finish()
        return LoraLinear(method, layer, kinds)

    def _head(self) -> LinearMethod:
        """A tied checkpoint that brings a head all the same is taken at its word, as transformers does."""
        name = "lm_head.weight" if "lm_head.weight" in self.checkpoint else "model.embed_tokens.weight"
        method = self.make_linear(self.config.hidden_size, (self.config.vocab_size,))
        method.load(0, self._tensor(name), None)
        method.finish()
        return method

    def _norm(self, name: str) -> Norm:
        return Norm(self._tensor(f"{name}.weight").to(self.compute_dtype, copy=True), self.config.rms_norm_eps)

    def _tensor(self, name: str) -> torch.Tensor:
        return self.checkpoint.tensor(name).to(self.stored_dtype)
