"""VeRA: delta = diag(b) B diag(d) A, with one A and one B, as large as the largest linear needs, for all linears."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from ..report import Report
from .factors import Change, Unfit, thin
from .source import Module

PARTS: Final = frozenset({"vera_lambda_b", "vera_lambda_d", "vera_A", "vera_B"})


def change(module: Module) -> Change:
    rank = module.rank
    columns, rows = module.matrix_shape("vera_A")[1], module.matrix_shape("vera_B")[0]
    if columns < module.inputs or rows < module.outputs:
        raise Unfit(f"needs a vera_A and vera_B for [{module.outputs}, {module.inputs}], not [{rows}, {columns}]")
    right = module.read("vera_A", rank, columns)[:, : module.inputs]
    left = module.read("vera_B", rows, rank)[: module.outputs]
    outer, inner = module.read("vera_lambda_b", module.outputs), module.read("vera_lambda_d", rank)
    return thin(left * outer[:, None], inner[:, None] * right)


def require_projection(raw: Mapping[str, Any], shared: Collection[str], report: Report) -> None:
    """Without A and B in the file, PEFT draws them with torch's generator, which no other program need repeat."""
    if raw.get("save_projection") is not True or not {"vera_A", "vera_B"} <= set(shared):
        message = "vera_A and vera_B were not saved: they would have to be drawn at random again"
        report.fail("modules", message, "set save_projection=True in the VeraConfig and save the adapter again")
