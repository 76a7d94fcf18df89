"""What an adapter's two files say, read without torch and without trusting them.

The registry refuses an adapter by this page; the engine reads weights by it. Nothing here imports PEFT: its
configuration can name modules to import and regular expressions to run.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Final, Literal

Level = Literal["pass", "warn", "fail"]


EMBEDDING: Final = "embed_tokens"
HEAD: Final = "lm_head"
SCORE: Final = "score"
"""Head of a classification: an adapter brings the whole of it."""

ModuleRole = Literal["linear", "head", "embedding", "norm"]
ROLES: Final[tuple[ModuleRole, ...]] = ("linear", "head", "embedding", "norm")
"""In the order of the page table's rows."""


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """Modules of the base with one shape and one place in their layers, or a module that the base has once."""

    path: str
    """Its name within a layer, e.g. self_attn.q_proj. Once: its name behind BaseSignature.prefix; the head's whole."""
    role: ModuleRole
    inputs: int
    """0 for a norm. An embedding is a linear of unit vectors."""
    outputs: int
    layers: tuple[int, ...] | None = None
    """The layers that have it, ascending; None: the base has it once. Kinds multiplied as one have the same layers."""
    has_bias: bool = False
    """Of a norm: whether it adds a bias, which an adapter may bring."""
    adds_one: bool = False
    """Of a norm: its weight, also an adapter's, counts from 1."""
    gains_from: str | None = None
    """The kind whose outputs are multiplied into its inputs, in the same layer: a factor on these is one on those."""

    @property
    def count(self) -> int:
        """How many modules of the kind there are."""
        return 1 if self.layers is None else len(self.layers)

    @property
    def row_size(self) -> int:
        """Of an embedding or a head: values of a token's row."""
        return self.outputs if self.role == "embedding" else self.inputs

    def ordinal(self, layer: int) -> int:
        """Which of the kind's modules the layer has. The layer of what the base has once is 0."""
        ordinal = 0 if self.layers is None else bisect_left(self.layers, layer)
        assert (self.layers or (0,))[ordinal] == layer, f"layer {layer} has no {self.path}"
        return ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedLinears:
    """Linears of all experts of a layer that transformers has in one parameter: [experts, outputs, inputs]."""

    module: str
    """What has the parameter, within a layer: mlp.experts."""
    parameter: str
    experts: str
    """Within a layer: expert 3 is at `experts`.3."""
    linears: tuple[str, ...]
    """Of an expert, below its path, in the order of their outputs."""
    count: int
    """Of experts."""
    inputs: int
    outputs: int
    """Of all `linears`, which have as many each."""
    layers: tuple[int, ...]
    is_interleaved: bool = False
    """Outputs of the linears in turn."""
    inputs_first: bool = False
    """[experts, inputs, outputs]"""

    @property
    def name(self) -> str:
        """Within a layer."""
        return f"{self.module}.{self.parameter}"

    def every(self) -> Iterator[tuple[int, str]]:
        """Each expert with each of its linears."""
        return product(range(self.count), self.linears)

    def path_within(self, expert: int, linear: str) -> str:
        """Of a linear within a layer."""
        return f"{self.experts}.{expert}.{linear}"

    def path_of(self, base: "BaseSignature", layer: int, expert: int, linear: str) -> str:
        """In the whole model."""
        return f"{base.prefix}{base.layers_path}.{layer}.{self.path_within(expert, linear)}"


@dataclass(frozen=True, slots=True)
class HeadLinear:
    """A linear of a classification head, which an adapter brings as a whole."""

    path: str
    """In the whole model."""
    inputs: int
    outputs: int = 0
    """0: one for each class."""
    has_bias: bool = False


