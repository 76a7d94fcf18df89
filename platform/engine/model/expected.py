"""Which tensors a checkpoint of a configuration must have: names, dtypes, shapes."""

from typing import Final, Protocol

from loraplex.quant.config.layouts import Layout
from loraplex.quant.formats.read import tensor_specs
from loraplex.quant.formats.specification import FLOATS, IGNORED, Linear, TensorSpec, tensor

from .config import ModelConfig
from .description.feed_forward import ExpertsSpec
from .description.spec import AttentionSpec, DeltaNetSpec, EmbeddingSpec, LayerSpec, LinearSpec, ModelSpec, NormSpec

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
    specs = _embedding_tensors(config, config.spec.embedding) | _norm_tensors("", config.spec.norm)
    specs |= _head_tensors(config, stored) | _token_inputs_tensors(config, stored)
    for number, layer in enumerate(config.spec.layers):
        specs |= _layer_tensors(config, stored, number, layer)
    return specs


def layer_path(spec: ModelSpec, layer: int | None) -> str:
    """What the names of the layer's tensors begin with; None: of what the model has once, whose paths are whole."""
    return "" if layer is None else f"{spec.layers_path}.{layer}."


def layer_linear(spec: ModelSpec, layer: int | None, linear: LinearSpec) -> Linear:
    return Linear(layer_path(spec, layer) + linear.path, linear.outputs, linear.inputs)


def head_linear(spec: ModelSpec) -> Linear:
    assert spec.head is not None
    return Linear(spec.head.path, spec.embedding.vocab_size, spec.embedding.size)


def names_of(spec: ModelSpec, name: str) -> tuple[str, ...]:
    """What checkpoints may call the module `name`; our name first."""
    return name, *(start + name.removeprefix(ours) for start, ours in spec.renamed.items() if name.startswith(ours))


def layout_of(config: ModelConfig, stored: StoredTensors, name: str) -> Layout | None:
    """How the linear `name` is quantized; None for floats."""
    quantization = config.quantization
    suffixes = stored.suffixes(name) - {"bias"}
    if quantization is None:
        return None
    names = names_of(config.spec, name)
    if not suffixes or not quantization.is_told_by_file(*names):
        return quantization.layout_of(*names)
    is_float = "weight" in suffixes and stored.dtype(f"{name}.weight") in FLOATS
    return None if is_float else quantization.layout_if_stored(*names)


def linear_tensors(config: ModelConfig, stored: StoredTensors, linear: Linear) -> dict[str, TensorSpec]:
    """Suffix of the name -> what the weight's tensors must be."""
    layout = layout_of(config, stored, linear.name)
    if layout is None:
        return {"weight": tensor(FLOATS, (linear.out_features, linear.in_features))}
    return tensor_specs(layout, linear, stored.suffixes(linear.name))


def _head_tensors(config: ModelConfig, stored: StoredTensors) -> dict[str, TensorSpec]:
    classifier = _classifier_tensors(config)
    head = config.spec.head
    if config.classifies or head is None:
        return classifier
    projection = _projection_tensors(head.projection)
    if (head.is_tied or config.task == "embed") and not stored.suffixes(head.path):
        return projection
    linear = head_linear(config.spec)
    specs = linear_tensors(config, stored, linear)
    if head.has_bias:
        specs["bias"] = tensor(FLOATS, (linear.out_features,))
    return projection | {f"{head.path}.{suffix}": spec for suffix, spec in specs.items()}


def _classifier_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """What comes before the head itself may be there for adapters that bring one."""
    spec, classes = config.spec.classifier, len(config.labels)
    classifies = config.classifies
    return {
        name: tensor(
            FLOATS,
            tuple([size or (classes if at == 0 else config.hidden_size) for at, size in enumerate(shape)]),
            required=classifies,
        )
        for name, shape in spec.tensors().items()
        if classifies or not spec.owns(name)
    }


