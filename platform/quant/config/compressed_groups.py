"""The config_groups of compressed-tensors: schemes of weights, each with the modules it is meant for. No torch.

https://github.com/vllm-project/compressed-tensors (quantization/quant_config.py, utils/match.py)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .config_fields import flag, integer, refused, section, strings
from .layouts import Activations, Float8Layout, IntegerLayout, Layout
from .module_names import Target, parse_targets

EMBEDDING: Final = "model.embed_tokens"
FORMATS: Final = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class KvCacheScheme:
    """How the tool that made the checkpoint wants keys and values cached; its scales lie beside the weights."""

    type: str
    """float or int."""
    bits: int
    strategy: str
    """tensor, or attn_head for one scale a head."""
    dynamic: bool
    """Without scales in the checkpoint."""


@dataclass(frozen=True, slots=True)
class CompressedGroups:
    schemes: tuple[tuple[Target, Layout | None], ...]
    """In the order in which they are asked: names, then patterns, then classes."""
    ignored: tuple[Target, ...]

    def layout_of(self, *names: str) -> Layout | None:
        if self.ignores(*names):
            return None
        named = (layout for target, layout in self.schemes if target.names(*names) or target.is_class)
        return next(named, None)

    def ignores(self, *names: str) -> bool:
        return any(target.is_class or target.names(*names) for target in self.ignored)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(layout for _, layout in self.schemes if layout is not None)


def parse_groups(said: Mapping[str, Any]) -> tuple[CompressedGroups, KvCacheScheme | None]:
    """ValueError for what would compute something else than the weights say."""
    _refuse_what_is_not_weights(said)
    groups = said.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise ValueError("config_groups of compressed-tensors in config.json must be an object of schemes")
    schemes = {
        target: _layout(name, group, said.get("format"))
        for name, group in groups.items()
        for target in parse_targets(strings(group, "targets"))
    }
    ordered = sorted(schemes.items(), key=lambda scheme: _precedence(scheme[0]))
    ignored = parse_targets(strings(said, "ignore"))
    _refuse_embeddings(schemes, ignored)
    return CompressedGroups(tuple(ordered), ignored), _kv_cache(said.get("kv_cache_scheme"))


def _precedence(target: Target) -> tuple[bool, bool, str]:
    return target.is_class, target.pattern is not None, target.text


def _refuse_what_is_not_weights(said: Mapping[str, Any]) -> None:
    sparsity = section(said, "sparsity_config")
    if sparsity.get("format", "dense") != "dense":
        raise refused(f"compressed-tensors with sparsity {sparsity['format']!r}")
    if section(said, "transform_config").get("config_groups"):
        raise refused(
            "compressed-tensors with transforms (transform_config), which would have to be applied as it runs"
        )


def _refuse_embeddings(schemes: Mapping[Target, Layout | None], ignored: Iterable[Target]) -> None:
    if any(target.names(EMBEDDING) or target.text == "Embedding" for target in ignored):
        return
    for target, layout in schemes.items():
        if layout is not None and (target.names(EMBEDDING) or target.text == "Embedding"):
            raise refused(f"compressed-tensors with quantized embeddings (targets, {target.text!r})")


def _layout(name: str, group: Mapping[str, Any], common: Any) -> Layout | None:
    if group.get("weights") is None:
        return None
    weights = section(group, "weights")
    stored = group.get("format") or common
    if stored not in FORMATS:
        raise refused(f"compressed-tensors format {stored!r} ({name})")
    kind, bits = str(weights.get("type", "int")).lower(), integer(weights, "num_bits", 8)
    words = f"compressed-tensors {stored} with {kind}{bits} weights ({name})"
    if weights.get("dynamic"):
        raise refused(f"{words} and dynamic scales")
    if kind == "float" and bits == 8 and stored in ("float-quantized", "naive-quantized"):
        return _float8(weights, group.get("input_activations"), words)
    if kind == "int" and bits in (4, 8) and stored != "float-quantized":
        return _integers(weights, bits, stored == "pack-quantized", words)
    raise refused(words)


def _strategy(weights: Mapping[str, Any]) -> tuple[str, int | None]:
    """The strategy as its tools infer it, and its group size."""
    size = integer(weights, "group_size", 0)
    inferred = {0: "tensor", -1: "channel"}.get(size, "group")
    strategy = str(weights.get("strategy") or inferred).lower()
    if strategy == "group" and size < 1:
        raise ValueError(f"the strategy group of compressed-tensors needs a positive group_size, got {size}")
    return strategy, size if strategy == "group" else None


def _integers(weights: Mapping[str, Any], bits: int, packed: bool, words: str) -> Layout:
    strategy, size = _strategy(weights)
    if strategy not in ("tensor", "channel", "group"):
        raise refused(f"{words} by {strategy}")
    order = weights.get("actorder")
    if order not in (None, False, True, "group", "dynamic", "weight", "static"):
        raise refused(f"{words} and actorder {order!r}")
    return IntegerLayout(
        bits=bits,
        group_size=size,
        one_scale=strategy == "tensor",
        symmetric=flag(weights, "symmetric", True),
        ordered=order in (True, "group", "dynamic"),
        packed=packed,
    )


def _float8(weights: Mapping[str, Any], inputs: Any, words: str) -> Layout:
    strategy, size = _strategy(weights)
    if not flag(weights, "symmetric", True):
        raise refused(f"{words} and zero points")
    blocks: dict[str, tuple[int | None, int | None]] = {
        "tensor": (None, None),
        "channel": (1, None),
        "group": (1, size),
        "block": (None, None),
    }
    if strategy not in blocks:
        raise refused(f"{words} by {strategy}")
    block = _structure(weights.get("block_structure")) if strategy == "block" else blocks[strategy]
    activations = _activations(inputs) if strategy in ("tensor", "channel") else "as they are"
    return Float8Layout(block=block, scale_names=("weight_scale",), activations=activations)


def _activations(said: Any) -> Activations:
    """What is not float8 by token or tensor is left as it is. A dynamic scale of the whole tensor is one of each token
    here: an answer must not depend on what is computed beside it."""
    if not isinstance(said, dict) or not flag(said, "symmetric", True):
        return "as they are"
    kind, strategy = str(said.get("type", "int")).lower(), said.get("strategy") or "tensor"
    if (kind, integer(said, "num_bits", 8)) != ("float", 8):
        return "as they are"
    if said.get("dynamic") is True and strategy in ("tensor", "token"):
        return "by token"
    return "static" if not said.get("dynamic") and strategy == "tensor" else "as they are"


def _structure(said: Any) -> tuple[int, int]:
    sizes = said.split("x") if isinstance(said, str) else said
    try:
        rows, columns = (int(size) for size in sizes)
    except (TypeError, ValueError):
        rows = columns = 0
    if min(rows, columns) < 1:
        raise ValueError(f"block_structure of compressed-tensors must be two positive integers, got {said!r}")
    return rows, columns


def _kv_cache(said: Any) -> KvCacheScheme | None:
    if said is None:
        return None
    if not isinstance(said, dict):
        raise ValueError(f"kv_cache_scheme of compressed-tensors must be an object, got {said!r}")
    return KvCacheScheme(
        type=str(said.get("type", "int")).lower(),
        bits=integer(said, "num_bits", 8),
        strategy=str(said.get("strategy") or "tensor"),
        dynamic=bool(said.get("dynamic", False)),
    )
