"""Bad words as token sequences, as vLLM makes them."""

from collections.abc import Sequence

from ..field_types import ParameterError
from .tokenizer import Tokenizer


def bad_word_tokens(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Each word at the beginning of a text, and after a space where that is as many other tokens. ParameterError for
    a word that has no tokens."""
    sequences = list[list[int]]()
    for word in words:
        text = word.lstrip()
        begun = tokenizer.encode(text, add_special_tokens=False)
        if not begun:
            raise ParameterError("bad_words", f"bad_words has {word!r}, which is no text that a token stands for")
        spaced = tokenizer.encode(f" {text}", add_special_tokens=False)
        sequences.append(begun)
        if spaced and spaced[0] != begun[0] and len(spaced) == len(begun):
            sequences.append(spaced)
    return sequences
