"""Figures measured one after another: a row for each at once, none that is wrong shows a speed, no part outlasts its
time by more than one figure."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

from ..report import Row
from .figure import Figure, Stage, Unsupported, WrongResult

Now = Callable[[], float]
OUT_OF_TIME: Final = "the time of this part was used up"


def measure(
    figures: Sequence[Figure], stage: Stage, allowed_seconds: float, publish: Callable[[Row], None],
    now: Now = time.monotonic,
) -> int:  # fmt: skip
    """`publish` gets each row as soon as it is known. Returns how many kernels were wrong or failed."""
    broken, end = 0, now() + allowed_seconds
    for figure in figures:
        left = end - now()
        if (left <= 0 or left < figure.seconds) and figure.measure is not None:
            publish(_row(figure, None, OUT_OF_TIME))
            continue
        row, right = _outcome(figure, stage)
        broken += not right
        publish(row)
    return broken


def _outcome(figure: Figure, stage: Stage) -> tuple[Row, bool]:
    """The figure's row, and whether its kernels are right as far as was seen."""
    if figure.measure is None:
        return _row(figure, None, figure.note), True
    try:
        value = figure.measure(stage)
    except WrongResult as error:
        return _row(figure, None, f"WRONG RESULT: {error}"), False
    except Unsupported as error:
        return _row(figure, None, str(error)), True
    except torch.OutOfMemoryError:
        return _row(figure, None, "the card has too little free memory"), True
    except Exception as error:  # whatever a compiler or a driver raises: the other figures are measured all the same
        words = str(error).strip().partition("\n")[0]
        return _row(figure, None, f"FAILED: {type(error).__name__}: {words}"), False
    if not math.isfinite(value) or value <= 0:
        return _row(figure, None, f"FAILED: {value} is no figure"), False
    return _row(figure, value, ""), True


def _row(figure: Figure, value: float | None, note: str) -> Row:
    return Row(figure.what, value, figure.unit, figure.goal, figure.at_least, note)
