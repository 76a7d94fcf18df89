"""split_head: the classification head that an adapter of TaskType SEQ_CLS brings, apart from its other tensors."""

from collections.abc import Mapping, Sequence
from typing import Final

from ..files.config_file import CLASSIFYING, LoraSettings
from ..files.manifest import BaseSignature, HeadLinear, ModuleLora, OutputVector, TensorInfo, TokenRows
from ..files.report import Report

ROOT: Final = "base_model.model."
SAVED: Final = ("", "modules_to_save.", "modules_to_save.default.")
"""What PEFT puts behind the head's name, by version."""
MOST_CLASSES: Final = 1 << 16
AGAIN: Final = "save the whole adapter again"
OTHER: Final = "was this adapter trained on a different model?"
AS_TOKENS: Final = (
    "serve the model that it was trained on as a checkpoint for tokens: "
    "AutoModelForTokenClassification.from_pretrained(base).save_pretrained(folder)"
)
AS_TEXTS: Final = "serve a checkpoint that was not made to classify tokens"

Found = Mapping[str, Sequence[TensorInfo]]
"""Name in the base -> what stands for it."""


def split_head(
    tensors: tuple[TensorInfo, ...], settings: LoraSettings | None, base: BaseSignature, report: Report
) -> tuple[tuple[ModuleLora, ...], tuple[TensorInfo, ...]]:
    """The linears of the head, if there is one that fits, and all other tensors. What is wrong with it is a failure in
    `report`."""
    names = {saved: wanted for wanted in _wanted(base) for saved in _names(wanted, base.head_path)}
    found: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        if tensor.name in names:
            found.setdefault(names[tensor.name], []).append(tensor)
    rest = tuple([tensor for tensor in tensors if tensor.name not in names])
    announced = _is_announced(found, settings, base, report)
    if not announced or not _is_of_this_kind(settings, base, report) or not _is_whole(found, base, report):
        return (), rest
    return tuple([_linear(linear, found) for linear in base.head_linears]), rest


def _names(wanted: str, head: str) -> list[str]:
    """As PEFT calls the tensor."""
    return [f"{ROOT}{head}.{saved}{wanted.removeprefix(f'{head}.')}" for saved in SAVED]


def _wanted(base: BaseSignature) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of the head; a size of 0 is one for each class."""
    wanted: dict[str, tuple[int, ...]] = {}
    for linear in base.head_linears:
        wanted[f"{linear.path}.weight"] = linear.outputs, linear.inputs
        if linear.has_bias:
            wanted[f"{linear.path}.bias"] = (linear.outputs,)
    return wanted


def _is_announced(found: Found, settings: LoraSettings | None, base: BaseSignature, report: Report) -> bool:
    """Whether there is a head, as adapter_config.json says."""
    head = base.head_path
    saves = settings is not None and settings.saves(head)
    if found and settings is not None and not saves:
        report.fail("features", f"{head} has a weight, which modules_to_save does not mention", AGAIN)
    elif not found and settings is not None and saves and settings.raw.get("task_type") in CLASSIFYING:
        report.fail("targets", f"modules_to_save names {head}, which is not in the file", AGAIN)
    return bool(found)


def _is_of_this_kind(settings: LoraSettings | None, base: BaseSignature, report: Report) -> bool:
    """Whether it was trained to classify what heads on this base classify: prompts, or each token."""
    if settings is None or settings.classifies_tokens is base.classifies_tokens:
        return True
    if settings.classifies_tokens:
        report.fail("features", "it classifies tokens, and the base does not", AS_TOKENS)
    else:
        report.fail("features", "it classifies whole texts, and the base classifies tokens", AS_TEXTS)
    return False


def _is_whole(found: Found, base: BaseSignature, report: Report) -> bool:
    """Whether each tensor is there once, in its shape, and all are for as many classes."""
    problems = [problem for name, shape in _wanted(base).items() if (problem := _problem(name, shape, found))]
    if not problems:
        counts = {found[name][0].shape[0] for name, shape in _wanted(base).items() if shape[0] == 0}
        if len(counts) > 1:
            words = f"{base.head_path} has a weight and a bias for different numbers of classes"
            problems.append(("shapes", words, AGAIN))
    for problem in problems:
        report.fail(*problem)
    return not problems


def _problem(name: str, shape: tuple[int, ...], found: Found) -> tuple[str, str, str] | None:
    """As Report.fail takes it."""
    word, tensors = name.removesuffix(".weight"), found.get(name, ())
    if not tensors:
        return "modules", f"the classification head lacks {name}", AGAIN
    if len(tensors) > 1:
        return "modules", f"{word} has {len(tensors)} tensors for its weight", AGAIN
    if _fits(tensors[0].shape, shape):
        return None
    words = f"[{', '.join('classes' if size == 0 else str(size) for size in shape)}]"
    most = f" with 1 to {MOST_CLASSES:,} classes" if 0 in shape else ""
    return "shapes", f"{word} is {list(tensors[0].shape)}, not {words}{most}", OTHER


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    sizes = zip(shape, wanted, strict=False)
    return len(shape) == len(wanted) and all(
        size == want if want else 1 <= size <= MOST_CLASSES for size, want in sizes
    )


def _linear(linear: HeadLinear, found: Found) -> ModuleLora:
    [weight] = found[f"{linear.path}.weight"]
    biases = [OutputVector("bias", tensor) for tensor in found.get(f"{linear.path}.bias", ())]
    rows = (TokenRows(weight, None),)
    return ModuleLora(0, linear.path, 0, 1.0, None, None, vectors=tuple(biases), rows=rows)
