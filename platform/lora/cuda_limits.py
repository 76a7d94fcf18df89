"""What an adapter may bring that is not served on CUDA yet."""

from .manifest import BaseSignature
from .weights import Contents


def why_not_on_cuda(base: BaseSignature, contents: Contents) -> str | None:
    """None for an adapter that is served there as on a CPU."""
    rows = sorted(kind for kind, tokens in contents.tokens.items() if len(tokens))
    found = [f"rows of tokens of its own for {', '.join(rows)}"] if rows else []
    if contents.vocab_size != base.vocab_size:
        found.append(f"{contents.vocab_size} tokens where the base has {base.vocab_size}")
    if not found:
        return None
    return f"the adapter has {' and '.join(found)}, which is not served on CUDA yet: serve it on a CPU"
