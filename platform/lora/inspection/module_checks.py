"""match_modules: every tensor must land on a module of the base, and fit it and the configuration."""

from dataclasses import dataclass, field
from typing import Final

from ..files.config_fields import MAX_RANK
from ..files.config_file import LoraSettings
from ..files.manifest import EMBEDDING, HEAD, BaseSignature, ModuleLora, OutputVector, Role, TensorInfo
from ..files.pattern_keys import refuse_misread
from ..files.report import Report, enumerate_some, quote
from ..files.tensor_names import (
    OTHER_BASE,
    TRAINING_AID,
    ModuleLocation,
    as_named,
    every_place,
    locate,
    place_of,
    reached,
)
from .vocabulary_checks import expected_rank, match_rows, saves_place, targets_place, trained_tokens

ROLES: Final[tuple[Role, ...]] = ("magnitude", "bias", "lora_bias", "gain", "norm", "norm_bias")
ADAPTED: Final = frozenset({"A", "B", "magnitude", "lora_bias", "gain"})
"""Parts that an adapter of the module consists of; the others stand instead of what the base has."""

Parts = dict[str, TensorInfo]


@dataclass(slots=True)
class Problems:
    """Sentences by kind of problem: thousands of tensors with one fault make one finding."""

    names: dict[str, list[str]] = field(default_factory=dict)
    """reason -> tensor names"""
    pairs: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)


def match_modules(
    tensors: tuple[TensorInfo, ...], settings: LoraSettings | None, base: BaseSignature, report: Report
) -> tuple[ModuleLora, ...]:
    """What the file has for each module, by layer and kind. Whatever does not fit is a failure in `report`.

    Without settings, which have then been refused already, names and shapes are still judged.
    """
    problems, base = Problems(), as_named([tensor.name for tensor in tensors], base)
    found = _sort(tensors, base, problems)
    if settings is not None:
        for place, parts in found.items():
            _judge_parts(place, parts, settings, base, problems)
    modules = [
        _fit(place, parts, _resized_to(place, found, base), settings, base, problems)
        for place, parts in sorted(found.items())
    ]
    with_rows = match_rows([module for module in modules if module is not None], found, settings, base, problems.shapes)
    if settings is not None:
        refuse_misread(settings, [place.path for place in every_place(base)], report)
    _report(problems, base, report)
    if settings is not None and not problems.names:
        _compare_targets({place for place, parts in found.items() if parts.keys() & ADAPTED}, settings, base, report)
        _compare_saved(found, settings, base, report)
    report.settle("modules", f"all {len(tensors)} tensors match {len(found)} modules of the base")
    return with_rows if settings is None or settings.peft_type != "IA3" else _move_gains(with_rows, base)


def _sort(tensors: tuple[TensorInfo, ...], base: BaseSignature, problems: Problems) -> dict[ModuleLocation, Parts]:
    found: dict[ModuleLocation, Parts] = {}
    for tensor in tensors:
        location = locate(tensor.name, base)
        if isinstance(location, str):
            problems.names.setdefault(location, []).append(quote(tensor.name))
            continue
        if location.part in found.setdefault(location.place, {}):
            problems.pairs.append(f"{location.place} has two tensors for {_WORDS[location.part]}")
        found[location.place][location.part] = tensor
    return found


def _judge_parts(
    place: ModuleLocation, parts: Parts, settings: LoraSettings, base: BaseSignature, problems: Problems
) -> None:
    """The file must have what adapter_config.json announces, and nothing else."""
    announced = {
        "magnitude": settings.use_dora,
        "lora_bias": settings.lora_bias and place.kind != EMBEDDING,
        "gain": settings.peft_type == "IA3",
        **dict.fromkeys("AB", settings.peft_type == "LORA"),
        "bias": settings.trains_biases,
        "rows": trained_tokens(place, settings, base) is not None,
        TRAINING_AID: bool(settings.raw.get("velora_config")),
        **dict.fromkeys(("norm", "copy", "original"), saves_place(place, settings, base)),
        "norm_bias": settings.trains_biases or saves_place(place, settings, base),
    }
    for part in sorted(parts.keys() & announced.keys()):
        if not announced[part]:
            problems.parts.append(f"{place} has {_WORDS[part]}, which adapter_config.json does not mention")
    for part in ("magnitude", "lora_bias", "gain"):
        if parts.keys() & ADAPTED and announced[part] and part not in parts:
            problems.parts.append(f"{place} lacks {_WORDS[part]}, which adapter_config.json requires")
    if TRAINING_AID in parts and "A" not in parts:
        problems.parts.append(f"{place} has {_WORDS[TRAINING_AID]} without a LoRA")
    for part in ("copy", "original"):
        if part in parts and "all rows" not in parts:
            problems.parts.append(f"{place} has {_WORDS[part]}, but not the trained weight itself")


