"""Which tensors a checkpoint of a configuration must have: names, dtypes, shapes."""

from typing import Final, Protocol

from loraplex.quant.config.layouts import Layout
from loraplex.quant.formats.read import tensor_specs
from loraplex.quant.formats.specification import FLOATS, IGNORED, Linear, TensorSpec, tensor

from .config import ModelConfig

EMBEDDING: Final = "model.embed_tokens"
HEAD: Final = "lm_head"
SCORE: Final = "score"
"""The head of a model that classifies."""
CACHE_SCALES: Final = (*(f"{what}_{value}" for what in "qkv" for value in ("scale", "zero_point")), "kv_scale")
"""What quantized checkpoints may bring for the KV cache of a layer; static_scales.py reads what a cache of 8 bits can
use, and says what it cannot."""


class StoredTensors(Protocol):
    """The headers of a checkpoint's files."""

    def suffixes(self, prefix: str) -> frozenset[str]:
        """Names without `prefix` and a dot of the tensors right under it."""

    def dtype(self, name: str) -> str:
        """As safetensors calls it."""


def expected_tensors(config: ModelConfig, stored: StoredTensors) -> dict[str, TensorSpec]:
    """What every tensor of a checkpoint of this configuration must be. ValueError for a quantization that does not
    divide the linears."""
    hidden = config.hidden_size
    specs = {
        f"{EMBEDDING}.weight": tensor(FLOATS, (config.vocab_size, hidden)),
        "model.norm.weight": tensor(FLOATS, (hidden,)),
        **_head_tensors(config, stored),
    }
    for layer in range(config.num_layers):
        specs |= _layer_tensors(config, stored, layer)
    return specs


def layer_linear(config: ModelConfig, layer: int, kind: str) -> Linear:
    inputs, outputs = config.linear_shapes()[kind]
    return Linear(f"model.layers.{layer}.{'self_attn' if kind[0] in 'qkvo' else 'mlp'}.{kind}", outputs, inputs)


def head_linear(config: ModelConfig) -> Linear:
    return Linear(HEAD, config.vocab_size, config.hidden_size)


def layout_of(config: ModelConfig, stored: StoredTensors, name: str) -> Layout | None:
    """How the linear `name` is quantized; None for floats."""
    quantization = config.quantization
    suffixes = stored.suffixes(name) - {"bias"}
    if quantization is None:
        return None
    if not suffixes or not quantization.is_told_by_file(name):
        return quantization.layout_of(name)
    is_float = "weight" in suffixes and stored.dtype(f"{name}.weight") in FLOATS
    return None if is_float else quantization.layout_if_stored(name)


def linear_tensors(config: ModelConfig, stored: StoredTensors, linear: Linear) -> dict[str, TensorSpec]:
    """Suffix of the name -> what the weight's tensors must be."""
    layout = layout_of(config, stored, linear.name)
    if layout is None:
        return {"weight": tensor(FLOATS, (linear.out_features, linear.in_features))}
    return tensor_specs(layout, linear, stored.suffixes(linear.name))


def _head_tensors(config: ModelConfig, stored: StoredTensors) -> dict[str, TensorSpec]:
    if config.task == "classify":
        return {f"{SCORE}.weight": tensor(FLOATS, (len(config.labels), config.hidden_size))}
    if (config.tie_word_embeddings or config.task == "embed") and not stored.suffixes(HEAD):
        return {}
    specs = linear_tensors(config, stored, head_linear(config))
    return {f"{HEAD}.{suffix}": spec for suffix, spec in specs.items()}


def _layer_tensors(config: ModelConfig, stored: StoredTensors, layer: int) -> dict[str, TensorSpec]:
    prefix = f"model.layers.{layer}."
    norms = ("input_layernorm", "post_attention_layernorm")
    specs = {f"{prefix}{norm}.weight": tensor(FLOATS, (config.hidden_size,)) for norm in norms}
    for kind in config.linear_shapes():
        linear = layer_linear(config, layer, kind)
        own = linear_tensors(config, stored, linear) | _bias(config, kind, linear)
        specs |= {f"{linear.name}.{suffix}": spec for suffix, spec in own.items()}
    if config.qk_norm:
        specs |= {f"{prefix}self_attn.{part}_norm.weight": tensor(FLOATS, (config.head_dim,)) for part in "qk"}
    if config.quantization is not None:
        specs |= {f"{prefix}self_attn.{scale}": IGNORED for scale in CACHE_SCALES}
    return specs


def _bias(config: ModelConfig, kind: str, linear: Linear) -> dict[str, TensorSpec]:
    """Some tools write a bias of zeros for every quantized linear."""
    required = config.has_bias(kind)
    if not required and config.quantization is None:
        return {}
    return {"bias": tensor(FLOATS, (linear.out_features,), required=required)}
