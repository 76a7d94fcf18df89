"""Launches of one step's sampling: nothing is allocated, copied or waited for, so a CUDA graph can hold them."""

import torch
import triton

from loraplex.quant.kernels.cuda.guard import require

from .decide import decide
from .describe import merge, rank
from .gather import gather
from .layout import Buffers, Shape
from .narrow import narrow
from .weigh import survey, weigh

SURVEY_WARPS = 4
CHUNK_WARPS = 8
"""Of a program that weighs or gathers a chunk: so few registers a thread that many chunks are on their way."""
SEARCH_WARPS = 8
"""Of the program that sorts a row's candidates, or looks through them again and again."""
NARROW_WARPS = 8
"""Of the program that adds up a row's buckets."""


def with_logits(buffers: Buffers, logits: torch.Tensor, shape: Shape) -> Buffers:
    """logits [R, V] of any float dtype, a row's tokens side by side."""
    rows, vocabulary = logits.shape
    fits = rows <= shape.rows and vocabulary <= min(shape.chunk * shape.chunks, shape.width)
    require(fits and logits.stride(1) == 1, f"the sampler has no room for {rows} rows of {vocabulary} logits")
    return buffers._replace(logits=logits, vocabulary=vocabulary, stride=logits.stride(0))


def sample(buffers: Buffers, shape: Shape, *, draws: bool, logprobs: bool) -> None:
    """Tokens, failures and log-probabilities of all rows of the logits, by their parameters.

    draws and logprobs: whether a row is drawn or described; False leaves the launches for that out.
    """
    rows, chunks = _grid(buffers, shape)
    survey[rows, chunks](buffers, shape, num_warps=SURVEY_WARPS, enable_fp_fusion=False)
    if draws:
        weigh[rows, chunks](buffers, shape, num_warps=CHUNK_WARPS, enable_fp_fusion=False)
        narrow[(rows,)](buffers, shape, num_warps=NARROW_WARPS, enable_fp_fusion=False)
        gather[rows, chunks](buffers, shape, num_warps=CHUNK_WARPS, enable_fp_fusion=False)
    decide[(rows,)](buffers, shape, num_warps=SEARCH_WARPS, enable_fp_fusion=False)
    if logprobs:
        _describe(buffers, shape)


def describe(buffers: Buffers, shape: Shape) -> None:
    """Log-probabilities of the tokens that the results hold already."""
    rows, chunks = _grid(buffers, shape)
    survey[rows, chunks](buffers, shape, num_warps=SURVEY_WARPS, enable_fp_fusion=False)
    _describe(buffers, shape)


def _describe(buffers: Buffers, shape: Shape) -> None:
    rows, chunks = _grid(buffers, shape)
    rank[rows, chunks](buffers, shape, enable_fp_fusion=False)
    merge[(rows,)](buffers, shape, enable_fp_fusion=False)


def _grid(buffers: Buffers, shape: Shape) -> tuple[int, int]:
    return len(buffers.logits), triton.cdiv(buffers.vocabulary, shape.chunk)
