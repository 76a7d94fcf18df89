"""read_settings: adapter_config.json by a schema of our own, for LoRA, IA3 and trained tokens.

PEFT's configuration can name modules to import and hold regular expressions to run; here every name is a literal, and
every feature that would change the output and is not served is refused, as is every key that nobody here knows.
"""

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar

from .activation import KEY as INVOCATION
from .activation import read_invocation_tokens, refuse_invocation_tokens
from .config_fields import Fields
from .manifest import EMBEDDING, BaseSignature
from .report import Report, quote
from .strict_json import parse_json
from .tensor_names import MODULES, ModuleLocation
from .unserved import UNSERVED, base_changing_start, mention_starts, refuse_unknown

Value = TypeVar("Value", int, float)

MAX_CONFIG: Final = 512 << 10
"""Bytes: a list of all tokens that may be trained fits in."""

_READ: Final = {
    "r", "lora_alpha", "use_rslora", "bias", "target_modules", "exclude_modules",
    "rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern", "init_lora_weights", "auto_mapping",
    "task_type", "base_model_name_or_path", "peft_type", "use_dora", "lora_bias", "feedforward_modules",
    "modules_to_save", "trainable_token_indices", "ensure_weight_tying",
    INVOCATION,
}  # fmt: skip
TOKENS: Final = "TRAINABLE_TOKENS"
"""The kind that has rows of single tokens and nothing else; its keys:"""
_READ_OF_TOKENS: Final = {"token_indices", "init_weights"}
FEEDFORWARD: Final = "feedforward_modules"
TOKEN_TASK: Final = "TOKEN_CLS"
CLASSIFYING: Final = ("SEQ_CLS", TOKEN_TASK)
"""Task types of adapters that bring a head."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The part of adapter_config.json that decides the output. A path is e.g. model.layers.3.self_attn.q_proj."""

    raw: dict[str, Any]
    rank: int = 0
    alpha: float = 1.0
    use_rslora: bool = False
    target_modules: frozenset[str] | None = frozenset()
    """None: all linears."""
    exclude_modules: frozenset[str] = frozenset()
    layers: frozenset[int] | None = None
    """None: all layers."""
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    peft_type: str = "LORA"
    """LORA, IA3 or TRAINABLE_TOKENS."""
    use_dora: bool = False
    lora_bias: bool = False
    trains_biases: bool = False
    """Biases of the base's linears are in the file, to be used instead of the base's own."""
    feedforward_modules: frozenset[str] = frozenset()
    """IA3: where the vector scales the input."""
    modules_to_save: frozenset[str] = frozenset()
    """Modules that are in the file as a whole."""
    token_indices: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Name of the embedding or the head -> the tokens whose rows are in the file."""
    ties_ends: bool = False
    """Where the base's embedding and head are one weight, what names the embedding means the head as well."""
    invocation_tokens: tuple[int, ...] = ()
    """It acts on a prompt from the last occurrence of these on; none: on all of it."""

    @property
    def base_model(self) -> str:
        return str(self.raw.get("base_model_name_or_path") or "")

    @property
    def classifies_tokens(self) -> bool:
        """Whether the head that it brings, if it does, is one for the classes of tokens."""
        mapping = self.raw.get("auto_mapping")
        trained_on = str(mapping.get("base_model_class")) if isinstance(mapping, dict) else ""
        task = self.raw.get("task_type")
        return task == TOKEN_TASK or (task is None and trained_on.endswith("ForTokenClassification"))

    def rank_of(self, path: str) -> int:
        return _first_match(self.rank_pattern, path, self.rank)

    def alpha_of(self, path: str) -> float:
        return _first_match(self.alpha_pattern, path, self.alpha)

    def scaling_of(self, path: str) -> float:
        alpha, rank = self.alpha_of(path), self.rank_of(path)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def scales_input(self, path: str) -> bool:
        """IA3: PEFT compares the ends of names, dots or not."""
        return path.endswith(tuple(self.feedforward_modules))

    def saves(self, path: str) -> bool:
        """PEFT compares the ends of names, dots or not."""
        return path.endswith(tuple(self.modules_to_save))

    def tokens_of(self, path: str, kind: str) -> tuple[int, ...] | None:
        """The tokens that PEFT would train rows of, of the embedding or of the head; None: no adapter of single tokens
        is there."""
        names = names_of(path) | {kind} if self.token_indices else ()
        return next((tokens for name, tokens in self.token_indices.items() if name in names), None)

    def targets(self, place: ModuleLocation, is_linear: bool) -> bool:
        """Whether PEFT would put an adapter on the module; a module named in full needs no layer number.

        all-linear means every linear but the head. What is saved as a whole, or a part of that, gets none.
        """
        names = names_of(place.path)
        if names & self.exclude_modules or any(f".{name}." in f".{place.path}." for name in self.modules_to_save):
            return False
        if self.target_modules is None:
            return is_linear
        if place.path in self.target_modules:
            return True
        in_layers = self.layers is None or (not place.once and place.layer in self.layers)
        return in_layers and bool(names & self.target_modules)


