"""The prompts of a certificate as token ids: texts that were given, or text of our own, the same every time."""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from ..quantize.sample_text import paragraphs
from ..tokenizer import Tokenizer

MOST_PROMPTS: Final = 64
MOST_TOKENS: Final = 512
"""Of a prompt; what is longer is cut."""
GENERATED: Final = 16
PARAGRAPHS: Final = 3
"""In each generated prompt."""
SEED: Final = 1
"""Not the one that quantizing is calibrated with."""


def generated_prompts() -> list[str]:
    endless = paragraphs(SEED)
    return ["\n\n".join(islice(endless, PARAGRAPHS)) for _ in range(GENERATED)]


def read_prompts(texts: Sequence[str], tokenizer: Tokenizer, vocab_size: int, longest: int) -> list[list[int]]:
    """Token ids, at most `longest` of each, of those that have two or more: the first is never predicted.

    ValueError for too many prompts, for none that can be judged by, and for tokens that the model does not know.
    """
    if len(texts) > MOST_PROMPTS:
        raise ValueError(f"{len(texts)} prompts were given, and a certificate is made of at most {MOST_PROMPTS}")
    ids = [tokenizer.encode(text)[: min(longest, MOST_TOKENS)] for text in texts]
    prompts = [prompt for prompt in ids if len(prompt) > 1]
    if not prompts:
        raise ValueError("none of the prompts has two tokens, so nothing can be predicted; give longer ones")
    largest = max(map(max, prompts))
    if largest >= vocab_size:
        raise ValueError(f"the tokenizer gives the token {largest}, but the model knows only {vocab_size}")
    return prompts
