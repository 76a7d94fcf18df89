"""A plain forward of one layer on whole sequences, in the dtype of its tensors: what calibration, perplexity and
certificates need.

It shares nothing with the served path but the description and the rotary tables. Shapes: S sequences, L tokens each,
C hidden size, D head size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F

from ...model.description.feed_forward import BranchNormsSpec, ExpertsSpec
from ...model.description.spec import (
    Activation,
    AttentionSpec,
    DeltaNetSpec,
    FeedForwardSpec,
    LayerSpec,
    LinearSpec,
    NormSpec,
    TokenInputSpec,
)
from ...model.layer_inputs import place_of
from ...model.rope import RopeTables, query_scales, rope_tables
from .delta_rule import delta_rule
from .routing import expert_weights

CPU: Final = torch.device("cpu")
LayerTensors = Mapping[str, torch.Tensor]
"""By name within the layer: self_attn.q_proj.weight."""


def plain_linear(tensors: LayerTensors, name: str, x: torch.Tensor) -> torch.Tensor:
    """x [..., in] -> [..., out]."""
    return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def routed_place(spec: ExpertsSpec) -> str:
    return f"{spec.path}.weights"


KeysAndValues = tuple[torch.Tensor, torch.Tensor]
"""[S, KV heads, L, D] each, as scores and sums take them."""


@dataclass(slots=True)
class Beside:
    """What a layer has beside the stream, of the same sequences."""

    token_input: torch.Tensor | None = None
    """[S, L, P]"""
    keys_and_values: KeysAndValues | None = None
    """Those of another layer, where this one reads them; else its own, once it was applied."""


Linear = Callable[[LayerTensors, str, torch.Tensor], torch.Tensor]
"""What `plain_linear` is: the linear `name` of the layer on x [S, L, in]."""
Observe = Callable[[str, torch.Tensor], None]
"""Gets the name of each input of the layer's linears and what was read there, [S * L, in]. What all experts read is at
their path, and how much each of them counts, [S * L, experts], at `routed_place`."""


@dataclass(frozen=True, slots=True)
class LayerForward:
    """One layer of any supported family."""

    spec: LayerSpec
    tables: RopeTables | None
    """Cosines and sines [at least L, turned dimensions / 2]; None: the layer knows no positions."""
    device: torch.device = CPU
    linear: Linear = plain_linear

    @property
    def reads_rows(self) -> bool:
        """Whether a linear takes any rows by themselves, and not whole sequences alone."""
        return self.linear is plain_linear

    def apply(
        self, tensors: LayerTensors, x: torch.Tensor, observe: Observe | None = None, beside: Beside | None = None
    ) -> torch.Tensor:
        """x [S, L, C] -> [S, L, C], the residual stream after this layer."""
        spec, see, beside = self.spec, observe or (lambda place, rows: None), beside or Beside()
        read = x if spec.norms_follow_sum else normed(tensors, spec.mixer_norm, x)
        if isinstance(spec.mixer, DeltaNetSpec):
            x = self._add(tensors, x, self._delta_net(tensors, spec.mixer, read, see), True)
        else:
            x = self._add(tensors, x, self._attention(tensors, spec.mixer, read, see, beside), True)
        read = x if spec.norms_follow_sum else normed(tensors, spec.feed_forward_norm, x)
        x = self._add(tensors, x, self._token_wise(tensors, spec.feed_forward, read, see), False)
        if spec.token_input is not None:
            assert beside.token_input is not None
            x = x + self._token_input(tensors, spec.token_input, x, beside.token_input, see)
        return x if spec.scale is None else x * tensors[spec.scale]

    def _token_input(
        self, tensors: LayerTensors, spec: TokenInputSpec, x: torch.Tensor, given: torch.Tensor, see: Observe
    ) -> torch.Tensor:
        gate = _activate(self._group(tensors, (spec.gate,), x, see), spec.activation)
        return normed(tensors, spec.norm, self._group(tensors, (spec.output,), gate * given, see))

    def _add(self, tensors: LayerTensors, x: torch.Tensor, given: torch.Tensor, is_mixer: bool) -> torch.Tensor:
        spec = self.spec
        x = x + normed(tensors, spec.mixer_output_norm if is_mixer else spec.feed_forward_output_norm, given) * (
            spec.residual_scale
        )
        norm = spec.mixer_norm if is_mixer else spec.feed_forward_norm
        return normed(tensors, norm, x) if spec.norms_follow_sum else x

    def _group(
        self, tensors: LayerTensors, group: tuple[LinearSpec, ...], x: torch.Tensor, see: Observe
    ) -> torch.Tensor:
        """All linears of a group on x [S, L, in], one after the other."""
        see(place_of(group), x.flatten(0, 1))
        return torch.cat([self.linear(tensors, linear.path, x) for linear in group], dim=-1)

    def _token_wise(
        self, tensors: LayerTensors, spec: FeedForwardSpec | ExpertsSpec, x: torch.Tensor, see: Observe
    ) -> torch.Tensor:
        if isinstance(spec, FeedForwardSpec):
            return self._feed_forward(tensors, spec, x, see)
        if spec.branch_norms is not None:
            return self._branches(tensors, spec, spec.branch_norms, x, see)
        given = self._routed(tensors, spec, x, x, see)
        if spec.shared is None:
            return given
        shared = self._feed_forward(tensors, spec.shared, x, see)
        if spec.shared_gate is not None:
            shared = shared * torch.sigmoid(self._group(tensors, (spec.shared_gate,), x, see))
        return given + shared

    def _branches(
        self, tensors: LayerTensors, spec: ExpertsSpec, norms: BranchNormsSpec, x: torch.Tensor, see: Observe
    ) -> torch.Tensor:
        """x [S, L, C] is the stream itself."""
        assert spec.shared is not None
        judged = F.rms_norm(x, (x.shape[-1],), tensors[norms.router], norms.experts.eps) / x.shape[-1] ** 0.5
        given = self._routed(tensors, spec, normed(tensors, norms.experts, x), judged, see)
        shared = self._feed_forward(tensors, spec.shared, normed(tensors, norms.shared, x), see)
        return normed(tensors, norms.experts_output, given) + normed(tensors, norms.shared_output, shared)

    def _routed(
        self, tensors: LayerTensors, spec: ExpertsSpec, x: torch.Tensor, judged: torch.Tensor, see: Observe
    ) -> torch.Tensor:
        """What the experts make of x. `judged`: what the router reads."""
        logits = self._group(tensors, (spec.routing.router,), judged, see)
        correction = None if spec.routing.correction is None else tensors[spec.routing.correction]
        weights = expert_weights(spec.routing, logits.float(), correction)
        see(spec.path, x.flatten(0, 1))
        see(routed_place(spec), weights.flatten(0, 1))
        if spec.routing.factors is not None:
            weights = weights * tensors[spec.routing.factors]
        given = torch.zeros_like(x)
        for number, expert in enumerate(spec.experts()):
            own = weights[..., number]
            rows = own != 0
            if not self.reads_rows:
                rows = torch.full_like(rows, bool(rows.any()))
            if bool(rows.any()):
                read = x[rows][None] if self.reads_rows else x
                made = self._feed_forward(tensors, expert, read, lambda place, rows: None)
                given[rows] += made.view(-1, made.shape[-1]) * own[rows][:, None].to(x)
        return given

    def _feed_forward(
        self, tensors: LayerTensors, spec: FeedForwardSpec, x: torch.Tensor, see: Observe
    ) -> torch.Tensor:
        return self._group(tensors, (spec.output,), self.inner(tensors, spec, x, see), see)

    def inner(
        self, tensors: LayerTensors, spec: FeedForwardSpec, x: torch.Tensor, see: Observe = lambda place, rows: None
    ) -> torch.Tensor:
        """x [S, L, C] -> what the last linear of a feed-forward reads."""
        inner = self._group(tensors, spec.inputs, x, see)
        apply = _multiply_gate if spec.is_gated else _activate
        return apply(inner, spec.activation)

    def _delta_net(self, tensors: LayerTensors, spec: DeltaNetSpec, x: torch.Tensor, see: Observe) -> torch.Tensor:
        mixed = delta_rule(spec, tensors, self._group(tensors, spec.inputs, x, see))
        return self._group(tensors, (spec.output,), mixed, see)

    def _attention(
        self, tensors: LayerTensors, spec: AttentionSpec, x: torch.Tensor, see: Observe, beside: Beside
    ) -> torch.Tensor:
        query_size, key_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        qkv, gate = self._group(tensors, spec.inputs, x, see), None
        if spec.has_output_gate:
            both = qkv[..., : 2 * query_size].reshape(*qkv.shape[:-1], spec.num_heads, 2, spec.head_dim)
            gate = both[..., 1, :].flatten(-2)
            qkv = torch.cat([both[..., 0, :].flatten(-2), qkv[..., 2 * query_size :]], dim=-1)
        query, rest = qkv[..., :query_size], qkv[..., query_size:]
        query = self._rotate(self._heads(_head_normed(tensors, spec.query_norm, query, spec.head_dim), spec.head_dim))
        if spec.query_scale is not None:
            query = query * query_scales(spec.query_scale, query.shape[2]).to(query)[:, None]
        if spec.keys_of is None:
            value = rest if spec.values_are_keys else rest[..., key_size:]
            beside.keys_and_values = self._keys_and_values(tensors, spec, rest[..., :key_size], value)
        assert beside.keys_and_values is not None
        key, value = beside.keys_and_values
        mixed = _attend(spec, query, key, value, None if spec.sinks is None else tensors[spec.sinks])
        mixed = mixed.transpose(1, 2).flatten(2)
        if gate is not None:
            mixed = mixed * torch.sigmoid(gate)
        return self._group(tensors, (spec.output,), mixed, see)

    def _keys_and_values(
        self, tensors: LayerTensors, spec: AttentionSpec, key: torch.Tensor, value: torch.Tensor
    ) -> KeysAndValues:
        """key and value [S, L, heads * D]."""
        key = self._rotate(self._heads(_head_normed(tensors, spec.key_norm, key, spec.head_dim), spec.head_dim))
        value = self._heads(value, spec.head_dim)
        if spec.value_norm_eps is not None:
            value = F.rms_norm(value, (spec.head_dim,), None, spec.value_norm_eps)
        return key, value

    def _heads(self, x: torch.Tensor, head_dim: int) -> torch.Tensor:
        """[S, L, heads * D] -> [S, heads, L, D]."""
        return x.reshape(*x.shape[:2], -1, head_dim).transpose(1, 2)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x [S, heads, L, D] at positions 0 to L - 1."""
        assert isinstance(self.spec.mixer, AttentionSpec)
        rope = self.spec.mixer.rope
        if self.tables is None or rope is None:
            return x
        cosines, sines = (table[: x.shape[2]].to(x) for table in self.tables)
        turned, rest = x[..., : rope.dims], x[..., rope.dims :]
        if rope.is_interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
            pairs = [first * cosines - second * sines, second * cosines + first * sines]
            return torch.cat([torch.stack(pairs, dim=-1).flatten(-2), rest], dim=-1)
        first, second = turned.chunk(2, dim=-1)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines, rest], dim=-1)


