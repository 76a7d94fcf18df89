"""Detokenizer: the text of one choice as its tokens arrive, without broken characters and without stop strings."""

from collections.abc import Collection, Sequence
from typing import Final

from tokenizers.decoders import DecodeStream

from ..sampling_params import SamplingParams
from .tokenizer import Tokenizer

CONTEXT: Final = 6
"""Prompt tokens the first new token is decoded after: some tokenizers drop the space of a text's first word."""
MOST_PENDING: Final = 64
"""Tokens that may wait for the rest of a character. No character needs so many: beyond, they are text as they are."""


class Detokenizer:
    """One choice of one request. Each `push` returns the text that can no longer change."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt_token_ids: Sequence[int] = (),
        shown: Collection[int] = (),
    ) -> None:
        """`shown`: special tokens whose text is not left out by `skip_special_tokens`."""
        self._tokenizer = tokenizer
        self._params = params
        self._skips = params.skip_special_tokens and not shown
        self._hidden = tokenizer.special_ids.difference(shown) if shown and params.skip_special_tokens else ()
        self._pending: list[int] = []
        self._stream = self._start(prompt_token_ids)
        self._sent = 0
        self._searched = 0
        self.num_tokens = 0
        """Tokens taken so far; those after a stop string are not."""
        self.text = ""
        """All text so far, the part that is still held back included; cut once a stop string was found."""

    def push(self, token_ids: Sequence[int], final: bool, ended_by_token: bool = False) -> tuple[str, str | None]:
        """Take new tokens; return the new text to show and the stop string that ended the choice, if one did.

        `final` releases what was held back. `ended_by_token` says that the last id is the end-of-sequence or stop
        token that ended the choice: its text is left out unless `include_stop_str_in_output`.
        """
        stopped_by = None
        shown = len(token_ids) - (ended_by_token and not self._params.include_stop_str_in_output)
        for token_id in token_ids[:shown]:
            self.num_tokens += 1
            self.text += self._decode(token_id)
            stopped_by = self._cut_at_stop()
            if stopped_by is not None:
                return self._release(0), stopped_by
        if final:
            self.text += self._flush()
            stopped_by = self._cut_at_stop()
        return self._release(0 if final else self._held_back()), stopped_by

    def _start(self, context: Sequence[int]) -> DecodeStream:
        return DecodeStream(list(context[-CONTEXT:]), skip_special_tokens=self._skips)

    def _decode(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._tokenizer.backend, token_id)
        except Exception:  # the library raises bare Exception when earlier text changes under a new token
            return self._flush()
        if text is not None:
            self._pending = []
            return text
        return self._flush() if len(self._pending) >= MOST_PENDING else ""

    def _flush(self) -> str:
        """Text of the pending tokens as they are, broken characters included."""
        text = self._tokenizer.decode(self._pending, self._skips)
        self._stream = self._start(self._pending)
        self._pending = []
        return text

    def _cut_at_stop(self) -> str | None:
        if self.num_tokens < self._params.min_tokens:
            self._searched = len(self.text)
            return None
        found = [(at, stop) for stop in self._params.stop if (at := self.text.find(stop, self._search_from(stop))) >= 0]
        self._searched = len(self.text)
        if not found:
            return None
        at, stop = min(found, key=lambda match: match[0])
        self.text = self.text[: at + len(stop) if self._params.include_stop_str_in_output else at]
        return stop

    def _search_from(self, stop: str) -> int:
        return max(0, self._searched - len(stop) + 1)

    def _held_back(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        if self._params.include_stop_str_in_output:
            return 0
        return max((_overlap(self.text, stop) for stop in self._params.stop), default=0)

    def _release(self, held_back: int) -> str:
        end = max(self._sent, len(self.text) - held_back)
        delta = self.text[self._sent : end]
        self._sent = end
        return delta


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    return next((length for length in range(len(stop) - 1, 0, -1) if text.endswith(stop[:length])), 0)
