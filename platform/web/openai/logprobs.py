"""Log-probabilities as the two APIs print them."""

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from loraplex.engine.protocol import TokenLogprob

from ..text.token_text import TokenText

LOWEST = -9999.0
"""Stands for minus infinity, which is no JSON."""


def chat_logprobs(entries: list[TokenLogprob], text: TokenText) -> dict[str, Any]:
    """OpenAI's chat form: one object for each token, with its alternatives."""
    return {"content": [_chat_entry(entry, text) for entry in entries], "refusal": None}


def prompt_logprobs(entries: list[TokenLogprob | None], text: TokenText) -> list[dict[str, Any] | None]:
    """vLLM's form: for each prompt token a map from token id; None for the first."""
    return [None if entry is None else _by_id(entry, text) for entry in entries]


class CompletionLogprobs:
    """The legacy form: four parallel lists. `text_offset` counts characters of the answer's text over all `add` calls.

    `hidden` are the token ids that the text leaves out.
    """

    def __init__(self, text: TokenText, hidden: Collection[int] = ()) -> None:
        self._text = text
        self._hidden = hidden
        self._offset = 0

    def add(self, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None], count: int) -> dict[str, Any]:
        """The lists for these tokens, with at most `count` alternatives beside the token itself."""
        tokens = [self._text.of(token_id)[0] for token_id in token_ids]
        offsets = list(itertools.accumulate(map(self._width, token_ids), initial=self._offset))
        self._offset = offsets.pop()
        return {
            "text_offset": offsets,
            "token_logprobs": [None if entry is None else _number(entry.logprob) for entry in entries],
            "tokens": tokens,
            "top_logprobs": [None if entry is None else self._top(entry, count) for entry in entries],
        }

    def _width(self, token_id: int) -> int:
        """Characters that begin in this token: the tokens after the first of a character add none."""
        if token_id in self._hidden:
            return 0
        return sum(byte & 0xC0 != 0x80 for byte in self._text.of(token_id)[1])

    def _top(self, entry: TokenLogprob, count: int) -> dict[str, float]:
        """Alternatives by their text, the likeliest wins where two tokens share one; the token itself is among them."""
        top: dict[str, float] = {}
        for token_id, logprob in entry.top[:count]:
            top.setdefault(self._text.of(token_id)[0], _number(logprob))
        top.setdefault(self._text.of(entry.token_id)[0], _number(entry.logprob))
        return top


def _chat_entry(entry: TokenLogprob, text: TokenText) -> dict[str, Any]:
    top = [_chat_token(token_id, logprob, text) for token_id, logprob in entry.top]
    return {**_chat_token(entry.token_id, entry.logprob, text), "top_logprobs": top}


def _chat_token(token_id: int, logprob: float, text: TokenText) -> dict[str, Any]:
    token, raw = text.of(token_id)
    return {"token": token, "logprob": _number(logprob), "bytes": list(raw)}


def _by_id(entry: TokenLogprob, text: TokenText) -> dict[str, Any]:
    ranked = [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top, 1)]
    if entry.token_id not in {token_id for token_id, _ in entry.top}:
        ranked.append((entry.token_id, entry.logprob, entry.rank))
    return {
        str(token_id): {"logprob": _number(logprob), "rank": rank, "decoded_token": text.of(token_id)[0]}
        for token_id, logprob, rank in ranked
    }


def _number(logprob: float) -> float:
    return max(logprob, LOWEST)
