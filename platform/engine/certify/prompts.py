"""The prompts of a certificate as token ids: texts that were given, or our own, the same every time. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ..quantize.sample_text import paragraphs
from ..scheduler.activation import find_start
from ..text.tokenizer import Tokenizer

MOST_PROMPTS: Final = 64
MOST_TOKENS: Final = 512
"""Of a prompt; what is longer is cut."""
GENERATED: Final = 16
PARAGRAPHS: Final = 3
"""In each generated prompt."""
SEED: Final = 1
"""Not the one that quantizing is calibrated with."""


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]
    start: int = 0
    """The adapter acts on this token and those after it."""


def generated_prompts() -> list[str]:
    endless = paragraphs(SEED)
    return ["\n\n".join(islice(endless, PARAGRAPHS)) for _ in range(GENERATED)]


def read_prompts(
    texts: Sequence[str], tokenizer: Tokenizer, vocab_size: int, longest: int, invocation_tokens: Sequence[int] = ()
) -> list[Prompt]:
    """At most `longest` tokens of each text, of those that have two or more: the first is never predicted. A prompt
    without the adapter's invocation tokens gets them in its middle, so that both of its ways of computing are judged.

    ValueError for too many prompts, for none that can be judged by, and for tokens that the model does not know.
    """
    if len(texts) > MOST_PROMPTS:
        raise ValueError(f"{len(texts)} prompts were given, and a certificate is made of at most {MOST_PROMPTS}")
    most = min(longest, MOST_TOKENS)
    read = [tokenizer.encode(text)[:most] for text in texts]
    prompts = [_invoked(token_ids, list(invocation_tokens), most) for token_ids in read if len(token_ids) > 1]
    if not prompts:
        raise ValueError("none of the prompts has two tokens, so nothing can be predicted; give longer ones")
    largest = max(max(prompt.token_ids) for prompt in prompts)
    if largest >= vocab_size:
        raise ValueError(f"the tokenizer gives the token {largest}, but the model knows only {vocab_size}")
    return prompts


def _invoked(token_ids: list[int], invocation_tokens: list[int], most: int) -> Prompt:
    start = find_start(token_ids, invocation_tokens)
    if start is not None:
        return Prompt(token_ids, start)
    if len(invocation_tokens) >= most:
        raise ValueError(f"the model has no room for the adapter's {len(invocation_tokens)} invocation tokens")
    kept = token_ids[: most - len(invocation_tokens)]
    middle = len(kept) // 2
    return Prompt(kept[:middle] + invocation_tokens + kept[middle:], middle)
