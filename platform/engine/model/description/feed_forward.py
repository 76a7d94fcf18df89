"""What a layer computes behind its mixer: one feed-forward for all tokens, or experts of which each token has a few.

No torch. Paths of modules are relative to the layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "tanh", "clamped_swiglu"]
"""clamped_swiglu: gpt-oss's; it is there between a gate and what the gate multiplies, and not alone."""
Scores = Literal["softmax", "sigmoid", "softmax_of_chosen"]


@dataclass(frozen=True, slots=True)
class LinearSpec:
    path: str
    inputs: int
    outputs: int
    has_bias: bool = False
    is_transposed: bool = False
    """Stored as [inputs, outputs] (GPT-2's Conv1D)."""

    @property
    def kind(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class NormSpec:
    path: str
    size: int
    eps: float
    is_layer_norm: bool = False
    """LayerNorm: centred, with a bias. Otherwise the RMS norm."""

    adds_one: bool = False
    """The stored weight counts from 1."""
    lacks_bias: bool = False
    """Of a LayerNorm: its bias is zero, and not stored."""

    @property
    def kind(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def has_bias(self) -> bool:
        return self.is_layer_norm and not self.lacks_bias


Group = tuple[LinearSpec, ...]
"""Linears that read the same activation and are multiplied as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardSpec:
    inputs: Group
    """Gate and up, fused or apart; or the one linear of a plain feed-forward."""
    output: LinearSpec
    activation: Activation
    is_gated: bool

    @property
    def size(self) -> int:
        return self.output.inputs

    def groups(self) -> tuple[Group, ...]:
        return self.inputs, (self.output,)

    def feed_forwards(self) -> "tuple[FeedForwardSpec, ...]":
        """Those that all tokens pass through."""
        return (self,)

    def norms(self) -> tuple[NormSpec, ...]:
        return ()

    def below(self, path: str) -> "FeedForwardSpec":
        """The same with all its linears below `path`."""
        inputs = tuple([replace(linear, path=f"{path}.{linear.path}") for linear in self.inputs])
        return replace(self, inputs=inputs, output=replace(self.output, path=f"{path}.{self.output.path}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSpec:
    """Which experts a token goes to, and how much each of them counts."""

    router: LinearSpec
    """One output, a logit, for each expert. Weights and logits are float32, whatever the model is stored in."""
    experts_per_token: int
    scores: Scores
    """What the logits become, of which the largest are chosen and weigh. softmax_of_chosen: the largest logits are
    chosen, and the softmax of these alone weighs."""
    normalizes: bool = False
    """Weights are divided by their sum."""
    scale: float = 1.0
    """Of the weights, at last."""
    num_groups: int = 1
    """Neighbouring experts, as many in each group. The groups whose two largest scores have the largest sum are chosen
    first, and experts of these alone."""
    groups_per_token: int = 1
    correction: str | None = None
    """Path of a number for each expert that is added to its score where groups and experts are chosen, but does not
    weigh."""
    factors: str | None = None
    """Path of a number for each expert that its weights are multiplied by, at last."""

    def __post_init__(self) -> None:
        experts, chosen = self.num_experts, self.experts_per_token
        if not 1 <= chosen <= experts:
            raise ValueError(f"each token has {chosen} of {experts} experts; it must be 1 to {experts}")
        if experts % self.num_groups or not 1 <= self.groups_per_token <= self.num_groups:
            raise ValueError(
                f"{experts} experts in {self.num_groups} groups, of which a token has {self.groups_per_token}: groups "
                "must be of one size, and a token can have no more than there are"
            )
        in_groups = experts // self.num_groups
        if self.num_groups > 1 and (in_groups < 2 or in_groups * self.groups_per_token < chosen):
            raise ValueError(
                f"{self.groups_per_token} groups of {in_groups} experts are too few for {chosen} experts of a token"
            )

    @property
    def num_experts(self) -> int:
        return self.router.outputs


@dataclass(frozen=True, slots=True)
class StackedSpec:
    """How a checkpoint stores all experts of a layer in one tensor: [experts, outputs, inputs], gate above up."""

    module: str = "mlp.experts"
    """What has the tensors in transformers, within a layer."""
    inputs: str = "gate_up_proj"
    """Names behind the experts' path. Biases have the same names with _bias behind."""
    output: str = "down_proj"
    is_transposed: bool = False
    """[experts, inputs, outputs]"""
    is_interleaved: bool = False
    """Rows of gate and up in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchNormsSpec:
    """Router, experts and shared expert read the stream itself, each behind a norm of its own."""

    router: str
    """Path of what multiplies the stream's RMS norm, over the root of its size, for the router."""
    experts: NormSpec
    shared: NormSpec
    experts_output: NormSpec
    """Over what the experts gave, before it is added to what the shared one gave."""
    shared_output: NormSpec

    def norms(self) -> tuple[NormSpec, ...]:
        """Those with a weight that adapters may bring."""
        return self.experts, self.shared, self.experts_output, self.shared_output


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """The sum of a few experts' outputs, by token, and of what a shared expert makes of all tokens."""

    routing: RoutingSpec
    path: str
    """Of the experts: expert 3 is at `path`.3."""
    expert: FeedForwardSpec
    """Any of them; paths are relative to the expert."""
    stacked: StackedSpec = StackedSpec()
    shared: FeedForwardSpec | None = None
    shared_gate: LinearSpec | None = None
    """Its sigmoid multiplies what the shared expert gives. Float32, as the router."""
    branch_norms: BranchNormsSpec | None = None
    """There is a shared expert then, without a gate, and the layer has no `feed_forward_norm`."""

    def groups(self) -> tuple[Group, ...]:
        """Of what all tokens pass through: router and shared expert."""
        shared = () if self.shared is None else self.shared.groups()
        gate = () if self.shared_gate is None else ((self.shared_gate,),)
        return ((self.routing.router,), *shared, *gate)

    def exact_linears(self) -> tuple[LinearSpec, ...]:
        """Those in float32, whatever the others are stored in."""
        return (self.routing.router, *(() if self.shared_gate is None else (self.shared_gate,)))

    def feed_forwards(self) -> tuple[FeedForwardSpec, ...]:
        """Those that all tokens pass through."""
        return () if self.shared is None else (self.shared,)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names in the layer and shapes of what is neither a linear nor a norm that adapters may bring."""
        routing, norms = self.routing, self.branch_norms
        by_expert = [path for path in (routing.correction, routing.factors) if path is not None]
        scale = {} if norms is None else {norms.router: (norms.experts.size,)}
        return {**dict.fromkeys(by_expert, (routing.num_experts,)), **scale}

    def norms(self) -> tuple[NormSpec, ...]:
        """Those with a weight that adapters may bring."""
        return () if self.branch_norms is None else self.branch_norms.norms()

    def experts(self) -> Iterator[FeedForwardSpec]:
        return (self.expert.below(f"{self.path}.{number}") for number in range(self.routing.num_experts))