_WORDS: Final = {
    "A": "lora_A",
    "B": "lora_B",
    "magnitude": "a magnitude vector (use_dora)",
    "lora_bias": "a bias of lora_B (lora_bias)",
    "gain": "an IA3 vector",
    "bias": "a trained bias",
    "rows": "trained tokens (trainable_token_indices)",
    "all rows": "its weight",
    "norm": "a trained norm (modules_to_save)",
    "norm_bias": "a trained bias of a norm",
    TRAINING_AID: "a projection of VeLoRA's (velora_config)",
    "copy": "a copy of its weight (modules_to_save)",
    "original": "the weight that was trained on (original_module)",
}


def _fit(
    place: ModuleLocation,
    parts: Parts,
    size: int,
    settings: LoraSettings | None,
    base: BaseSignature,
    problems: Problems,
) -> ModuleLora | None:
    if size:
        problems.resized.append(f"{place} has a LoRA and {size:,} rows, the base {base.vocab_size:,}")
        return None
    vectors = tuple([OutputVector(role, parts[role]) for role in ROLES if role in parts])
    fitting = [_vector_fits(place, vector, settings, base, problems) for vector in vectors]
    if parts.keys() & set("AB"):
        return _fit_pair(place, parts, vectors, settings, base, problems)
    return ModuleLora(place.layer, place.kind, 0, 1.0, None, None, vectors) if all(fitting) else None


def _resized_to(place: ModuleLocation, found: dict[ModuleLocation, Parts], base: BaseSignature) -> int:
    """Tokens of the vocabulary that it is adapted over, where that is another than the base's; 0: it is not."""
    if place.kind not in (EMBEDDING, HEAD) or "A" not in found[place]:
        return 0
    of_tied = found.get(place_of(base, 0, EMBEDDING), {}) if base.tied else {}
    whole = found[place].get("all rows") or of_tied.get("all rows")
    if whole is None or len(whole.shape) != 2 or whole.shape[0] == base.vocab_size:
        return 0
    return whole.shape[0]


def _fit_pair(
    place: ModuleLocation,
    parts: Parts,
    vectors: tuple[OutputVector, ...],
    settings: LoraSettings | None,
    base: BaseSignature,
    problems: Problems,
) -> ModuleLora | None:
    a, b = parts.get("A"), parts.get("B")
    if a is None or b is None:
        missing, present = ("lora_A", "lora_B") if a is None else ("lora_B", "lora_A")
        problems.pairs.append(f"{place} has {present} but no {missing}")
        return None
    module = base.modules[place.kind]
    if not _shapes_fit(place, a, b, (module.inputs, module.outputs), problems) or settings is None:
        return None
    rank, expected = a.shape[0], expected_rank(place, settings, base)
    if rank != expected:
        problems.ranks.append(f"{place} has rank {rank}, adapter_config.json says {expected}")
        return None
    return ModuleLora(place.layer, place.kind, rank, settings.scaling_of(place.path), a, b, vectors)


def _vector_fits(
    place: ModuleLocation, vector: OutputVector, settings: LoraSettings | None, base: BaseSignature, problems: Problems
) -> bool:
    module, shape = base.modules[place.kind], vector.tensor.shape
    expected: tuple[int, ...] = (module.outputs,)
    if vector.role == "gain":
        scales_input = settings is not None and settings.scales_input(place.path)
        if scales_input and module.gains_from is None:
            problems.inputs.append(
                f"{place} is a feedforward module of IA3: input vectors are supported on {_readers(base)}"
            )
        expected = (1, module.inputs) if scales_input else (module.outputs, 1)
    if shape != expected:
        problems.shapes.append(
            f"{place}: {vector.tensor.name.rsplit('.', 1)[-1]} is {list(shape)}, not {list(expected)}"
        )
    return shape == expected


RESIZED: Final = "name it in modules_to_save, or train the added tokens alone by trainable_token_indices"


def _readers(base: BaseSignature) -> str:
    """The linears of which a factor on the inputs can be served."""
    names = [base.word_for(kind) for kind, module in base.modules.items() if module.gains_from is not None]
    return f"{', '.join(dict.fromkeys(names))} only" if names else "no linear of this base"


