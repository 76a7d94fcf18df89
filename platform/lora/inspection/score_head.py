"""split_head: the classification head that an adapter of TaskType SEQ_CLS brings, apart from its other tensors."""

from collections.abc import Sequence
from typing import Final

from ..files.config_file import LoraSettings
from ..files.manifest import SCORE, BaseSignature, ModuleLora, TensorInfo, TokenRows
from ..files.report import Report

NAMES: Final = frozenset(
    f"base_model.model.{SCORE}.{suffix}"
    for suffix in ("weight", "modules_to_save.weight", "modules_to_save.default.weight")
)
"""As PEFT calls its one tensor, by version."""
MOST_CLASSES: Final = 1 << 16


def split_head(
    tensors: tuple[TensorInfo, ...], settings: LoraSettings | None, base: BaseSignature, report: Report
) -> tuple[ModuleLora | None, tuple[TensorInfo, ...]]:
    """The head, if there is one that fits, and all other tensors. What is wrong with it is a failure in `report`."""
    heads = [tensor for tensor in tensors if tensor.name in NAMES]
    rest = tuple([tensor for tensor in tensors if tensor.name not in NAMES])
    _compare(heads, settings, report)
    if len(heads) != 1:
        return None, rest
    shape = heads[0].shape
    if len(shape) != 2 or shape[1] != base.hidden_size or not 1 <= shape[0] <= MOST_CLASSES:
        report.fail(
            "shapes",
            f"{SCORE} is {list(shape)}, not [classes, {base.hidden_size}] with 1 to {MOST_CLASSES:,} classes",
            "was this adapter trained on a different model?",
        )
        return None, rest
    return ModuleLora(0, SCORE, 0, 1.0, None, None, rows=(TokenRows(heads[0], None),)), rest


def _compare(heads: Sequence[TensorInfo], settings: LoraSettings | None, report: Report) -> None:
    """With what adapter_config.json says."""
    saves = settings is not None and settings.saves(SCORE)
    again = "save the whole adapter again"
    if len(heads) > 1:
        report.fail("modules", f"{SCORE} has {len(heads)} tensors for its weight", again)
    elif heads and settings is not None and not saves:
        report.fail("features", f"{SCORE} has a weight, which modules_to_save does not mention", again)
    elif not heads and settings is not None and saves and settings.raw.get("task_type") == "SEQ_CLS":
        report.fail("targets", f"modules_to_save names {SCORE}, which is not in the file", again)