@dataclass(frozen=True)
class BaseSignature:
    """The modules of the base model that an adapter may change."""

    fingerprint: str
    """SHA-256 over architecture, shapes and vocabulary; recorded with each version."""
    num_layers: int
    modules: dict[str, ModuleKind]
    """By kind: the last name of the path, e.g. q_proj. The whole path where two end alike, and a name of its own where
    layers differ in what stands at one path. Embedding and head are always EMBEDDING and HEAD. Kinds are part of an
    adapter's digest: they never change for a base."""
    name: str = ""
    """What people call the base; an adapter that names another one gets a warning. Empty: not compared."""
    vocab_size: int = 0
    """Rows of the embedding and of the head."""
    hidden_size: int = 0
    tied: bool = False
    """Whether embedding and head are one weight."""
    knows_tokens_by_layer: bool = False
    """Whether each layer has an input of its own for each token: adapters bring none for tokens that they add."""
    prefix: str = "model."
    """Before the name of every module but the head."""
    layers_path: str = "layers"
    """Behind the prefix: where the layers are, by number."""
    name_prefixes: tuple[str, ...] = ("",)
    """What adapters' names may have instead of `prefix`: a model trained without its head has none."""

    fixed: dict[str, str] = field(default_factory=dict)
    """Modules that no adapter changes here -> what they are, for people. Paths in the whole model."""

    head_path: str = SCORE
    """The module that an adapter which classifies brings."""
    classifies_tokens: bool = False
    """Such a head classifies each token, and not the prompt."""
    stacked: tuple[StackedLinears, ...] = ()
    """Of experts, that an adapter may change as one parameter."""
    own_head: tuple[HeadLinear, ...] = ()
    """Its linears; none: it is one without a bias."""

    @property
    def head_linears(self) -> tuple[HeadLinear, ...]:
        return self.own_head or (HeadLinear(self.head_path, self.hidden_size),)

    def shapes(self) -> dict[str, tuple[int, int]]:
        """kind -> (in_features, out_features) of whatever can be adapted, in the order of the page table's rows."""
        ordered = sorted(self.modules.items(), key=lambda item: ROLES.index(item[1].role))
        return {kind: (module.inputs, module.outputs) for kind, module in ordered}

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """kind -> (in_features, out_features) of the linears, without the head."""
        return {kind: shape for kind, shape in self.shapes().items() if self.modules[kind].role == "linear"}

    @cached_property
    def expert_kinds(self) -> frozenset[str]:
        """Kinds of single experts' linears."""
        starts = tuple({f"{stacked.experts}." for stacked in self.stacked})
        return frozenset(kind for kind, module in self.modules.items() if module.path.startswith(starts))

    def path_of(self, layer: int, kind: str) -> str:
        """The module's name in the base model, as PEFT matches names against it."""
        module = self.modules[kind]
        if module.role == "head":
            return module.path
        place = module.path if module.layers is None else f"{self.layers_path}.{layer}.{module.path}"
        return f"{self.prefix}{place}"

    def word_for(self, kind: str) -> str:
        """For people: kinds at one path are one to them. What is no module of the base is called what it is."""
        same = self.modules[kind].path if kind in self.modules else None
        return next((other for other, module in self.modules.items() if module.path == same), kind)

    @cached_property
    def linear_words(self) -> tuple[str, ...]:
        """What people call its linears."""
        return tuple(dict.fromkeys(map(self.word_for, self.linears)))

    @cached_property
    def kinds_in_layers(self) -> dict[str, dict[int, str]]:
        """Path within a layer -> layer -> kind."""
        found: dict[str, dict[int, str]] = {}
        for kind, module in self.modules.items():
            for layer in module.layers or ():
                assert layer not in found.setdefault(module.path, {}), f"two kinds are {module.path} of layer {layer}"
                found[module.path][layer] = kind
        return found

    @cached_property
    def kinds_once(self) -> dict[str, str]:
        """Path behind the prefix -> kind, without the head."""
        once = {kind: module for kind, module in self.modules.items() if module.layers is None}
        return {module.path: kind for kind, module in once.items() if module.role != "head"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of a safetensors header."""

    name: str
    dtype: str
    """Safetensors name: F32, F16 or BF16."""
    shape: tuple[int, ...]
    start: int
    """Byte offset in the file."""
    end: int


Role = Literal["magnitude", "bias", "lora_bias", "gain", "norm", "norm_bias"]
"""What a vector over a module's outputs is: DoRA's magnitude, a trained bias instead of the base's own, a bias of
lora_B (scaled as its delta is), IA3's factor on the result, or the weight or bias of a norm instead of the base's."""


@dataclass(frozen=True, slots=True)
class OutputVector:
    role: Role
    tensor: TensorInfo
    """As many values as the linear has outputs."""


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of the embedding or of the head that stand instead of the base's own."""

    tensor: TensorInfo
    """[rows, hidden size]"""
    tokens: tuple[int, ...] | None
    """The token of each row; None: row i is token i's, and most rows may be copies of the base's."""


@dataclass(frozen=True, slots=True)
class ModuleLora:
    """What an adapter does to one module: delta = scaling * x A^T B^T, and then what its vectors say."""

    layer: int
    """0 for what the base has once."""
    kind: str
    rank: int
    """0: vectors alone."""
    scaling: float
    a: TensorInfo | None
    """[rank, in], and b [out, rank]; None where the rank is 0."""
    b: TensorInfo | None
    vectors: tuple[OutputVector, ...] = ()
    rows: tuple[TokenRows, ...] = ()
    """A later one stands instead of an earlier one."""

    def tensors(self) -> list[tuple[str, TensorInfo]]:
        """Every tensor with what it is, in an order of their own."""
        pair = [(side, tensor) for side, tensor in (("A", self.a), ("B", self.b)) if tensor is not None]
        rows = [(f"rows {'all' if part.tokens is None else list(part.tokens)}", part.tensor) for part in self.rows]
        return pair + [(vector.role, vector.tensor) for vector in self.vectors] + rows


@dataclass(frozen=True, slots=True)
class AdapterManifest:
    digest: str
    """SHA-256 over the canonical configuration and the canonical weights: the adapter's identity."""
    peft_type: str
    rank: int
    """The largest rank of its modules."""
    alpha: float
    target_modules: tuple[str, ...]
    base_model: str
    modules: tuple[ModuleLora, ...]
    parameters: int
    size: int
    """Bytes of the weights file."""
    vocab_size: int = 0
    """Tokens that the adapted model knows; 0: as many as the base."""
    config: dict[str, object] = field(default_factory=dict)
    """adapter_config.json as read, for display."""
    invocation_tokens: tuple[int, ...] = ()
    """It acts on a prompt from the last occurrence of these on; none: on all of it."""
    num_classes: int = 0
    """Of its classification head; 0: it has none."""
    probe_tokens: tuple[int, ...] = ()
    """Some whose embeddings or logits it changes itself; none: it has nothing there."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the preflight report, written for the person who uploads."""

    check: str
    """One word: what was looked at."""
    level: Level
    message: str
    remedy: str | None = None
    """One line that repairs it, where there is one."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that was found in an adapter's files. `manifest` is None exactly when a finding is a failure."""

    manifest: AdapterManifest | None
    findings: tuple[Finding, ...]

    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == "fail"]
