"""match_modules: every tensor must land on a linear of the base, in pairs that fit it and the configuration."""

import re
from dataclasses import dataclass, field
from typing import Final

from .config_file import MAX_RANK, LoraSettings
from .manifest import BaseSignature, ModuleLora, TensorInfo
from .report import Report, enumerate_some, quote

PARENTS: Final = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
OTHER_BASE: Final = "was this adapter trained on another model?"

_TENSOR: Final = re.compile(
    r"base_model\.model\.model\.layers\.(0|[1-9][0-9]{0,4})\.(self_attn|mlp)\.([a-z]+_proj)"
    r"\.lora_([AB])(?:\.default)?\.weight"
)


@dataclass(slots=True)
class Pair:
    a: TensorInfo | None = None
    b: TensorInfo | None = None


@dataclass(slots=True)
class Problems:
    """Sentences by kind of problem: thousands of tensors with one fault make one finding."""

    names: dict[str, list[str]] = field(default_factory=dict)
    """reason -> tensor names"""
    pairs: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)


def match_modules(
    tensors: tuple[TensorInfo, ...], settings: LoraSettings | None, base: BaseSignature, report: Report
) -> tuple[ModuleLora, ...]:
    """The pairs by layer and kind. Whatever does not fit is a failure in `report`.

    Without settings, which have then been refused already, names and shapes are still judged.
    """
    problems = Problems()
    pairs = _pair_up(tensors, base, problems)
    modules = [_fit(place, pair, settings, base, problems) for place, pair in sorted(pairs.items())]
    _report(problems, report)
    fitting = tuple(module for module in modules if module is not None)
    if settings is not None:
        _compare_targets(set(pairs), settings, base, report)
    report.settle("modules", f"all {len(tensors)} tensors land on {len(pairs)} modules of the base")
    return fitting


def module_path(layer: int, kind: str) -> str:
    """The module's name in the base model, as PEFT matches names against it."""
    return f"model.layers.{layer}.{PARENTS[kind]}.{kind}"


def _pair_up(tensors: tuple[TensorInfo, ...], base: BaseSignature, problems: Problems) -> dict[tuple[int, str], Pair]:
    pairs: dict[tuple[int, str], Pair] = {}
    for tensor in tensors:
        match = _TENSOR.fullmatch(tensor.name)
        reason = _misplacement(tensor.name, match, base)
        if reason is not None or match is None:
            problems.names.setdefault(reason or "", []).append(quote(tensor.name))
            continue
        pair = pairs.setdefault((int(match[1]), match[3]), Pair())
        side = "a" if match[4] == "A" else "b"
        if getattr(pair, side) is not None:
            problems.pairs.append(f"{_module_words(int(match[1]), match[3])} has two tensors lora_{match[4]}")
        setattr(pair, side, tensor)
    return pairs


def _misplacement(name: str, match: re.Match[str] | None, base: BaseSignature) -> str | None:
    """Why the tensor lands nowhere; None when it does."""
    if match is None:
        return next((reason for part, reason in _FOREIGN if part in name), "not LoRA tensors of a linear of the base")
    layer, parent, kind = int(match[1]), match[2], match[3]
    if PARENTS.get(kind) != parent or kind not in base.kinds:
        return "the base has no such linear"
    if layer >= base.num_layers:
        return f"the base has {base.num_layers} layers, numbered from 0; {OTHER_BASE}"
    return None


_FOREIGN: Final = (
    ("lora_magnitude_vector", "DoRA is not served"),
    ("lora_embedding_", "LoRA on the embedding is not served"),
    ("embed_tokens", "LoRA on the embedding is not served"),
    ("lm_head", "LoRA on the output head is not served"),
    (".experts.", "LoRA on experts is not served"),
    ("modules_to_save", "full copies of base modules are not served"),
    (".bias", "trained biases are not served"),
    ("base_model.model.layers.", "trained on the model without its head: train it on the model for causal language"),
)
"""Part of a name -> why such tensors are not served; first match."""


def _fit(
    place: tuple[int, str], pair: Pair, settings: LoraSettings | None, base: BaseSignature, problems: Problems
) -> ModuleLora | None:
    words = _module_words(*place)
    if pair.a is None or pair.b is None:
        missing, present = ("lora_A", "lora_B") if pair.a is None else ("lora_B", "lora_A")
        problems.pairs.append(f"{words} has {present} but no {missing}")
        return None
    if not _shapes_fit(words, pair.a, pair.b, base.kinds[place[1]], problems) or settings is None:
        return None
    rank, path = pair.a.shape[0], module_path(*place)
    if rank != settings.rank_of(path):
        problems.ranks.append(f"{words} has rank {rank}, adapter_config.json says {settings.rank_of(path)}")
        return None
    return ModuleLora(*place, rank, settings.scaling_of(path), pair.a, pair.b)


def _shapes_fit(words: str, a: TensorInfo, b: TensorInfo, shape: tuple[int, int], problems: Problems) -> bool:
    inputs, outputs = shape
    before = len(problems.shapes) + len(problems.ranks)
    if len(a.shape) != 2 or len(b.shape) != 2:
        problems.shapes.append(f"{words}: A is {list(a.shape)} and B is {list(b.shape)}, but both must be matrices")
        return False
    if a.shape[1] != inputs:
        problems.shapes.append(f"{words}: A is {list(a.shape)} but the base has {inputs} inputs")
    if b.shape[0] != outputs:
        problems.shapes.append(f"{words}: B is {list(b.shape)} but the base has {outputs} outputs")
    if a.shape[0] != b.shape[1]:
        problems.ranks.append(f"{words}: A has rank {a.shape[0]}, B has rank {b.shape[1]}")
    elif not 1 <= a.shape[0] <= MAX_RANK:
        problems.ranks.append(f"{words} has rank {a.shape[0]}; ranks from 1 to {MAX_RANK} are served")
    return len(problems.shapes) + len(problems.ranks) == before


def _report(problems: Problems, report: Report) -> None:
    for reason, names in problems.names.items():
        report.fail("modules", f"{enumerate_some(names)}: {reason}", "tensors that would be ignored change the answers")
    report.fail_all("modules", problems.pairs, "save the whole adapter again")
    report.fail_all("shapes", problems.shapes, OTHER_BASE)
    report.fail_all("ranks", problems.ranks, "r, rank_pattern and the tensors must agree")
    report.settle("shapes", "all tensors fit the base")
    report.settle("ranks", "tensors and configuration agree on every rank")


def _compare_targets(
    present: set[tuple[int, str]], settings: LoraSettings, base: BaseSignature, report: Report
) -> None:
    everywhere = [(layer, kind) for layer in range(base.num_layers) for kind in base.kinds]
    targeted = {place for place in everywhere if settings.targets(place[0], module_path(*place))}
    absent = [_module_words(*place) for place in sorted(targeted - present)]
    if absent:
        message = f"target_modules asks for modules without tensors: {enumerate_some(absent)}"
        report.fail("targets", message, "save the whole adapter again, or name only what was trained")
    extra = [_module_words(*place) for place in sorted(present - targeted)]
    if extra:
        message = f"there are tensors for modules that target_modules does not name: {enumerate_some(extra)}"
        report.fail("targets", message, "add them to target_modules, or remove the tensors")
    report.settle("targets", "target_modules and the tensors agree")


def _module_words(layer: int, kind: str) -> str:
    return f"{kind} of layer {layer}"
