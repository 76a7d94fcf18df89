"""match_modules: every tensor must land on a linear of the base, and fit it and the configuration."""

import re
from dataclasses import dataclass, field
from typing import Final

from .config_file import MAX_RANK, LoraSettings
from .manifest import BaseSignature, ModuleLora, OutputVector, Role, TensorInfo
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
    r"base_model\.model\.model\.layers\.(0|[1-9][0-9]{0,4})\.(self_attn|mlp)\.([a-z]+_proj)\.([a-zA-Z0-9_.]+)"
)
_PARTS: Final = {
    "lora_A.weight": "A",
    "lora_B.weight": "B",
    "lora_B.bias": "lora_bias",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
    "bias": "bias",
    "base_layer.bias": "bias",
    "ia3_l": "gain",
}
"""How PEFT names the tensors of a linear -> what each is: A, B, or the role of a vector."""
ROLES: Final[tuple[Role, ...]] = ("magnitude", "bias", "lora_bias", "gain")

Place = tuple[int, str]
"""Layer and kind."""
Parts = dict[str, TensorInfo]


@dataclass(slots=True)
class Problems:
    """Sentences by kind of problem: thousands of tensors with one fault make one finding."""

    names: dict[str, list[str]] = field(default_factory=dict)
    """reason -> tensor names"""
    pairs: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)


def match_modules(
    tensors: tuple[TensorInfo, ...], settings: LoraSettings | None, base: BaseSignature, report: Report
) -> tuple[ModuleLora, ...]:
    """What the file has for each linear, by layer and kind. Whatever does not fit is a failure in `report`.

    Without settings, which have then been refused already, names and shapes are still judged.
    """
    problems = Problems()
    found = _sort(tensors, base, problems)
    if settings is not None:
        for place, parts in found.items():
            _judge_parts(place, parts, settings, problems)
    modules = [_fit(place, parts, settings, base, problems) for place, parts in sorted(found.items())]
    _report(problems, report)
    if settings is not None and not problems.names:
        adapted = {place for place, parts in found.items() if parts.keys() - {"bias"}}
        _compare_targets(adapted, settings, base, report)
    report.settle("modules", f"all {len(tensors)} tensors land on {len(found)} modules of the base")
    fitting = [module for module in modules if module is not None]
    return tuple(fitting) if settings is None or settings.peft_type == "LORA" else _move_gains(fitting)


def module_path(layer: int, kind: str) -> str:
    """The module's name in the base model, as PEFT matches names against it."""
    return f"model.layers.{layer}.{PARENTS[kind]}.{kind}"


def _sort(tensors: tuple[TensorInfo, ...], base: BaseSignature, problems: Problems) -> dict[Place, Parts]:
    found: dict[Place, Parts] = {}
    for tensor in tensors:
        match = _TENSOR.fullmatch(tensor.name)
        reason = _misplacement(tensor.name, match, base)
        if reason is not None or match is None:
            problems.names.setdefault(reason or "", []).append(quote(tensor.name))
            continue
        place, part = (int(match[1]), match[3]), _part(match[4]) or ""
        if part in found.setdefault(place, {}):
            problems.pairs.append(f"{_module_words(*place)} has two tensors {match[4]}")
        found[place][part] = tensor
    return found


def _part(suffix: str) -> str | None:
    """PEFT names its default adapter in some versions."""
    return _PARTS.get(suffix.replace(".default", "", 1))


def _judge_parts(place: Place, parts: Parts, settings: LoraSettings, problems: Problems) -> None:
    """The file must have what adapter_config.json announces, and nothing else."""
    announced = {
        "magnitude": settings.use_dora,
        "lora_bias": settings.lora_bias,
        "gain": settings.peft_type == "IA3",
        **dict.fromkeys("AB", settings.peft_type == "LORA"),
    }
    adapted = parts.keys() - {"bias"}
    for part in sorted(adapted):
        if not announced[part]:
            problems.parts.append(
                f"{_module_words(*place)} has {_WORDS[part]}, of which adapter_config.json says nothing"
            )
    for part in ROLES:
        if adapted and announced.get(part) and part not in parts:
            problems.parts.append(f"{_module_words(*place)} lacks {_WORDS[part]}, which adapter_config.json announces")
    if "bias" in parts and not settings.trains_biases:
        problems.parts.append(f"{_module_words(*place)} has a trained bias, of which adapter_config.json says nothing")


