"""check_constraint: can answers of a model have this form? Asked where no engine runs, in a process of its own."""

import time
from collections.abc import Sequence
from pathlib import Path

from ..protocol import AddedToken
from ..structured_outputs import StructuredOutputs
from .limits import COMPILE_SECONDS, FATAL, SILENT_SECONDS, TOO_LONG
from .messages import Allowed, Began, Open, Refused
from .process import GrammarProcess


def check_constraint(folder: Path, constraint: StructuredOutputs, added_tokens: Sequence[AddedToken] = ()) -> None:
    """`folder`: of the checkpoint; `added_tokens`: of an adapter's tokenizer. Blocks for a second or more. ValueError
    says why not."""
    constraint.verify()
    kind, text = constraint.source()
    process = GrammarProcess(folder)
    try:
        process.send(Open(choice=0, kind=kind, text=text, added_tokens=list(added_tokens)))
        reason = _answer(process)
    finally:
        process.kill()
    if reason is not None:
        raise ValueError(reason)


def _answer(process: GrammarProcess) -> str | None:
    """Why it is refused; None: it is not."""
    deadline = time.monotonic() + SILENT_SECONDS
    while not process.ended and time.monotonic() < deadline:
        for message in process.receive(deadline - time.monotonic()):
            match message:
                case Began():
                    deadline = time.monotonic() + COMPILE_SECONDS
                case Allowed():
                    return None
                case Refused():
                    return message.reason
    return FATAL if process.ended else TOO_LONG
