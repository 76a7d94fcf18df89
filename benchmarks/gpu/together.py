"""Rows that are measured together, on one engine: the first of them opens it, the others take what it found."""

from collections.abc import Callable
from typing import Final

import torch

from .figure import Stage, Unsupported, WrongResult

Rows = dict[str, float | Unsupported]
"""Name of a row -> its value, or why it has none here."""
Measure = Callable[[Stage], Rows]
SIMPLE: Final = {Unsupported, WrongResult, torch.OutOfMemoryError}
_KEPT: dict[tuple[Measure, Stage], Rows | Exception] = {}


def measured(rows: Measure, stage: Stage) -> Rows:
    """Measured the first time. What went wrong then goes wrong again: the second time it would not go better."""
    if (rows, stage) not in _KEPT:
        try:
            _KEPT[rows, stage] = rows(stage)
        except Exception as error:
            _KEPT[rows, stage] = _bare(error)
    found = _KEPT[rows, stage]
    if isinstance(found, Exception):
        # As it was kept: frames of a traceback would hold the engine, and with it most of the card's memory.
        raise _bare(found)
    return found


def _bare(error: Exception) -> Exception:
    """Its type and its words alone."""
    kind = type(error)
    words = str(error).strip().partition("\n")[0]
    return kind(words) if kind in SIMPLE else RuntimeError(f"{kind.__name__}: {words}")


def known(rows: Measure, stage: Stage) -> Rows:
    """As `measured`, without measuring: that would take the time of a row which only compares with it. Raises
    Unsupported."""
    if (rows, stage) not in _KEPT:
        raise Unsupported("what it is compared with was not measured in this process")
    return measured(rows, stage)


def pick(rows: Measure, name: str, opens: bool, stage: Stage) -> float:
    """One of them. Raises Unsupported where it is not for this row to open the engine and nobody has."""
    if not opens and (rows, stage) not in _KEPT:
        raise Unsupported("the row that opens its engine was not measured")
    return value_of(measured(rows, stage), name)


def value_of(rows: Rows, name: str) -> float:
    """Raises Unsupported."""
    found = rows[name]
    if isinstance(found, Unsupported):
        raise found
    return found
