"""What families with experts share in telling their feed-forwards."""

from collections.abc import Mapping
from typing import Final

from ...description.config_fields import Raw, activation, positive
from ...description.feed_forward import ExpertsSpec, FeedForwardSpec, LinearSpec, RoutingSpec

GATE_UP_DOWN: Final = ("gate_proj", "up_proj", "down_proj")


def gated_experts(
    raw: Raw,
    hidden_size: int,
    size: int,
    routing: RoutingSpec,
    path: str = "mlp",
    names: tuple[str, str, str] = GATE_UP_DOWN,
) -> ExpertsSpec:
    """Experts below `path`, each of `size`, with linears of these names."""
    gate, up = (LinearSpec(part, hidden_size, size) for part in names[:2])
    expert = FeedForwardSpec(
        inputs=(gate, up),
        output=LinearSpec(names[2], size, hidden_size),
        activation=activation(raw, "hidden_act", "silu"),
        is_gated=True,
    )
    return ExpertsSpec(routing=routing, path=f"{path}.experts", expert=expert)


def count_of(raw: Raw, names: tuple[str, ...], default: int) -> int:
    """A number that transformers has written under several names."""
    said = next((name for name in names if raw.get(name) is not None), names[0])
    return positive(raw, said, default)


ROUTING: Final[Mapping[str, tuple[object, ...]]] = {
    "scoring_func": ("softmax",),
    "score_function": ("softmax",),
    "moe_router_activation_func": ("softmax",),
    "topk_method": ("greedy",),
    "norm_topk_prob": (True,),
    "n_group": (1,),
    "num_expert_group": (1,),
    "topk_group": (1,),
    "routed_scaling_factor": (1, 1.0),
    "use_expert_bias": (False,),
    "moe_router_enable_expert_bias": (False,),
    "n_shared_experts": (0,),
    "num_shared_experts": (0,),
    "shared_expert_intermediate_size": (0,),
    "zero_expert_num": (0,),
}
"""What config.json may say of routing -> where that changes nothing for a family that does not read it."""


def refuse_unread(raw: Raw, *read: str) -> None:
    """`read`: fields of ROUTING that the family reads. ValueError for another one that would change the routing."""
    for name, neutral in ROUTING.items():
        value = raw.get(name)
        if name not in read and value is not None and value not in neutral:
            raise ValueError(f"{name} {value!r} is not supported for this family; {neutral[0]!r} is")
