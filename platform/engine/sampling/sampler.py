"""Sampler: logits to token ids and log-probabilities."""

import math

import torch

from ..protocol import TokenLogprob
from .adjust import adjust
from .draw import draw, most_likely
from .state import Sampled, SampleRow

__all__ = ["SampleRow", "Sampled", "Sampler"]


class Sampler:
    """Stateless: what a choice must remember is in its SampleRow."""

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> Sampled:
        """logits [R, V], one row for each of `rows` -> token ids.

        A greedy row takes the largest logit, the lowest id among equals. A row that fails leaves the others untouched.
        """
        assert len(logits) == len(rows)
        raw = logits.float()
        adjusted = adjust(raw, rows)
        token_ids, failed = _argmax(adjusted)
        if adjusted is not raw:
            unfit = (~raw.amax(dim=-1).isfinite()).tolist()
            failed = [either or other for either, other in zip(failed, unfit, strict=True)]
        healthy = [not value for value in failed]
        drawn = [index for index, row in enumerate(rows) if row.params.temperature > 0 and healthy[index]]
        if drawn:
            logits = adjusted if len(drawn) == len(rows) else adjusted[drawn]
            for index, token_id in zip(drawn, draw(logits, [rows[index] for index in drawn]), strict=True):
                token_ids[index] = token_id
        failures = [index for index, value in enumerate(failed) if value]
        return Sampled(token_ids, _logprobs(raw, token_ids, rows, healthy), failures)

    def prompt_logprobs(self, logits: torch.Tensor, token_ids: list[int], count: int) -> list[TokenLogprob]:
        """logits [N, V] of N prompt positions and the N tokens that follow them -> one entry each."""
        return _describe(logits.float(), token_ids, [count] * len(token_ids))


def _argmax(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """The lowest id of each row's maximum, and which rows have no finite maximum (NaN counts as the largest)."""
    if logits.is_cpu:
        # numpy's argmax is several times faster than torch's on a CPU; both take the first of equals.
        values = logits.numpy()
        best = values.argmax(axis=-1).tolist()
        return best, [not math.isfinite(values[row, token_id]) for row, token_id in enumerate(best)]
    largest = logits.argmax(dim=-1)
    return largest.tolist(), (~logits.gather(1, largest[:, None])[:, 0].isfinite()).tolist()


def _logprobs(
    raw: torch.Tensor, token_ids: list[int], rows: list[SampleRow], healthy: list[bool]
) -> list[TokenLogprob | None]:
    described: list[TokenLogprob | None] = [None] * len(rows)
    counts = {i: row.logprobs for i, row in enumerate(rows) if row.logprobs is not None and healthy[i]}
    if counts:
        wanted = list(counts)
        entries = _describe(raw[wanted], [token_ids[index] for index in wanted], list(counts.values()))
        for index, entry in zip(wanted, entries, strict=True):
            described[index] = entry
    return described


def _describe(raw: torch.Tensor, token_ids: list[int], counts: list[int]) -> list[TokenLogprob]:
    chosen = torch.tensor(token_ids, device=raw.device)[:, None]
    logprobs = raw.log_softmax(dim=-1)
    ranks = (raw > raw.gather(1, chosen)).sum(dim=-1) + 1
    values, ids = most_likely(logprobs, min(max(counts), raw.shape[1]))
    columns = zip(
        token_ids, logprobs.gather(1, chosen)[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist(), strict=True
    )
    return [
        TokenLogprob(token_id, logprob, rank, list(zip(top_ids[:count], top_values[:count], strict=True)))
        for (token_id, logprob, rank, top_ids, top_values), count in zip(columns, counts, strict=True)
    ]
