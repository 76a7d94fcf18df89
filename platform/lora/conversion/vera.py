"""VeRA: delta = diag(b) B diag(d) A, with one A and one B, as large as the largest linear needs, for all linears."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from ..files.report import Report
from .factors import Change, Unfit, thin
from .source import Module, Shapes

PARTS: Final = frozenset({"vera_lambda_b", "vera_lambda_d", "vera_A", "vera_B"})


def shapes(module: Module) -> Shapes:
    rank = module.rank
    columns, rows = module.matrix_shape("vera_A")[1], module.matrix_shape("vera_B")[0]
    if columns < module.inputs or rows < module.outputs:
        raise Unfit(f"needs a vera_A and vera_B for [{module.outputs}, {module.inputs}], not [{rows}, {columns}]")
    if columns > module.widest or rows > module.widest:
        raise Unfit(f"has a vera_A and vera_B for [{rows}, {columns}], wider than any linear of the base")
    shared: Shapes = {"vera_A": (rank, columns), "vera_B": (rows, rank)}
    return shared | {"vera_lambda_b": (module.outputs,), "vera_lambda_d": (rank,)}


def change(module: Module) -> Change:
    right, left = module.read("vera_A")[:, : module.inputs], module.read("vera_B")[: module.outputs]
    outer, inner = module.read("vera_lambda_b"), module.read("vera_lambda_d")
    return thin(left * outer[:, None], inner[:, None] * right)


def require_projection(raw: Mapping[str, Any], shared: Collection[str], report: Report) -> None:
    """Without A and B in the file, PEFT draws them with torch's generator, which no other program need repeat."""
    if raw.get("save_projection") is not True or not {"vera_A", "vera_B"} <= set(shared):
        message = "vera_A and vera_B were not saved: they would have to be drawn again at random"
        report.fail("modules", message, "set save_projection=True in the VeraConfig and save the adapter again")
