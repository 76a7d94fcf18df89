"""Norm, gate, cast, embedding and sampling beside the memory's speed."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

import torch

from loraplex.engine.kernels.cuda.embedding import gather_rows
from loraplex.engine.kernels.cuda.gate import multiply_gate
from loraplex.engine.kernels.cuda.norm import add_rms_norm
from loraplex.engine.kernels.cuda.sampling.launch import sample, with_logits
from loraplex.engine.kernels.cuda.sampling.layout import (
    FAILED,
    FILTERED,
    GREEDY,
    INTEGERS,
    RECORD,
    TOKEN,
    Buffers,
    RowParameters,
    Shape,
    make_buffers,
    make_shape,
)  # fmt: skip
from loraplex.quant.kernels.cuda.cast import cast_rows

from .card import copy_rate
from .clock import Call
from .figure import (
    TOLERANCE,
    Figure,
    Stage,
    WrongResult,
    require_call,
    require_close,
    require_same,
    seconds_of,
)  # fmt: skip
from .size import Size

EPS: Final = 1e-5
TOP_P: Final = 0.9
NUCLEUS_SLACK: Final = 1e-5
"""Of the mass, which the reference adds up in another order."""
CAST_TOLERANCE: Final = 0.04
"""Half a step of the largest number in float8 over it."""


def figures(size: Size) -> list[Figure]:
    rows = size.stream_rows
    streams = {
        f"RMS norm with the residual sum, {rows} x {size.hidden}": norm_share,
        f"gate times up, {rows} x {size.intermediate}": gate_share,
        f"cast to float8, {rows} x {size.hidden}": cast_share,
        f"embedding, {rows} rows of {size.hidden}": embedding_share,
    }
    found = [Figure(f"{what}: bytes a second / copy", "x", None, measure) for what, measure in streams.items()]
    for name, mode in (("largest", GREEDY), (f"drawn with top_p {TOP_P}", FILTERED)):
        what = f"sampling, {size.sampled_rows} x {size.vocabulary}, {name}: bytes of the logits a second / copy"
        found.append(Figure(what, "x", None, partial(sampling_share, mode)))
    return found


def norm_share(stage: Stage) -> float:
    x, residual = (stage.random(stage.size.stream_rows, stage.size.hidden) for _ in range(2))
    weight = stage.random(stage.size.hidden)
    total = (x.float() + residual.float()).to(x.dtype)
    kept = residual.clone()
    normed = add_rms_norm(x, kept, weight, EPS)
    require_same(kept, total)
    wanted = total.float()
    wanted = wanted * torch.rsqrt(wanted.pow(2).mean(1, keepdim=True) + EPS) * weight.float()
    require_close(normed, wanted, TOLERANCE)
    require_same(add_rms_norm(x, residual.clone(), weight, EPS), normed)
    # Nothing is added when it is timed, so that each call finds the same residual.
    sides = [(torch.zeros_like(x), kept.clone()) for _ in range(stage.copies(4 * x.nbytes))]
    return share(stage, 4 * x.nbytes, [partial(add_rms_norm, *side, weight, EPS) for side in sides])


def gate_share(stage: Stage) -> float:
    gate_up = stage.random(stage.size.stream_rows, 2 * stage.size.intermediate)
    gate, up = gate_up.float().chunk(2, 1)
    require_call(lambda: multiply_gate(gate_up), torch.nn.functional.silu(gate) * up, TOLERANCE)
    num_bytes = gate_up.nbytes * 3 // 2
    sides = [gate_up.clone() for _ in range(stage.copies(num_bytes))]
    return share(stage, num_bytes, [partial(multiply_gate, side) for side in sides])


def cast_share(stage: Stage) -> float:
    x = stage.random(stage.size.stream_rows, stage.size.hidden)
    values, scales = cast_rows(x)
    require_close(values.float() * scales, x, CAST_TOLERANCE)
    num_bytes = x.nbytes + values.nbytes
    sides = [x.clone() for _ in range(stage.copies(num_bytes))]
    return share(stage, num_bytes, [partial(cast_rows, side) for side in sides])


def embedding_share(stage: Stage) -> float:
    size = stage.size
    table = stage.random(size.vocabulary, size.hidden)
    num_bytes = 2 * size.stream_rows * size.hidden * table.itemsize
    sides = torch.randint(size.vocabulary, (stage.copies(num_bytes), size.stream_rows), device=stage.device)
    require_same(gather_rows(sides[0], table, table.dtype), table[sides[0]])
    return share(stage, num_bytes, [partial(gather_rows, ids, table, table.dtype) for ids in sides])


def share(stage: Stage, num_bytes: int, calls: Sequence[Call]) -> float:
    """Of the rate of a copy, for calls that move that many bytes each, as many as no cache holds."""
    return num_bytes / seconds_of(stage, calls) / copy_rate(stage)


def sampling_share(mode: int, stage: Stage) -> float:
    size = stage.size
    logits, shape, buffers = sampler(stage)
    buffers.parameters.copy_(parameters(size.sampled_rows, mode))

    def draw(values: torch.Tensor) -> torch.Tensor:
        sample(with_logits(buffers, values, shape), shape, draws=mode != GREEDY, logprobs=False)
        return buffers.results[TOKEN]

    calls = [partial(draw, values) for values in logits]
    for call, values in zip(calls, logits[:2], strict=False):
        call()
        check_tokens(buffers.results, values, mode)
    return logits[0].nbytes / seconds_of(stage, calls) / copy_rate(stage)


@lru_cache(maxsize=1)
def sampler(stage: Stage) -> tuple[list[torch.Tensor], Shape, Buffers]:
    """Several steps' logits, and what the kernels take besides."""
    size = stage.size
    rows = size.sampled_rows, size.vocabulary
    logits = [torch.randn(rows, device=stage.device) * 3 for _ in range(stage.copies(4 * rows[0] * rows[1]))]
    shape = make_shape(*rows, 1)
    return logits, shape, make_buffers(shape, 1, stage.device)


def parameters(rows: int, mode: int) -> torch.Tensor:
    """[rows, RECORD] int64 of rows that edit no logits."""
    records = torch.zeros(rows, RECORD, dtype=torch.int64)
    for row in range(rows):
        record = RowParameters(
            mode=mode, seed=row, position=0, slot=0, edits=0, top_k=0, logprobs=-1, temperature=1.0, top_p=TOP_P,
            min_p=0.0, repetition=1.0, frequency=0.0, presence=0.0,
        )  # fmt: skip
        records[row, :INTEGERS] = torch.tensor(record[:INTEGERS])
        floats = torch.tensor(record[INTEGERS:], dtype=torch.float64)
        records[row, INTEGERS : len(record)] = floats.view(torch.int64)
    return records


def check_tokens(results: torch.Tensor, logits: torch.Tensor, mode: int) -> None:
    """Raises WrongResult for a token that is not the largest, or not of the fewest that have top_p of the mass."""
    tokens = results[TOKEN].long()
    if results[FAILED].any():
        raise WrongResult("a row of finite logits failed")
    if mode == GREEDY:
        require_same(tokens, logits.argmax(1))
        return
    weights = logits.double().softmax(1)
    own = weights.gather(1, tokens[:, None])
    above = (weights * (weights > own)).sum(1)
    outside = int((above > TOP_P + NUCLEUS_SLACK).sum())
    if outside:
        raise WrongResult(f"{outside} tokens lie outside the nucleus")
