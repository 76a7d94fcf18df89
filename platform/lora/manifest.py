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


@dataclass(frozen=True, slots=True)
class ModuleLora:
    """The pair of one linear: A is [rank, in], B is [out, rank], delta = scaling * x A^T B^T."""

    layer: int
    kind: str
    rank: int
    scaling: float
    a: TensorInfo
    b: TensorInfo


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
