"""The parity certificate: how near the served path comes to the unquantized model, and what exactly was compared.

No torch: the registry stores it and the API process shows it. `loraplex.engine.certify` makes it.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Self

import msgspec

from ..config import EngineConfig

WORKER: Final = "loraplex.engine.certify"
"""`python -m` this: a CertifyJob as JSON on standard input; on standard output lines of JSON, {"progress": 0..1,
"stage": words} and at last {"certificate": {...}} with exit code 0, or with exit code 2 {"error": words} for everybody,
or {"fault": words} for who runs it: something broke, or was not there."""

NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class _Json:
    """To JSON and back without loss; what is not exactly such a document is refused."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """ValueError says what is missing, unknown or of the wrong kind."""
        try:
            json.dumps(document, allow_nan=False)
            read = msgspec.convert(document, cls)
        except ValueError as error:
            raise ValueError(f"this is no {cls.__name__}: {error}") from None
        if read.to_json() != document:
            raise ValueError(f"this is no {cls.__name__}: it has unknown or missing fields")
        return read


@dataclass(frozen=True, slots=True)
class Figures(_Json):
    """One way of serving beside the reference, over all positions of the prompts but each one's first."""

    top1_agreement: Share
    """Share of positions at which both find the same token likeliest."""
    mean_kl: NonNegative
    """Of KL(reference || served) of a position, in nats."""
    max_kl: NonNegative
    perplexity: NonNegative
    """Of the prompts' own tokens."""
    perplexity_delta: float
    """Served less reference."""


@dataclass(frozen=True, slots=True)
class Coverage(_Json):
    """All that the figures depend on. A certificate holds for this and nothing else."""

    base: str
    """`model_digest` of the served base."""
    reference: str
    """`model_digest` of the unquantized model."""
    quantization: str
    """As in EngineInfo.quantization, in words; empty where nothing is quantized."""
    kv_cache_dtype: str
    """What keys and values are stored in, in the words of `engine/model/served.py: kv_cache_words`."""
    positions: str
    """Which of longrope's sets of factors turns positions; empty: the model has one way."""
    arithmetic: str
    """What linears are multiplied with, as in EngineInfo.arithmetic: it decides how their activations are rounded."""
    runtime: dict[str, str]
    """What computes it all, by name and version, as in EngineInfo.runtime."""
    adapter: str | None
    """Digest; None: the base alone."""
    prompts: str
    """`prompts_digest` of their texts."""
    version: str
    """Of loraplex."""

    def digest(self) -> str:
        """SHA-256 of all of it, as canonical JSON."""
        return hashlib.sha256(_canonical(self.to_json())).hexdigest()

    def changes(self, other: "Coverage") -> list[str]:
        """In words what of this is something else in `other`; empty when a certificate of this holds there too."""
        mine, theirs = self._parts(), other._parts()
        names = mine | theirs  # in order
        return [_change(name, mine.get(name), theirs.get(name)) for name in names if mine.get(name) != theirs.get(name)]

    def _parts(self) -> dict[str, str | None]:
        """One for each that can change by itself."""
        parts = {PARTS[part.name]: getattr(self, part.name) for part in fields(self) if part.name in PARTS}
        return parts | self.runtime


@dataclass(frozen=True, slots=True)
class Certificate(_Json):
    coverage: Coverage
    num_prompts: Count
    num_tokens: Count
    """Positions that were compared."""
    reference_perplexity: NonNegative
    weights: Figures
    """The served weights, keys and values in float32."""
    kv_cache: Figures
    """The reference's weights, keys and values in the served cache."""
    both: Figures
    """What is served."""
    seconds: NonNegative
    """That it took."""


@dataclass(frozen=True, slots=True)
class CertifyJob(_Json):
    """What to compare with what. All folders are on this machine."""

    engine: EngineConfig
    """How the base is served. What only says how much at once does not matter."""
    reference: str | None = None
    """Folder of the unquantized model; None: the served one, unless that is a quantized checkpoint."""
    adapter: str | None = None
    """Folder with adapter_config.json and adapter_model.safetensors; None: the base."""
    adapter_digest: str | None = None
    """What the files in `adapter` must have; None: whatever they have."""
    prompts: list[str] | None = None
    """Texts; None: generated ones."""


PARTS: Final = {
    "base": "the served base",
    "reference": "the unquantized reference",
    "quantization": "the quantization",
    "kv_cache_dtype": "what the KV cache stores",
    "positions": "what turns positions",
    "arithmetic": "the processor's arithmetic",
    "adapter": "the adapter",
    "prompts": "the prompts",
    "version": "the version of loraplex",
}
"""All but the runtime, whose own names say what they are."""
DIGESTS: Final = tuple(PARTS[name] for name in ("base", "reference", "adapter", "prompts"))
"""These say nothing to people."""


def runtime_words(runtime: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in runtime.items())


def prompts_digest(prompts: list[str]) -> str:
    """SHA-256 of these texts in this order."""
    return hashlib.sha256(_canonical(prompts)).hexdigest()


def _canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()


def _change(name: str, mine: str | None, theirs: str | None) -> str:
    detail = "" if name in DIGESTS else f" ({mine or 'none'}, now {theirs or 'none'})"
    return f"{name}{detail}"
