"""What an adapter may bring that is not served on CUDA."""

from typing import Final

from ..files.manifest import BaseSignature
from .weights import Contents

MOST_ADDED: Final = 4096
"""Tokens that an adapter may add to the base's: logits and the sampler's tables have room for as many."""


def most_tokens(vocab_size: int, most: int) -> int:
    """That a model may know with an adapter where its base has `vocab_size`; `most`: that the sampler takes."""
    return min(vocab_size + MOST_ADDED, most)


def why_not_on_cuda(base: BaseSignature, most: int, contents: Contents) -> str | None:
    """None for an adapter that is served there as on a CPU."""
    most = most_tokens(base.vocab_size, most)
    if contents.vocab_size <= most:
        return None
    return (
        f"the model has {contents.vocab_size} tokens with the adapter and {base.vocab_size} without; on CUDA it may "
        f"have {most}: serve it on a CPU"
    )
