"""What an adapter may bring that is not served on CUDA yet."""

from .batch import LINEARS
from .manifest import BaseSignature
from .weights import Contents


def why_not_on_cuda(base: BaseSignature, contents: Contents) -> str | None:
    """None for an adapter that is served there as on a CPU."""
    kinds = {module.kind for module in contents.modules}.difference(LINEARS)
    kinds |= {kind for kind, tokens in contents.tokens.items() if len(tokens)}
    found = [f"weights of its own for {', '.join(sorted(kinds))}"] if kinds else []
    if contents.vocab_size != base.vocab_size:
        found.append(f"{contents.vocab_size} tokens where the base has {base.vocab_size}")
    if not found:
        return None
    return (
        f"the adapter has {' and '.join(found)}; on CUDA adapters of the layers' linears alone are served yet: "
        "serve it on a CPU"
    )
