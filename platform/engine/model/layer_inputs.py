"""The inputs that linears of a layer read which may be quantized: which linears read each of them, and which norm or
linear makes it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from .description.feed_forward import ExpertsSpec
from .description.spec import AttentionSpec, FeedForwardSpec, LayerSpec, LinearSpec, ModelSpec, NormSpec

QKV: Final = "self_attn.qkv"
GATE_UP: Final = "mlp.gate_up"
PLACES: Final = {("q_proj", "k_proj", "v_proj"): QKV, ("gate_proj", "up_proj"): GATE_UP}
"""Linears that read one input -> its name, where it is not the first linear's."""
Maker = NormSpec | LinearSpec


@dataclass(frozen=True, slots=True)
class LayerInput:
    place: str
    """Its name in the layer."""
    linears: tuple[LinearSpec, ...]
    """Those that read it."""
    maker: Maker | None = None
    """If all of this is divided channel by channel, so is the input, and nothing else of the model. None: nothing is
    so."""
    value_heads: tuple[int, int] | None = None
    """KV heads and their size, where query heads mixed the values of these."""

    def made_by(self, scales: torch.Tensor) -> torch.Tensor:
        """Scales of the input [in] as those of the maker's outputs [out]: one of each value head's readers."""
        if self.value_heads is None:
            return scales
        heads, size = self.value_heads
        return scales.reshape(heads, -1, size)[:, 0].flatten()

    def shared(self, magnitudes: torch.Tensor) -> torch.Tensor:
        """[in] -> [in]: query heads that read one value head must agree on its scales, so they get its mean."""
        if self.value_heads is None:
            return magnitudes
        heads, size = self.value_heads
        by_value_head = magnitudes.reshape(heads, -1, size)
        return by_value_head.mean(1, keepdim=True).expand_as(by_value_head).flatten()


def place_of(group: Sequence[LinearSpec]) -> str:
    """The name of the input that these linears read."""
    return PLACES.get(tuple(linear.kind for linear in group), group[0].path)


def inputs_of(spec: ModelSpec, layer: int) -> tuple[LayerInput, ...]:
    """Of the layer, in the order in which they are computed, without what routers and others in float32 alone read. An
    expert's inputs are at the path of the first linear that reads them."""
    own = spec.layers[layer]
    made = dict(_made(own, layer in spec.read_by_others()))
    mixture = own.feed_forward if isinstance(own.feed_forward, ExpertsSpec) else None
    exact = () if mixture is None else mixture.exact_linears()
    groups = ((place_of(group), group) for group in own.linear_groups() if group[0] not in exact)
    inputs = tuple(LayerInput(place, group, *made.get(place, ())) for place, group in groups)
    return inputs if mixture is None else (*inputs, *_of_experts(mixture))


def _of_experts(mixture: ExpertsSpec) -> Iterator[LayerInput]:
    """The norm before them is the router's too, and stays as it is: so does what is routed where."""
    for expert in mixture.experts():
        yield LayerInput(expert.inputs[0].path, expert.inputs)
        yield LayerInput(expert.output.path, (expert.output,), _feed_forward_maker(expert))


def _made(layer: LayerSpec, has_readers: bool) -> Iterator[tuple[str, tuple[Maker, tuple[int, int] | None]]]:
    """Place -> maker and value heads. `has_readers`: whether other layers read its values."""
    blocks = ((layer.mixer_norm, layer.mixer), (layer.feed_forward_norm, layer.feed_forward))
    for norm, block in blocks:
        if norm is not None and not layer.norms_follow_sum and not isinstance(block, ExpertsSpec):
            yield place_of(block.inputs), (norm, None)
    mixer = layer.mixer
    if isinstance(mixer, AttentionSpec) and not has_readers and _passes_values(mixer):
        yield place_of((mixer.output,)), (mixer.inputs[-1], (mixer.num_kv_heads, mixer.head_dim))
    for feed_forward in layer.feed_forward.feed_forwards():
        maker = _feed_forward_maker(feed_forward)
        if maker is not None:
            yield place_of((feed_forward.output,)), (maker, None)


def _passes_values(mixer: AttentionSpec) -> bool:
    """Attention mixes values over tokens and not over channels, and a gate multiplies channel by channel. Values that
    share a linear with queries are left alone."""
    return mixer.keys_of is None and mixer.value_norm_eps is None and len(mixer.inputs) == 3


def _feed_forward_maker(feed_forward: FeedForwardSpec) -> LinearSpec | None:
    """Gate multiplies up channel by channel. ReLU of what is divided is its result divided; others bend."""
    if feed_forward.activation == "clamped_swiglu":  # what is multiplied is clamped, and 1 more than it was
        return None
    if feed_forward.is_gated:
        return feed_forward.inputs[1] if len(feed_forward.inputs) == 2 else None
    return feed_forward.inputs[0] if feed_forward.activation == "relu" else None
