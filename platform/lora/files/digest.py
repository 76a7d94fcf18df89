"""What an adapter's identity is taken over: the canonical order of its tensors, and their bytes.

SHA-256 over a version tag, the invocation tokens if there are any, then for each module by layer and kind, A, B, its
vectors: one line of facts that change the result (place, scaling, dtype, shape), then the tensor's bytes. Names,
metadata, order and unused settings don't count.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from .manifest import ModuleLora, TensorInfo

DIGEST_TAG: Final = b"loraplex adapter 1\n"


def digest_opening(invocation_tokens: Sequence[int]) -> bytes:
    """What stands before the tensors."""
    line = f"invocation {' '.join(map(str, invocation_tokens))}\n".encode()
    return DIGEST_TAG + line if invocation_tokens else DIGEST_TAG


def canonical_tensors(modules: Iterable[ModuleLora]) -> Iterator[tuple[bytes, TensorInfo]]:
    """(line of facts, tensor) in the order of the digest."""
    for module in sorted(modules, key=lambda module: (module.layer, module.kind)):
        for part, tensor in module.tensors():
            place = f"{module.layer} {module.kind} {part} {float(module.scaling).hex()}"
            yield f"{place} {tensor.dtype} {'x'.join(map(str, tensor.shape))}\n".encode(), tensor
