"""What an adapter's two files say, read without torch and without trusting them.

The registry refuses an adapter by this page; the engine reads weights by it. Nothing here imports PEFT: its
configuration can name modules to import and regular expressions to run.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

Level = Literal["pass", "warn", "fail"]


EMBEDDING: Final = "embed_tokens"
HEAD: Final = "lm_head"
SCORE: Final = "score"
"""Head of a classification: an adapter brings the whole of it."""
ONCE: Final = frozenset({EMBEDDING, HEAD, "norm"})
"""Kinds of module that the base has once; of all others it has one in each layer."""


@dataclass(frozen=True, slots=True)
class BaseSignature:
    """The modules of the base model an adapter may change."""

    fingerprint: str
    """SHA-256 over architecture, shapes and vocabulary; recorded with each version."""
    num_layers: int
    kinds: dict[str, tuple[int, int]]
    """kind -> (in_features, out_features), e.g. q_proj -> (896, 896)."""
    name: str = ""
    """What people call the base; an adapter that names another one gets a warning. Empty: not compared."""
    vocab_size: int = 0
    """Rows of the embedding and of the head."""
    hidden_size: int = 0
    normed_head_size: int = 0
    """Size of a head where queries and keys are normed, else 0."""
    tied: bool = False
    """Whether embedding and head are one weight."""

    def shapes(self) -> dict[str, tuple[int, int]]:
        """kind -> (in_features, out_features) of whatever can be adapted: linears of the layers, embedding (a linear of
        unit vectors), head, and norms, whose inputs do not count."""
        norms = dict.fromkeys(("input_layernorm", "post_attention_layernorm", "norm"), (0, self.hidden_size))
        if self.normed_head_size:
            norms |= dict.fromkeys(("q_norm", "k_norm"), (0, self.normed_head_size))
        ends = {EMBEDDING: (self.vocab_size, self.hidden_size), HEAD: (self.hidden_size, self.vocab_size)}
        return self.kinds | ends | norms if self.vocab_size else self.kinds

    def layers_of(self, kind: str) -> int:
        return 1 if kind in ONCE else self.num_layers


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


Role = Literal["magnitude", "bias", "lora_bias", "gain", "norm"]
"""What a vector over a module's outputs is: DoRA's magnitude, a trained bias instead of the base's own, a bias of
lora_B (scaled as its delta is), IA3's factor on the result, or the weight of a norm instead of the base's own."""


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
