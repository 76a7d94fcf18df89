"""token_ids[t] = drawn[sources[t]] where that row is one (triton): what the step before drew, in its place.

Shapes: T tokens, R rows that were drawn.
"""

import torch
import triton
import triton.language as tl


def resolve(token_ids: torch.Tensor, sources: torch.Tensor, drawn: torch.Tensor) -> None:
    """token_ids [T] int64, changed in place; sources [T] int32, below 0 where the token is known; drawn [R] of any
    integer dtype. A draw that failed left no token id: it becomes 0."""
    if len(token_ids):
        place[(len(token_ids),)](token_ids, sources, drawn, num_warps=1, enable_fp_fusion=True)


def resolve_reference(token_ids: torch.Tensor, sources: torch.Tensor, drawn: torch.Tensor) -> None:
    """The same in plain torch."""
    found = drawn[sources.clamp(min=0).long()].clamp(min=0)
    token_ids.copy_(torch.where(sources < 0, token_ids, found))


@triton.jit
def place(token_ids: tl.tensor, sources: tl.tensor, drawn: tl.tensor) -> None:
    """Grid (tokens,)."""
    token = tl.program_id(0)
    row = tl.load(sources + token)
    if row >= 0:
        tl.store(token_ids + token, tl.maximum(tl.load(drawn + row), 0).to(tl.int64))
