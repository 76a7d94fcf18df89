"""What an adapter's two files say, read without torch and without trusting them.

The registry refuses an adapter by this page; the engine reads weights by it. Nothing here imports PEFT: its
configuration can name modules to import and regular expressions to run.
"""

from dataclasses import dataclass, field
from typing import Literal

Level = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class BaseSignature:
    """The linears of the base model an adapter may target."""

    fingerprint: str
    """SHA-256 over architecture, shapes and vocabulary; recorded with each version."""
    num_layers: int
    kinds: dict[str, tuple[int, int]]
    """kind -> (in_features, out_features), e.g. q_proj -> (896, 896)."""
    name: str = ""
    """What people call the base; an adapter that names another one gets a warning. Empty: not compared."""
    vocab_size: int = 0
    """0: not known."""


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


Role = Literal["magnitude", "bias", "lora_bias", "gain"]
"""What a vector over a linear's outputs is: DoRA's magnitude, a trained bias instead of the base's own, a bias of
lora_B (scaled as its delta is), or IA3's factor on the result."""


@dataclass(frozen=True, slots=True)
class OutputVector:
    role: Role
    tensor: TensorInfo
    """As many values as the linear has outputs."""


@dataclass(frozen=True, slots=True)
class ModuleLora:
    """What an adapter does to one linear: delta = scaling * x A^T B^T, and then what its vectors say."""

    layer: int
    kind: str
    rank: int
    """0: vectors alone."""
    scaling: float
    a: TensorInfo | None
    """[rank, in], and b [out, rank]; None where the rank is 0."""
    b: TensorInfo | None
    vectors: tuple[OutputVector, ...] = ()

    def tensors(self) -> list[tuple[str, TensorInfo]]:
        """Every tensor with what it is, in an order of their own."""
        pair = [(side, tensor) for side, tensor in (("A", self.a), ("B", self.b)) if tensor is not None]
        return pair + [(vector.role, vector.tensor) for vector in self.vectors]


@dataclass(frozen=True, slots=True)
class Content:
    """All of an adapter that decides the output, but for the bytes of its tensors."""

    modules: tuple[ModuleLora, ...]
    invocation_tokens: tuple[int, ...] = ()
    """It acts on a prompt from the last occurrence of these on; none: on all of it."""


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
    config: dict[str, object] = field(default_factory=dict)
    """adapter_config.json as read, for display."""
    invocation_tokens: tuple[int, ...] = ()
    """As in Content."""


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
