"""StepSizes: the sizes that steps are padded to, so that a few captured ones serve them all."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

LEAST_PROMPTS: Final = 16
"""Tokens of the smallest step with prompts."""
DIVIDED_PROMPTS: Final = 128
"""From which on octaves of such steps are divided: with fewer tokens a step costs about what reading the weights does,
padded or not."""
DIVIDED_DECODES: Final = 16
"""As much, of decodes."""
PARTS: Final = (4, 2, 1)
"""Of an octave, from the finest sizes to the coarsest."""
DECODE_KINDS: Final = 4
"""Steps of each size that are captured at the start: with and without adapters, drawn and greedy."""
PROMPT_KINDS: Final = 2
"""With and without adapters; all of them can draw."""


class StepSizes(NamedTuple):
    """Both ascending. The last ones are the largest steps there may be."""

    decodes: tuple[int, ...]
    """Sequences of a step of decodes."""
    prompts: tuple[int, ...]
    """Tokens of a step with prompts; it has as many sequences as so many tokens may have."""

    @property
    def captured(self) -> int:
        """Steps that are captured at the start."""
        return DECODE_KINDS * len(self.decodes) + PROMPT_KINDS * len(self.prompts)


def all_sizes(sequences: int, tokens: int) -> Iterator[StepSizes]:
    """From the finest sizes to the coarsest, for steps of up to `sequences` sequences and `tokens` tokens."""
    for parts in PARTS:
        decodes = _ladder(sequences, 1, DIVIDED_DECODES, parts) if parts < PARTS[0] else size_ladder(sequences)
        yield StepSizes(decodes, _ladder(tokens, LEAST_PROMPTS, DIVIDED_PROMPTS, parts))


def finest_sizes(sequences: int, tokens: int) -> StepSizes:
    return next(all_sizes(sequences, tokens))


def size_ladder(most: int) -> tuple[int, ...]:
    """The finest sizes of decodes of up to `most` sequences: 1, 2, 4, multiples of 8 to 256, of 32 beyond."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(288, most + 32, 32)]
    return (*[size for size in sizes if size < most], most)


def pad_size(count: int, ladder: tuple[int, ...]) -> int:
    """The least size that holds `count`."""
    return ladder[bisect_left(ladder, count)]


def _ladder(most: int, first: int, divided: int, parts: int) -> tuple[int, ...]:
    """Powers of two from `first`, and from `divided` on `parts` sizes an octave, as evenly apart."""
    sizes, power = list[int](), first
    while power < most:
        count = parts if power >= divided else 1
        sizes += [power + power * part // count for part in range(count)]
        power *= 2
    return (*[size for size in sizes if size < most], most)
