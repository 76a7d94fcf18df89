"""DecoderLoader: a Decoder from the tensors of a checkpoint."""

from collections.abc import Callable, Sequence
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
from ..delta_net.backend import DeltaWeights
from .config import ModelConfig
from .decoder import Decoder, Embedding, Head, TokenInputs
from .description.feed_forward import BranchNormsSpec, ExpertsSpec
from .description.modules import module_table
from .description.spec import (
    AttentionSpec,
    DeltaNetSpec,
    FeedForwardSpec,
    HeadSpec,
    LinearSpec,
    MixerSpec,
    NormSpec,
    RopeConfig,
    TokenInputSpec,
    TokenInputsSpec,
)
from .expected import layer_linear, layer_path
from .experts.layer import BranchNorms, Experts
from .layers import Attention, DecoderLayer, DeltaNet, FeedForward, Mixer, Norm, TokenInput, TokenWise
from .linear import LoraLinear
from .loader import Checkpoint
from .operations.operations import Operations, cpu_operations
from .rope import RopeTables, query_scales, rope_tables
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
    _tables: dict[tuple[str, int], RopeTables] = field(init=False, default_factory=dict)
    """Layers that turn alike share them."""
    _kinds: dict[tuple[int | None, str], str] = field(init=False)
    """(layer, path within the layer) -> what adapters call the module; the last norm is at (None, its path)."""

    def __post_init__(self) -> None:
        self._kinds = module_table(self.config.spec).kinds
        self.folded = FoldedScales(self.checkpoint.folder, self.config)

    def load(self, max_model_len: int) -> Decoder:
        """ValueError when the tensors do not fit the configuration."""
        decoder = self.load_ends()
        decoder.layers = [self.load_layer(layer, max_model_len) for layer in range(self.config.num_layers)]
        return decoder

    def load_ends(self) -> Decoder:
        """All but the layers. ValueError when the tensors, those of the layers too, do not fit the configuration."""
        self.checkpoint.verify(self.config)
        spec = self.config.spec
        head = None if spec.head is None else self._head(spec.head)  # first: as it is packed, it can take much memory
        return Decoder(
            self._embedding(),
            layers=[],
            norm=self._norm(spec.norm),
            head=head,
            operations=self.operations,
            token_inputs=self._token_inputs(spec.token_inputs),
        )

    def load_layer(self, layer: int, max_model_len: int) -> DecoderLayer:
        spec = self.config.spec.layers[layer]
        mixer = self._mixer(layer, spec.mixer, max_model_len)
        feed_forward = self._token_wise(layer, spec.feed_forward)
        return DecoderLayer(
            index=layer,
            mixer=mixer,
            feed_forward=feed_forward,
            mixer_norm=self._norm(spec.mixer_norm, layer),
            feed_forward_norm=self._norm(spec.feed_forward_norm, layer),
            mixer_output_norm=self._norm(spec.mixer_output_norm, layer),
            feed_forward_output_norm=self._norm(spec.feed_forward_output_norm, layer),
            norms_follow_sum=spec.norms_follow_sum,
            residual_scale=spec.residual_scale,
            token_input=self._token_input(layer, spec.token_input),
            scale=None if spec.scale is None else self._in_stream(layer_path(self.config.spec, layer) + spec.scale),
        )

    def _token_input(self, layer: int, spec: TokenInputSpec | None) -> TokenInput | None:
        if spec is None:
            return None
        gate, output = self._linear(layer, (spec.gate,)), self._linear(layer, (spec.output,))
        norm = self._given_norm(spec.norm, layer)
        return TokenInput(gate, output, norm, self.operations, spec.activation)

    def _token_inputs(self, spec: TokenInputsSpec | None) -> TokenInputs | None:
        if spec is None:
            return None
        table = self._tensor(f"{spec.rows.path}.weight", copy=True).to(self.device)
        projection, norm = self._linear(None, (spec.projection,)), self._norm_weight("", spec.norm).to(self.device)
        return TokenInputs(table, spec.rows.scale, projection, spec.projection_scale, norm, spec.norm.eps, spec.scale)

    def _mixer(self, layer: int, spec: MixerSpec, max_model_len: int) -> Mixer:
        if isinstance(spec, DeltaNetSpec):
            return self._delta_net(layer, spec)
        return Attention(
            layer=layer,
            place=[number for number, _ in self.config.spec.attention_layers()].index(layer),
            inputs=self._linear(layer, spec.inputs),
            output=self._linear(layer, (spec.output,)),
            rotary=self._rotary(layer, spec, max_model_len),
            gated_heads=spec.num_heads if spec.has_output_gate else 0,
            sinks=None if spec.sinks is None else self._sinks(layer, spec.sinks),
            keys_that_are_values=spec.num_kv_heads * spec.head_dim if spec.values_are_keys else 0,
        )

    def _delta_net(self, layer: int, spec: DeltaNetSpec) -> DeltaNet:
        prefix = layer_path(self.config.spec, layer)
        conv, a_log, dt_bias, norm = (self._exact(prefix + name) for name in spec.tensors())
        before = self.config.spec.layers[:layer]
        return DeltaNet(
            place=sum(isinstance(it.mixer, DeltaNetSpec) for it in before),
            inputs=self._linear(layer, spec.inputs),
            output=self._linear(layer, (spec.output,)),
            weights=DeltaWeights(
                conv=conv[:, 0].T.contiguous(), decay=a_log.exp(), dt_bias=dt_bias, norm=norm, eps=spec.norm.eps
            ),
            widths=[linear.outputs for linear in spec.inputs],
        )

    def _exact(self, name: str) -> torch.Tensor:
        """In float32, whatever the weights are stored in."""
        return finite_floats(name, self.checkpoint.tensor(name), torch.float32, copy=True).to(self.device)

    def _sinks(self, layer: int, path: str) -> torch.Tensor:
        return self._tensor(layer_path(self.config.spec, layer) + path).float().to(self.device)

    def _token_wise(self, layer: int, spec: FeedForwardSpec | ExpertsSpec) -> TokenWise:
        return self._experts(layer, spec) if isinstance(spec, ExpertsSpec) else self._feed_forward(layer, spec)

    def _experts(self, layer: int, spec: ExpertsSpec) -> Experts:
        """Expert by expert, so that few weights are there twice."""
        routing, inputs, outputs = spec.routing, [], []
        for expert in spec.experts():
            inputs.append(self._linear(layer, expert.inputs, self.scheme.for_experts))
            outputs.append(self._linear(layer, (expert.output,), self.scheme.for_experts))
        correction, factors = (
            None if path is None else self._exact(layer_path(self.config.spec, layer) + path)
            for path in (routing.correction, routing.factors)
        )
        try:
            grouped = self.operations.experts.linears(inputs, outputs)
        except ValueError as error:
            raise ValueError(f"layer {layer} has {error}") from error
        return Experts(
            router=self._exact_linear(layer, routing.router),
            routing=routing,
            correction=torch.empty(0, device=self.device) if correction is None else correction,
            factors=factors,
            inputs=grouped[0],
            outputs=grouped[1],
            operations=self.operations,
            activation=spec.expert.activation,
            shared=None if spec.shared is None else self._feed_forward(layer, spec.shared),
            shared_gate=None if spec.shared_gate is None else self._exact_linear(layer, spec.shared_gate),
            branch_norms=None if spec.branch_norms is None else self._branch_norms(layer, spec.branch_norms),
        )

    def _branch_norms(self, layer: int, spec: BranchNormsSpec) -> BranchNorms:
        router = self._exact(layer_path(self.config.spec, layer) + spec.router)
        return BranchNorms(router * len(router) ** -0.5, *(self._given_norm(norm, layer) for norm in spec.norms()))

    def _exact_linear(self, layer: int, spec: LinearSpec) -> LoraLinear:
        """In float32, whatever the weights are stored in and quantized to."""
        kind, linear = self._kinds[layer, spec.path], layer_linear(self.config.spec, layer, spec)

        def pack() -> LinearMethod:
            weight = self.checkpoint.weight(self.config, linear)
            floats = weight if isinstance(weight, torch.Tensor) else weight.dequantized()
            floats = finite_floats(f"{linear.name}.weight", floats, torch.float32, copy=True)
            method = self.scheme.create_exact(spec.inputs, (spec.outputs,))
            method.load(0, floats, self._exact(f"{linear.name}.bias") if spec.has_bias else None)
            method.finish()
            return method

        return LoraLinear(self.linears(f"{layer}.{kind}", pack), layer, (kind,), self.operations)

    def _feed_forward(self, layer: int, spec: FeedForwardSpec) -> FeedForward:
        inputs, output = self._linear(layer, spec.inputs), self._linear(layer, (spec.output,))
        return FeedForward(inputs, output, self.operations, spec.activation, spec.is_gated)

    def _rotary(self, layer: int, spec: AttentionSpec, max_model_len: int) -> Rotary:
        norms = (spec.query_norm, spec.key_norm)
        query, key = (self._head_norm(layer, norm) for norm in norms)
        all_eps = {norm.eps for norm in norms if norm is not None} | {spec.value_norm_eps} - {None}
        assert len(all_eps) <= 1, "one eps holds for all norms of a layer's heads"
        cos, sin = (None, None) if spec.rope is None else self._rope_tables(spec.rope, max_model_len)
        scale = spec.query_scale
        return Rotary(
            cos,
            sin,
            query_norm=query,
            key_norm=key,
            eps=next((eps for eps in all_eps if eps is not None), 0.0),
            norm_kinds=self._norm_kinds(layer, spec),
            interleaved=spec.rope is not None and spec.rope.is_interleaved,
            value_norm=spec.value_norm_eps is not None,
            query_scale=scale if scale is None else query_scales(scale, max_model_len).to(self.device),
        )

    def _norm_kinds(self, layer: int, spec: AttentionSpec) -> tuple[str, str]:
        query, key = (
            None if norm is None else self._kinds[layer, norm.path] for norm in (spec.query_norm, spec.key_norm)
        )
        return query or "", key or ""

    def _head_norm(self, layer: int, spec: NormSpec | None) -> torch.Tensor | None:
        if spec is None:
            return None
        return self._norm_weight(layer_path(self.config.spec, layer), spec).float().to(self.device)

    def _rope_tables(self, rope: RopeConfig, length: int) -> RopeTables:
        key = repr(rope), length
        if key not in self._tables:
            cos, sin = rope_tables(rope, length)
            self._tables[key] = cos.to(self.device), sin.to(self.device)
        return self._tables[key]

    def _embedding(self) -> Embedding:
        spec = self.config.spec.embedding
        table = self._tensor(f"{spec.path}.weight", copy=True).to(self.device)
        dtype, positions = self.scheme.compute_dtype, None
        if spec.positions is not None:
            rows = self._tensor(f"{spec.positions}.weight")[spec.position_offset :]
            positions = rows.to(dtype, copy=True).to(self.device)
        return Embedding(
            table,
            dtype,
            spec.scale,
            positions,
            self._projection(spec.projection),
            segments=None if spec.segments is None else self._in_stream(f"{spec.segments}.weight"),
            norm=self._norm(spec.norm),
        )

    def _in_stream(self, name: str) -> torch.Tensor:
        return self._tensor(name).to(self.scheme.compute_dtype, copy=True).to(self.device)

    def _linear(
        self, layer: int | None, linears: Sequence[LinearSpec], scheme: SchemeSelector | None = None
    ) -> LoraLinear:
        """layer: the one they belong to; None: none. scheme: another one than the model's."""
        kinds = tuple(linear.kind if layer is None else self._kinds[layer, linear.path] for linear in linears)
        name = kinds[0] if layer is None else f"{layer}.{kinds[0]}"
        return LoraLinear(
            self.linears(name, lambda: self._packed(layer, linears, scheme or self.scheme)),
            layer or 0,
            kinds,
            self.operations,
        )

    def _packed(self, layer: int | None, specs: Sequence[LinearSpec], scheme: SchemeSelector) -> LinearMethod:
        weights = [self._weight(layer_linear(self.config.spec, layer, spec), spec) for spec in specs]
        method = scheme.create_for(weights)
        scales = None if layer is None else self.folded.of_input(layer, specs[0].path)
        if scales is not None:
            method = ScaledInputLinear(method, scales.to(self.device))
        for part, spec in enumerate(specs):
            outputs = None if layer is None else self.folded.of_maker(layer, spec.path)
            bias = self._bias(layer_path(self.config.spec, layer) + spec.path, spec.has_bias)
            if outputs is not None:
                weights[part], bias = scaled_rows(weights[part], outputs), None if bias is None else bias * outputs
            method.load(part, weights[part], bias)
        method.finish()
        return method

    def _projection(self, spec: LinearSpec | None) -> LoraLinear | None:
        """At an end of the model: always as it is stored."""
        if spec is None:
            return None
        weight = self._tensor(f"{spec.path}.weight")
        method = self.scheme.create_for([weight])
        method.load(0, weight, None)
        method.finish()
        return LoraLinear(method, 0, (spec.kind,), self.operations)

    def _weight(self, linear: Linear, spec: LinearSpec) -> Weight:
        name = f"{linear.name}.weight"
        weight = self.checkpoint.weight(self.config, linear)
        if spec.is_transposed and isinstance(weight, torch.Tensor):
            weight = weight.T.contiguous()
        return self.online.linear(self._stored(name, weight), name)

    def _bias(self, path: str, has_bias: bool) -> torch.Tensor | None:
        name = f"{path}.bias"
        if has_bias:
            return self._tensor(name)
        if name in self.checkpoint and bool(self.checkpoint.tensor(name).any()):
            raise ValueError(
                f"{name} is not zero, and a {self.config.architecture} of this config.json has no such bias"
            )
        return None

    def _head(self, spec: HeadSpec) -> Head:
        method = self.linears("head", lambda: self._head_method(spec))
        return Head(method, self._projection(spec.projection), spec.scale, spec.soft_cap)

    def _head_method(self, spec: HeadSpec) -> LinearMethod:
        path = spec.path if self.checkpoint.suffixes(spec.path) else self.config.spec.embedding.path
        weight = self.checkpoint.head(self.config)
        weight = self.online.head_weight(self._stored(f"{path}.weight", weight), f"{path}.weight")
        method = self.scheme.create_for([weight])
        method.load(0, weight, self._tensor(f"{spec.path}.bias") if spec.has_bias else None)
        method.finish()
        return method

    def _stored(self, name: str, weight: Weight) -> Weight:
        return finite_floats(name, weight, self.stored_dtype) if isinstance(weight, torch.Tensor) else weight

    def _norm(self, spec: NormSpec | None, layer: int | None = None) -> Norm | None:
        return None if spec is None else self._given_norm(spec, layer)

    def _given_norm(self, spec: NormSpec, layer: int | None = None) -> Norm:
        """layer: the one it belongs to; None: none."""
        prefix = layer_path(self.config.spec, layer)
        scales = None if layer is None else self.folded.of_maker(layer, spec.path)
        parts = [self._norm_weight(prefix, spec)]
        if spec.is_layer_norm and spec.lacks_bias:
            parts.append(torch.zeros_like(parts[0]))
        elif spec.is_layer_norm:
            parts.append(self._tensor(f"{prefix}{spec.path}.bias").to(self.scheme.compute_dtype, copy=True))
        if scales is not None:
            parts = [(part * scales).to(part.dtype) for part in parts]
        weight, *bias = (part.to(self.device) for part in parts)
        # Adapters cannot name every norm of the ends.
        kind = self._kinds.get((None, spec.path), spec.path) if layer is None else self._kinds[layer, spec.path]
        return Norm(kind, weight, spec.eps, self.operations, bias[0] if bias else None)

    def _norm_weight(self, prefix: str, spec: NormSpec) -> torch.Tensor:
        """What rows are multiplied by. A sum with 1 keeps all its bits."""
        stored = self._tensor(f"{prefix}{spec.path}.weight")
        return stored.float() + 1 if spec.adds_one else stored.to(self.scheme.compute_dtype, copy=True)

    def _tensor(self, name: str, copy: bool = False) -> torch.Tensor:
        return finite_floats(name, self.checkpoint.tensor(name), self.stored_dtype, copy)
