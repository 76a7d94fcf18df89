"""Figures measured one after another: a row for each at once, none that is wrong shows a speed, no part outlasts its
time by more than one figure."""

import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

from ..report import Row
from .figure import Figure, Stage, Unsupported, WrongResult

Now = Callable[[], float]
OUT_OF_TIME: Final = "no time left"
WRONG: Final = "WRONG RESULT: "
FAILED: Final = "FAILED: "


def measure(
    figures: Sequence[Figure], stage: Stage, allowed_seconds: float, publish: Callable[[Row], None],
    now: Now = time.monotonic,
) -> int:  # fmt: skip
    """`publish` gets each row as soon as it is known. Returns how many kernels were wrong or failed."""
    broken, end = 0, now() + allowed_seconds
    for figure in figures:
        left = end - now()
        if (left <= 0 or left < figure.seconds) and figure.measure is not None:
            publish(unmeasured_row(figure, OUT_OF_TIME))
            continue
        row = _outcome(figure, stage)
        if row.value is None:
            _give_back_memory(stage)
        broken += is_broken(row)
        publish(row)
    return broken


def is_broken(row: Row) -> bool:
    """Whether a kernel was wrong or failed, as far as was seen."""
    return row.value is None and row.note.startswith((WRONG, FAILED))


def failed_row(figure: Figure, words: str) -> Row:
    return unmeasured_row(figure, FAILED + words)


def unmeasured_row(figure: Figure, note: str) -> Row:
    return _row(figure, None, note)


def _give_back_memory(stage: Stage) -> None:
    """What an error left behind, before the next figure is measured."""
    gc.collect()
    if stage.device.type == "cuda":
        torch.cuda.empty_cache()


def _outcome(figure: Figure, stage: Stage) -> Row:
    if figure.measure is None:
        return unmeasured_row(figure, figure.note)
    try:
        value = figure.measure(stage)
    except WrongResult as error:
        return unmeasured_row(figure, f"{WRONG}{error}")
    except Unsupported as error:
        return unmeasured_row(figure, str(error))
    except torch.OutOfMemoryError:
        return unmeasured_row(figure, "the card has too little free memory")
    except Exception as error:  # whatever a compiler or a driver raises: the other figures are measured all the same
        words = str(error).strip().partition("\n")[0]
        return failed_row(figure, f"{type(error).__name__}: {words}")
    if not math.isfinite(value) or value <= 0:
        return failed_row(figure, f"{value} is no figure")
    return _row(figure, value, "")


def _row(figure: Figure, value: float | None, note: str) -> Row:
    return Row(figure.what, value, figure.unit, figure.goal, figure.at_least, note)