_WORDS: Final = {
    "A": "lora_A",
    "B": "lora_B",
    "magnitude": "a magnitude vector (use_dora)",
    "lora_bias": "a bias of lora_B (lora_bias)",
    "gain": "an IA3 vector",
}


def _misplacement(name: str, match: re.Match[str] | None, base: BaseSignature) -> str | None:
    """Why the tensor lands nowhere; None when it does."""
    if match is None:
        return next((reason for part, reason in _FOREIGN if part in name), NO_HOME)
    layer, parent, kind = int(match[1]), match[2], match[3]
    if PARENTS.get(kind) != parent or kind not in base.kinds:
        return "the base has no such linear"
    if layer >= base.num_layers:
        return f"the base has {base.num_layers} layers, numbered from 0; {OTHER_BASE}"
    if _part(match[4]) is None:
        return next((reason for part, reason in _FOREIGN if part in name), NO_HOME)
    return None


NO_HOME: Final = "not tensors of an adapter of a linear of the base"
_FOREIGN: Final = (
    ("lora_embedding_", "LoRA on the embedding is not served"),
    ("embed_tokens", "LoRA on the embedding is not served"),
    ("lm_head", "LoRA on the output head is not served"),
    (".experts.", "LoRA on experts is not served"),
    ("modules_to_save", "full copies of base modules are not served"),
    (".bias", "no bias of a linear of the base"),
    ("base_model.model.layers.", "trained on the model without its head: train it on the model for causal language"),
)
"""Part of a name -> why such tensors are not served; first match."""


def _fit(
    place: Place, parts: Parts, settings: LoraSettings | None, base: BaseSignature, problems: Problems
) -> ModuleLora | None:
    vectors = tuple([OutputVector(role, parts[role]) for role in ROLES if role in parts])
    fitting = [_vector_fits(place, vector, settings, base, problems) for vector in vectors]
    if parts.keys() & set("AB"):
        return _fit_pair(place, parts, vectors, settings, base, problems)
    return ModuleLora(*place, 0, 1.0, None, None, vectors) if all(fitting) else None


def _fit_pair(
    place: Place,
    parts: Parts,
    vectors: tuple[OutputVector, ...],
    settings: LoraSettings | None,
    base: BaseSignature,
    problems: Problems,
) -> ModuleLora | None:
    words, a, b = _module_words(*place), parts.get("A"), parts.get("B")
    if a is None or b is None:
        missing, present = ("lora_A", "lora_B") if a is None else ("lora_B", "lora_A")
        problems.pairs.append(f"{words} has {present} but no {missing}")
        return None
    if not _shapes_fit(words, a, b, base.kinds[place[1]], problems) or settings is None:
        return None
    rank, path = a.shape[0], module_path(*place)
    if rank != settings.rank_of(path):
        problems.ranks.append(f"{words} has rank {rank}, adapter_config.json says {settings.rank_of(path)}")
        return None
    return ModuleLora(*place, rank, settings.scaling_of(path), a, b, vectors)


def _vector_fits(
    place: Place, vector: OutputVector, settings: LoraSettings | None, base: BaseSignature, problems: Problems
) -> bool:
    (inputs, outputs), shape, words = base.kinds[place[1]], vector.tensor.shape, _module_words(*place)
    expected: tuple[int, ...] = (outputs,)
    if vector.role == "gain":
        scales_input = settings is not None and settings.scales_input(module_path(*place))
        if scales_input and place[1] != "down_proj":
            problems.parts.append(f"{words} is a feedforward module of IA3: {INPUT_GAIN}")
        expected = (1, inputs) if scales_input else (outputs, 1)
    if shape != expected:
        problems.shapes.append(
            f"{words}: {vector.tensor.name.rsplit('.', 1)[-1]} is {list(shape)}, not {list(expected)}"
        )
    return shape == expected


INPUT_GAIN: Final = "of vectors over inputs only that of down_proj is served"


def _move_gains(modules: list[ModuleLora]) -> tuple[ModuleLora, ...]:
    """A factor on what goes into down_proj is one on what comes out of up_proj, as the two are multiplied."""
    homes: dict[Place, list[OutputVector]] = {}
    for module in modules:
        for vector in module.vectors:
            over_input = vector.tensor.shape[0] == 1 and module.kind == "down_proj"
            homes.setdefault((module.layer, "up_proj" if over_input else module.kind), []).append(vector)
    return tuple([ModuleLora(*place, 0, 1.0, None, None, tuple(found)) for place, found in sorted(homes.items())])


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
    report.fail_all("features", problems.parts, "adapter_config.json and the tensors must be of one training")
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