def _move_gains(modules: tuple[ModuleLora, ...], base: BaseSignature) -> tuple[ModuleLora, ...]:
    """A factor on what goes into down_proj is one on what comes out of up_proj, as the two are multiplied."""
    gains: dict[tuple[int, str], list[OutputVector]] = {}
    for module in modules:
        source = base.modules[module.kind].gains_from
        for vector in module.vectors:
            over_input = vector.tensor.shape[0] == 1 and source is not None
            gains.setdefault((module.layer, source if over_input and source else module.kind), []).append(vector)
    moved = [ModuleLora(*place, 0, 1.0, None, None, tuple(found)) for place, found in sorted(gains.items())]
    return (*moved, *[module for module in modules if module.rows])


def _shapes_fit(
    place: ModuleLocation, a: TensorInfo, b: TensorInfo, shape: tuple[int, int], problems: Problems
) -> bool:
    inputs, outputs = shape
    before = len(problems.shapes) + len(problems.ranks)
    if len(a.shape) != 2 or len(b.shape) != 2:
        problems.shapes.append(f"{place}: A is {list(a.shape)} and B is {list(b.shape)}, but both must be matrices")
        return False
    if a.shape[1] != inputs:
        problems.shapes.append(f"{place}: A is {list(a.shape)} but the base has {inputs} inputs")
    if b.shape[0] != outputs:
        problems.shapes.append(f"{place}: B is {list(b.shape)} but the base has {outputs} outputs")
    if a.shape[0] != b.shape[1]:
        problems.ranks.append(f"{place}: A has rank {a.shape[0]}, B has rank {b.shape[1]}")
    elif not 1 <= a.shape[0] <= MAX_RANK:
        problems.ranks.append(f"{place} has rank {a.shape[0]}; supported ranks are 1 to {MAX_RANK}")
    return len(problems.shapes) + len(problems.ranks) == before


def _report(problems: Problems, base: BaseSignature, report: Report) -> None:
    for reason, names in problems.names.items():
        report.fail(
            "modules",
            f"{enumerate_some(names)}: {reason}",
            "some tensors would be ignored, which would change the answers",
        )
    report.fail_all("modules", problems.pairs, "save the whole adapter again")
    report.fail_all(
        "features", problems.parts, "adapter_config.json and the tensors must come from the same training run"
    )
    instead = f"train with feedforward_modules set to {_readers(base)}, or none"
    report.fail_all("features", problems.inputs, instead)
    report.fail_all("features", problems.resized, RESIZED)
    report.fail_all("shapes", problems.shapes, OTHER_BASE)
    report.fail_all("ranks", problems.ranks, "r, rank_pattern and the tensors must agree")
    report.settle("shapes", "all tensor shapes match the base")
    report.settle("ranks", "tensors and configuration agree on all ranks")


def _compare_targets(present: set[ModuleLocation], settings: LoraSettings, base: BaseSignature, report: Report) -> None:
    adaptable = [place for place in every_place(base) if base.modules[place.kind].role != "norm"]
    targeted = {place for place in adaptable if targets_place(place, settings, base)}
    absent = [str(place) for place in sorted(reached(targeted, present) - present)]
    if absent:
        message = f"target_modules names modules without tensors: {enumerate_some(absent)}"
        report.fail("targets", message, "save the whole adapter again, or name only the trained modules")
    extra = [str(place) for place in sorted(present - targeted)]
    if extra:
        message = f"some tensors belong to modules that target_modules does not name: {enumerate_some(extra)}"
        report.fail("targets", message, "add them to target_modules, or remove the tensors")
    report.settle("targets", "target_modules and the tensors agree")


def _compare_saved(
    found: dict[ModuleLocation, Parts], settings: LoraSettings, base: BaseSignature, report: Report
) -> None:
    """Of linears only what an adapter adds is served; of all other modules also copies as a whole."""
    saved = [place for place in every_place(base) if settings.saves(place.path)]
    linears = [str(place) for place in saved if base.modules[place.kind].role == "linear"]
    if linears:
        message = f"modules_to_save names linear layers: {enumerate_some(linears)}"
        report.fail("features", message, "adapt them with LoRA: name them in target_modules instead")
    absent = [str(place) for place in saved if not _parts_of_whole(place, base) <= found.get(place, {}).keys()]
    if absent:
        message = f"modules_to_save names modules that are not in the file: {enumerate_some(absent)}"
        report.fail("targets", message, "save the whole adapter again")


def _parts_of_whole(place: ModuleLocation, base: BaseSignature) -> set[str]:
    """Of a module that is saved as a whole; of linears, none are served."""
    module = base.modules[place.kind]
    match module.role:
        case "linear":
            return set()
        case "norm":
            return {"norm", "norm_bias"} if module.has_bias else {"norm"}
    return {"all rows"}
