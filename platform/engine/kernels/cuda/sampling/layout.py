"""What the sampling kernels read and write, and in which sizes. Numbers only: no triton is imported.

Shapes: R rows of a step at most, V tokens of the longest vocabulary, N chunks of one.
"""

from typing import Final, NamedTuple

import torch

from loraplex.quant.kernels.cuda.guard import require

CHUNK: Final = 2048
"""Tokens of a row that one program reads: enough programs for a device even for a single row."""
TILE: Final = 512
"""Candidates that a search looks at together."""
SORTED: Final = 512
"""Candidates that are sorted in one piece; where there are more, they are searched."""
ROOM: Final = 8192
"""Candidates that are listed; where there are more, the search goes through the row."""
BUCKETS: Final = 2048
"""Parts of the depth that a row's filters can reach, each with its mass."""
SPANS: Final = 3
"""Runs of buckets in which a filter or the draw ends: of top-k, of top-p, of the drawn token."""
SPAN: Final = 4
"""Numbers of one: its first bucket, its last, the mass and the count above it. None: the last before the first."""
RECORD: Final = 16
"""Numbers from the parameters of one row to those of the next: 128 bytes."""
MOST_TOKENS: Final = 1 << 18
"""Longest vocabulary whose masses add up within 63 bits."""
IDLE, GREEDY, WHOLE, FILTERED = -1, 0, 1, 2
"""No row (nothing is computed or written); largest logit; drawn from all tokens; from those that filters keep."""
BIASED, PENALIZED = 1, 2
TOKEN, FAILED, RANK, LOGPROB, TOP = 0, 1, 2, 3, 4
"""Lines of the results; from TOP on the ids of the most likely tokens, then their log-probabilities."""


class RowParameters(NamedTuple):
    """One row's record, integers first, then floats, all of 64 bits."""

    mode: int
    seed: int
    position: int
    slot: int
    """Line of `bias` and `seen`."""
    edits: int
    """BIASED and PENALIZED, added up."""
    top_k: int
    """0: off."""
    logprobs: int
    """How many most likely tokens are described besides the drawn one; -1: not even that one."""
    temperature: float
    top_p: float
    min_p: float
    repetition: float
    frequency: float
    presence: float


INTEGERS: Final = 7
"""How many of them are integers."""


class Shape(NamedTuple):
    """Numbers known when compiling."""

    width: int
    """Tokens of a line of `bias` and `seen`."""
    chunk: int
    chunks: int
    lanes: int
    """chunks, rounded up to a power of 2."""
    tile: int
    sorted: int
    room: int
    buckets: int
    rows: int
    tops: int
    """Most likely tokens that can be described."""


class Buffers(NamedTuple):
    """One step's logits, and tensors that stay where they are."""

    logits: torch.Tensor
    """Rows of `stride` elements, of any float dtype, unedited."""
    vocabulary: int
    """Of this step: columns of the logits that are tokens."""
    stride: int
    parameters: torch.Tensor
    """[R, RECORD] int64."""
    bias: torch.Tensor
    """[slots, width] float32, -inf for a token that is forbidden."""
    seen: torch.Tensor
    """[slots, width] int32: 0 for a token that is new to the row, 1 for one of its prompt, one more for each time it
    was put out."""
    best: torch.Tensor
    """[R, N] float32: the largest edited logit of each chunk; NaN counts as infinity."""
    best_ids: torch.Tensor
    """[R, N] int32: the lowest id that has it."""
    raw_best: torch.Tensor
    """[R, N] float32: the largest unedited logit."""
    raw_sums: torch.Tensor
    """[R, N] float32: sum of e^(logit - raw_best), where log-probabilities are wanted."""
    masses: torch.Tensor
    """[R, N] int64: the mass of each chunk of a drawn row."""
    scales: torch.Tensor
    """[R] float32: buckets of a filtered row in one temperature."""
    bucket_masses: torch.Tensor
    """[R, buckets] int64, the most likely tokens first."""
    bucket_counts: torch.Tensor
    """[R, buckets] int32: tokens of each, where there is a top-k."""
    spans: torch.Tensor
    """[R, SPANS, SPAN] int64"""
    listed: torch.Tensor
    """[R] int32: how many candidates there are, the tokens of all spans; more than there is room for, maybe."""
    candidates: torch.Tensor
    """[R, room] int32: their logits' keys, in any order."""
    candidate_ids: torch.Tensor
    """[R, room] int32"""
    larger: torch.Tensor
    """[R, N] int32: tokens above the drawn one."""
    tops: torch.Tensor
    """[R, N, tops] int64: each chunk's most likely tokens."""
    results: torch.Tensor
    """[TOP + 2 tops, R] int32, floats as their bits."""


def make_shape(rows: int, vocabulary: int, tops: int) -> Shape:
    require(vocabulary <= MOST_TOKENS, f"the sampler has no room for {vocabulary} tokens")
    chunks = -(-vocabulary // CHUNK)
    lanes = 1 << (chunks - 1).bit_length()
    return Shape(-(-vocabulary // 16) * 16, CHUNK, chunks, lanes, TILE, SORTED, ROOM, BUCKETS, rows, tops)


def make_buffers(shape: Shape, slots: int, device: torch.device) -> Buffers:
    """All but the logits and the parameters; whatever the kernels write before they read it holds anything."""

    def empty(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    by_chunk, by_bucket = (shape.rows, shape.chunks), (shape.rows, shape.buckets)
    return Buffers(
        logits=empty(0), vocabulary=0, stride=0, parameters=empty(shape.rows, RECORD, dtype=torch.int64),
        bias=empty(slots, shape.width, dtype=torch.float32), seen=empty(slots, shape.width),
        best=empty(*by_chunk, dtype=torch.float32), best_ids=empty(*by_chunk),
        raw_best=empty(*by_chunk, dtype=torch.float32), raw_sums=empty(*by_chunk, dtype=torch.float32),
        masses=empty(*by_chunk, dtype=torch.int64), scales=empty(shape.rows, dtype=torch.float32),
        bucket_masses=empty(*by_bucket, dtype=torch.int64), bucket_counts=empty(*by_bucket),
        spans=empty(shape.rows, SPANS, SPAN, dtype=torch.int64), listed=empty(shape.rows),
        candidates=empty(shape.rows, shape.room), candidate_ids=empty(shape.rows, shape.room),
        larger=empty(*by_chunk), tops=empty(*by_chunk, shape.tops, dtype=torch.int64),
        results=empty(TOP + 2 * shape.tops, shape.rows),
    )  # fmt: skip