def layer_forward(spec: LayerSpec, length: int, device: torch.device = CPU) -> LayerForward:
    """For sequences of at most `length` tokens."""
    mixer = spec.mixer
    if isinstance(mixer, DeltaNetSpec) or mixer.rope is None:
        return LayerForward(spec, None, device)
    cosines, sines = rope_tables(mixer.rope, length)
    return LayerForward(spec, (cosines.to(device), sines.to(device)), device)


def _attend(
    spec: AttentionSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """query [S, H, L, D], key and value [S, G, L, D] -> [S, H, L, D]."""
    mask = _mask(spec, query)
    if spec.soft_cap is None and sinks is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True, scale=spec.scale)
    key, value = (part.repeat_interleave(spec.num_heads // spec.num_kv_heads, dim=1) for part in (key, value))
    scores = query @ key.transpose(2, 3) * spec.scale
    if spec.soft_cap is not None:
        scores = torch.tanh(scores / spec.soft_cap) * spec.soft_cap
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores)[:, None, None].expand(*scores.shape[:3], 1)], dim=-1)
    return scores.softmax(-1)[..., : key.shape[2]] @ value


def _mask(spec: AttentionSpec, x: torch.Tensor) -> torch.Tensor:
    """[L, L], what each token sees: itself and those before, within the sliding window where the layer has one."""
    positions = torch.arange(x.shape[2], device=x.device)
    distance = positions[:, None] - positions
    return (distance >= 0) if spec.window is None else (distance >= 0) & (distance < spec.window)


def _head_normed(tensors: LayerTensors, norm: NormSpec | None, x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Over each head of x [..., heads * D], or over all of them where the norm is that wide."""
    if norm is None or norm.size == x.shape[-1]:
        return normed(tensors, norm, x)
    return normed(tensors, norm, x.reshape(*x.shape[:-1], -1, head_dim)).flatten(-2)


def normed(tensors: LayerTensors, norm: NormSpec | None, x: torch.Tensor) -> torch.Tensor:
    """x [..., C] as it is where there is no norm."""
    if norm is None:
        return x
    weight = tensors[f"{norm.path}.weight"]
    weight = weight + 1 if norm.adds_one else weight
    if norm.is_layer_norm:
        return F.layer_norm(x, weight.shape, weight, tensors[f"{norm.path}.bias"], norm.eps)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * weight


def _multiply_gate(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    if activation != "clamped_swiglu":
        return _activate(gate, activation) * up
    gate = gate.clamp(max=7)
    return gate * torch.sigmoid(1.702 * gate) * (1 + up.clamp(-7, 7))


def _activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    match activation:
        case "tanh":
            return torch.tanh(x)
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case "clamped_swiglu":
            raise AssertionError("it is there between a gate and what the gate multiplies")