def _embedding_tensors(config: ModelConfig, embedding: EmbeddingSpec) -> dict[str, TensorSpec]:
    specs = {f"{embedding.path}.weight": tensor(FLOATS, (embedding.vocab_size, embedding.size))}
    if embedding.positions is not None:
        rows = config.max_position_embeddings + embedding.position_offset
        specs[f"{embedding.positions}.weight"] = tensor(FLOATS, (rows, config.hidden_size))
    if embedding.segments is not None:
        specs[f"{embedding.segments}.weight"] = tensor(FLOATS, (embedding.num_segments, config.hidden_size))
    return specs | _projection_tensors(embedding.projection) | _norm_tensors("", embedding.norm)


def _token_inputs_tensors(config: ModelConfig, stored: StoredTensors) -> dict[str, TensorSpec]:
    own = config.spec.token_inputs
    if own is None:
        return {}
    projection = _all_linear_tensors(config, stored, None, own.projection)
    return _embedding_tensors(config, own.rows) | _norm_tensors("", own.norm) | projection


def _projection_tensors(linear: LinearSpec | None) -> dict[str, TensorSpec]:
    return {} if linear is None else {f"{linear.path}.weight": tensor(FLOATS, (linear.outputs, linear.inputs))}


def _norm_tensors(prefix: str, norm: NormSpec | None) -> dict[str, TensorSpec]:
    if norm is None:
        return {}
    parts = ("weight", "bias") if norm.has_bias else ("weight",)
    return {f"{prefix}{norm.path}.{part}": tensor(FLOATS, (norm.size,)) for part in parts}


def _layer_tensors(config: ModelConfig, stored: StoredTensors, number: int, layer: LayerSpec) -> dict[str, TensorSpec]:
    prefix = layer_path(config.spec, number)
    specs: dict[str, TensorSpec] = {}
    for norm in layer.norms():
        specs |= _norm_tensors(prefix, norm)
    for spec in (*layer.linears(), *layer.expert_linears()):
        specs |= _all_linear_tensors(config, stored, number, spec)
    if isinstance(layer.feed_forward, ExpertsSpec):
        specs |= {prefix + name: tensor(FLOATS, shape) for name, shape in layer.feed_forward.tensors().items()}
    if isinstance(layer.mixer, DeltaNetSpec):
        specs |= {prefix + name: tensor(FLOATS, shape) for name, shape in layer.mixer.tensors().items()}
    if layer.scale is not None:
        specs[prefix + layer.scale] = tensor(FLOATS, (1,))
    if isinstance(layer.mixer, AttentionSpec):
        if layer.mixer.sinks is not None:
            specs[prefix + layer.mixer.sinks] = tensor(FLOATS, (layer.mixer.num_heads,))
        if config.quantization is not None:
            parent = layer.mixer.output.path.rpartition(".")[0]
            specs |= {f"{prefix}{parent}.{scale}": IGNORED for scale in CACHE_SCALES}
    return specs


def _all_linear_tensors(
    config: ModelConfig, stored: StoredTensors, layer: int | None, spec: LinearSpec
) -> dict[str, TensorSpec]:
    linear = layer_linear(config.spec, layer, spec)
    own = _linear_tensors(config, stored, linear, spec) | _bias(config, spec)
    return {f"{linear.name}.{suffix}": found for suffix, found in own.items()}


def _linear_tensors(
    config: ModelConfig, stored: StoredTensors, linear: Linear, spec: LinearSpec
) -> dict[str, TensorSpec]:
    if spec.is_transposed and layout_of(config, stored, linear.name) is None:
        return {"weight": tensor(FLOATS, (linear.in_features, linear.out_features))}
    return linear_tensors(config, stored, linear)


def _bias(config: ModelConfig, linear: LinearSpec) -> dict[str, TensorSpec]:
    """Some tools write a bias of zeros for every quantized linear."""
    if not linear.has_bias and config.quantization is None:
        return {}
    return {"bias": tensor(FLOATS, (linear.outputs,), required=linear.has_bias)}
