"""Calibration text as sequences of token ids, some of them held out to judge the result by."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import torch

from ..text.tokenizer import Tokenizer
from .sample_text import paragraphs

SEQUENCE_LENGTH: Final = 512
SHORTEST: Final = 16
HELD_OUT_OF: Final = 8
"""One of so many sequences is held out."""
BYTES_PER_TOKEN: Final = 16
"""More than text has on average: how much of a file is read."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Both [S, L] int64; no token is in both."""

    calibration: torch.Tensor
    held_out: torch.Tensor


def calibration_sequences(tokenizer: Tokenizer, file: Path | None, tokens: int, longest: int) -> Sequences:
    """About `tokens` tokens, held-out ones counted, from the file or the sample text, no sequence over `longest`.

    ValueError for a file that cannot be read or is too short.
    """
    beginning = tokenizer.encode("")
    beginning = beginning if len(beginning) == 1 else []
    ids = tokenizer.encode(_read(file, tokens) if file else _sample(tokenizer, tokens), add_special_tokens=False)[
        :tokens
    ]
    length = min(SEQUENCE_LENGTH, longest, len(ids) // HELD_OUT_OF + len(beginning)) - len(beginning)
    if length < min(SHORTEST, longest - len(beginning)):
        raise ValueError(
            f"the calibration text has {len(ids)} tokens; at least {SHORTEST * HELD_OUT_OF} are needed, and some "
            "thousands are better"
        )
    rows = torch.tensor(ids[: len(ids) // length * length]).view(-1, length)
    rows = torch.cat([torch.tensor([beginning], dtype=torch.int64).expand(len(rows), -1), rows], dim=1)
    held_out = torch.arange(len(rows)) % HELD_OUT_OF == HELD_OUT_OF - 1
    return Sequences(rows[~held_out], rows[held_out])


def _read(file: Path, tokens: int) -> str:
    if file.exists() and not file.is_file():
        raise ValueError(f"the calibration file {file} is no file; give plain text")
    try:
        with file.open(encoding="utf-8") as text:
            return text.read(tokens * BYTES_PER_TOKEN)
    except OSError as error:
        raise ValueError(f"the calibration file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the calibration file {file} is no UTF-8 text; give plain text") from None


def _sample(tokenizer: Tokenizer, tokens: int) -> str:
    endless, text, count = paragraphs(), "", 0
    while count < tokens:
        more = "\n\n".join(islice(endless, 64)) + "\n\n"
        text, count = text + more, count + len(tokenizer.encode(more, add_special_tokens=False))
    return text
