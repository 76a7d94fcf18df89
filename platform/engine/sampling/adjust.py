"""Edit logits before a token is chosen: mask or allowed tokens, bias, blocked tokens, penalties, in this order.

Shapes: R rows, V tokens of the vocabulary. Edits touch the few listed tokens of a row; masks alone the whole row.
"""

from collections.abc import Iterable

import numpy as np
import torch

from .state import SampleRow
from .token_mask import TokenMask


def adjust(logits: torch.Tensor, rows: list[SampleRow]) -> torch.Tensor:
    """logits [R, V] float32 -> the edited copy, or `logits` itself when no row asks for an edit."""
    edited = [index for index, row in enumerate(rows) if _edits(row)]
    if not edited:
        return logits
    logits = logits.clone()
    for index in edited:
        _mask_and_bias(logits[index], rows[index])
    _penalize(logits, [index for index in edited if rows[index].penalized], rows)
    return logits


def _edits(row: SampleRow) -> bool:
    params = row.params
    listed = params.allowed_token_ids or params.logit_bias or row.blocked_token_ids
    return bool(listed or row.penalized or row.mask is not None)


def _mask_and_bias(logits: torch.Tensor, row: SampleRow) -> None:
    if row.mask is not None:
        logits[~_allowed(row.mask, len(logits)).to(logits.device)] = float("-inf")
    if row.params.allowed_token_ids:
        allowed = _ids(row.params.allowed_token_ids, logits)
        kept = logits[allowed]
        logits.fill_(float("-inf"))
        logits[allowed] = kept
    if row.params.logit_bias:
        bias = torch.tensor(list(row.params.logit_bias.values()), dtype=logits.dtype, device=logits.device)
        logits[_ids(row.params.logit_bias, logits)] += bias
    if row.blocked_token_ids:
        logits[_ids(row.blocked_token_ids, logits)] = float("-inf")


def _allowed(mask: TokenMask, tokens: int) -> torch.Tensor:
    """[tokens] bool"""
    assert mask.bits is not None
    allowed = np.zeros(tokens, np.bool_)
    bits = np.unpackbits(mask.bits, bitorder="little")[:tokens]
    allowed[: len(bits)] = bits
    return torch.from_numpy(allowed)


def _ids(token_ids: Iterable[int], logits: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(token_ids), dtype=torch.int64, device=logits.device)


def _penalize(logits: torch.Tensor, penalized: list[int], rows: list[SampleRow]) -> None:
    """Repetition divides or multiplies what was in prompt or output; frequency and presence subtract for the output."""
    if not penalized:
        return
    counts = [rows[index].counts() for index in penalized]
    params = [rows[index].params for index in penalized]
    lengths = [len(count.ids) for count in counts]

    def spread(per_row: list[float]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.asarray(per_row, dtype=np.float32), lengths)).to(logits.device)

    where = (
        torch.from_numpy(np.repeat(np.asarray(penalized), lengths)).to(logits.device),
        torch.from_numpy(np.concatenate([count.ids for count in counts])).to(logits.device),
    )
    times = torch.from_numpy(np.concatenate([count.counts for count in counts])).to(logits.device)
    values = logits[where]
    repetition = spread([p.repetition_penalty for p in params])
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= spread([p.frequency_penalty for p in params]) * times
    values -= spread([p.presence_penalty for p in params]) * (times > 0)
    logits[where] = values
