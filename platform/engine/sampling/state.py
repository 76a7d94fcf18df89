"""What the sampler must know of a choice, and its answer. Torch-free, so that the scheduler can hold it."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ..protocol import TokenLogprob
from ..sampling_params import SamplingParams
from .token_mask import TokenMask

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15


class TokenCounts:
    """Distinct tokens of a prompt and its output, with how often each was put out. Grows by the new tokens alone.

    Sparse: a few hundred entries instead of a whole vocabulary, in memory and in every step.
    """

    def __init__(self, prompt_token_ids: list[int]) -> None:
        self._ids = np.unique(np.asarray(prompt_token_ids, dtype=np.int64))
        self._counts = np.zeros(len(self._ids), dtype=np.float32)
        self._index = {token_id: index for index, token_id in enumerate(self._ids.tolist())}
        self._counted = 0

    def update(self, output_token_ids: list[int]) -> None:
        """Count the tokens that came after the last update."""
        for token_id in output_token_ids[self._counted :]:
            index = self._index.setdefault(token_id, len(self._index))
            if index == len(self._ids):
                self._grow()
            self._ids[index] = token_id
            self._counts[index] += 1
        self._counted = len(output_token_ids)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """Times each of `ids` was put out; 0 for a token of the prompt alone."""
        return self._counts[: len(self._index)]

    def _grow(self) -> None:
        self._ids = np.concatenate((self._ids, np.zeros(len(self._ids) + 16, dtype=np.int64)))
        self._counts = np.concatenate((self._counts, np.zeros(len(self._counts) + 16, dtype=np.float32)))


@dataclass(slots=True)
class SampleRow:
    """One choice that draws a token. Keep one row per choice and update `position`: its counts are then incremental."""

    params: SamplingParams
    seed: int
    """The choice's own seed."""
    position: int
    """Index of the token being drawn in the choice's output."""
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    """The choice's live list, read for penalties only."""
    blocked_token_ids: tuple[int, ...] = ()
    """End-of-sequence and stop tokens while min_tokens is not reached; those that would complete a bad word."""
    logprobs: int | None = None
    mask: TokenMask | None = None
    """Of a constrained choice. Its end tokens are in it, so that none is blocked."""
    has_bad_words: bool = False
    """What is blocked follows from the tokens before."""
    _counts: TokenCounts | None = field(default=None, init=False, repr=False)

    @property
    def penalized(self) -> bool:
        params = self.params
        return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)

    @property
    def needs_all_tokens(self) -> bool:
        """It cannot be drawn while a token before is unknown to the host."""
        return self.penalized or self.has_bad_words or self.mask is not None

    def at(self, position: int) -> "SampleRow":
        """The row that draws the token at `position`, while the host may not know all tokens before it."""
        if position == self.position:
            return self
        assert not self.needs_all_tokens, "penalties, masks and bad words look at every token before"
        blocked = self.blocked_token_ids if position < self.params.min_tokens else ()
        # Spelled out: `replace` takes three times as long, for each choice in each step.
        return SampleRow(
            self.params, self.seed, position, self.prompt_token_ids, self.output_token_ids, blocked, self.logprobs
        )

    def counts(self) -> TokenCounts:
        """The tokens so far. A changed row (a restarted choice) must be a new SampleRow."""
        if self._counts is None:
            self._counts = TokenCounts(self.prompt_token_ids)
        self._counts.update(self.output_token_ids)
        return self._counts

    def uniform(self) -> float:
        """The row's one random number in [0, 1): a SplitMix64 hash of (seed, position) and of nothing else."""
        return (_mix(_mix(self.seed & MASK) + self.position * GOLDEN) >> 11) * 2.0**-53


@dataclass(slots=True)
class Sampled:
    """The sampler's answer, row by row."""

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    """Of the unmodified distribution, where the row asked for them."""
    failed: list[int]
    """Rows whose logits had no finite maximum: NaN, infinity, or every token masked. Their token id means nothing."""


def _mix(state: int) -> int:
    """One step of SplitMix64 (Steele, Lea and Flood 2014)."""
    state = (state + GOLDEN) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)