def read_settings(config: bytes, report: Report, base: BaseSignature | None = None) -> LoraSettings | None:
    """None when a value that decides the output is missing or refused; `report` then says each of them.

    `base`: what names of the embedding and of the layers mean; None: those of most models.
    """
    if len(config) > MAX_CONFIG:
        report.fail("config", f"adapter_config.json has {len(config):,} bytes; at most {MAX_CONFIG:,} are allowed")
        return None
    try:
        raw = parse_json(config, max_depth=6)
    except ValueError as error:
        report.fail("config", f"adapter_config.json cannot be read: {error}", "upload the file as saved by PEFT")
        return None
    if not _is_served(raw, report):
        return None
    before = len(report.findings)
    fields = Fields(raw, report, _embedding_names(base))
    settings = {"LORA": _read_lora, "IA3": _read_ia3, TOKENS: _read_tokens}[raw["peft_type"]](fields)
    _refuse_unserved(raw, "layers" if base is None else base.layers_path.rpartition(".")[2], report)
    refuse_unknown(raw, _READ | _READ_OF_TOKENS if settings.peft_type == TOKENS else _READ, report)
    refused = any(finding.level == "fail" for finding in report.findings[before:])
    report.settle("config", "all settings in adapter_config.json are supported")
    return None if refused else settings


def _is_served(raw: dict[str, Any], report: Report) -> bool:
    kind = raw.get("peft_type")
    if kind in ("LORA", "IA3", TOKENS):
        return True
    if kind is None:
        report.fail("config", "adapter_config.json has no peft_type", 'add "peft_type": "LORA" if it is a LoRA')
    else:
        report.fail(
            "config",
            f"peft_type is {quote(kind)}; LORA, IA3 and {TOKENS} are supported, "
            "and ADALORA, LOHA, LOKR and VERA are converted at upload",
            "train or convert the adapter as LoRA",
        )
    return False


def _read_ia3(fields: Fields) -> LoraSettings:
    refuse_invocation_tokens(fields.raw, fields.report)
    return LoraSettings(
        raw=fields.raw,
        target_modules=fields.target_modules(),
        exclude_modules=fields.names("exclude_modules"),
        peft_type="IA3",
        modules_to_save=fields.names("modules_to_save"),
        feedforward_modules=fields.names(FEEDFORWARD),
    )


def _read_tokens(fields: Fields) -> LoraSettings:
    refuse_invocation_tokens(fields.raw, fields.report)
    return LoraSettings(raw=fields.raw, peft_type=TOKENS, token_indices=fields.trained_tokens())


PEFT_DEFAULT: Final = 8
"""Of r and lora_alpha, where a file has neither key nor null."""


def _read_lora(fields: Fields) -> LoraSettings:
    raw = fields.raw
    return LoraSettings(
        raw=raw,
        rank=fields.rank(raw.get("r", PEFT_DEFAULT), "r"),
        alpha=fields.alpha(raw.get("lora_alpha", PEFT_DEFAULT), "lora_alpha"),
        use_rslora=fields.flag("use_rslora"),
        target_modules=fields.target_modules(),
        exclude_modules=fields.names("exclude_modules"),
        layers=fields.layers(),
        rank_pattern={
            name: fields.rank(rank, f"rank_pattern[{quote(name)}]")
            for name, rank in fields.pattern("rank_pattern").items()
        },
        alpha_pattern={
            name: fields.alpha(alpha, f"alpha_pattern[{quote(name)}]")
            for name, alpha in fields.pattern("alpha_pattern").items()
        },
        use_dora=fields.flag("use_dora"),
        lora_bias=fields.flag("lora_bias"),
        trains_biases=fields.trains_biases(),
        modules_to_save=fields.names("modules_to_save"),
        token_indices=fields.token_indices(),
        ties_ends=fields.flag("ensure_weight_tying"),
        invocation_tokens=read_invocation_tokens(raw, fields.report),
    )


def _embedding_names(base: BaseSignature | None) -> frozenset[str]:
    own = f"model.{EMBEDDING}" if base is None else base.path_of(0, EMBEDDING)
    return frozenset(name for name in names_of(own) if not name.startswith("^"))


def _refuse_unserved(raw: dict[str, Any], layers: str, report: Report) -> None:
    for key, (reason, remedy) in UNSERVED.items():
        if raw.get(key):
            report.fail("features", f"{key} is set: {reason}", remedy)
    if raw.get("layers_pattern") not in (None, "", [], layers, [layers]):
        report.fail("features", f"layers_pattern is {quote(raw['layers_pattern'])}; layers must be under '{layers}'")
    start = base_changing_start(raw.get("init_lora_weights"))
    if start is not None:
        report.fail("features", *start)
    else:
        mention_starts(raw, report)
    _judge_auto_mapping(raw.get("auto_mapping"), report)
    if raw.get("task_type") not in (None, "CAUSAL_LM", "FEATURE_EXTRACTION", *CLASSIFYING):
        report.warn("features", f"task_type is {quote(raw['task_type'])}; it is served for text generation")
    report.settle("features", "all adapter features are supported")


def _judge_auto_mapping(value: object, report: Report) -> None:
    """PEFT writes the base's class here when task_type was left out; that stock value is inert, others name code."""
    if value is None:
        return
    library = value.get("parent_library") if isinstance(value, dict) else None
    if not isinstance(library, str) or not re.fullmatch(r"transformers(\.[a-z0-9_]+)*", library):
        remedy = "remove auto_mapping and set task_type to CAUSAL_LM"
        report.fail("features", f"auto_mapping is {quote(value)}: adapters cannot import code", remedy)


@lru_cache(maxsize=MODULES)
def names_of(path: str) -> frozenset[str]:
    """The literals that name the module by PEFT's rule: its path and the ends of it; with ^ the path only."""
    parts = path.split(".")
    return frozenset([".".join(parts[start:]) for start in range(len(parts))] + ["^" + path])


def _first_match(pattern: dict[str, Value], path: str, default: Value) -> Value:
    names = names_of(path) if pattern else ()
    return next((value for name, value in pattern.items() if name in names), default)
