"""Quantized linears: weights of 4 bits beside the memory's speed and cuBLAS, float8 beside torch's scaled product."""

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final

import torch
import torch.nn.functional as F

from loraplex.engine.kernels.cuda.gate import multiply_gate, multiply_gate_cast
from loraplex.engine.kernels.cuda.norm import add_rms_norm, add_rms_norm_cast
from loraplex.quant.kernels.cuda.cast import cast_rows
from loraplex.quant.kernels.cuda.dense.few_rows import multiply_few_rows
from loraplex.quant.kernels.cuda.linear import multiply_dense, multiply_packed
from loraplex.quant.kernels.cuda.tiles import DENSE_ROWS
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.cuda_scaled_float8 import CudaScaledFloat8Linear
from loraplex.quant.linears.scheme import Float8Rows
from loraplex.quant.weights.weights import IntegerWeight
from tests.quant.kernels.weights import random_float8, random_integers

from .card import copy_rate, scaled_product
from .clock import Call
from .figure import FLOAT8_TOLERANCE, TOLERANCE, Figure, Stage, require_call, seconds_of
from .packed_peers import checked_peer
from .size import Size

EPS: Final = 1e-5
"""Of the norm."""
PEER_SECONDS: Final = 3.0
CASTS: Final = {
    "qkv": "with the cast of its norm", "o": "with its cast", "gate_up": "with the cast of its norm",
    "down": "with the cast of the gate",
}  # fmt: skip


def figures(size: Size) -> list[Figure]:
    found = []
    for name in size.linears:
        for rows in size.few_rows:
            what = f"W4A16 {name}, {rows} rows: bytes of the weight a second / copy"
            found.append(Figure(what, "x", 0.75, partial(share_of_copy, name, rows)))
        for rows in size.many_rows:
            what = f"W4A16 {name}, {rows} rows: speed / cuBLAS bfloat16"
            found.append(Figure(what, "x", 0.85, partial(beside_cublas, name, rows)))
        what = f"W4A16 {name}, {DENSE_ROWS} rows: speed of the packed kernel / of dense slices"
        found.append(Figure(what, "x", None, partial(packed_beside_dense, name, DENSE_ROWS)))
    for name in size.linears:
        for rows in size.float8_rows:
            what = f"FP8 {name}, {rows} rows: scaled product alone / what it takes {CASTS[name]}"
            found.append(Figure(what, "x", 0.95, partial(beside_scaled_product, name, rows)))
    # Last, as gemlite tries its own tiles for seconds.
    for name in size.linears:
        for rows in (*size.few_rows, DENSE_ROWS):
            what = f"W4A16 {name}, {rows} rows: speed / gemlite"
            found.append(Figure(what, "x", 1.0, partial(beside_peer, "gemlite", name, rows), seconds=PEER_SECONDS))
    for name in size.linears:
        for rows in size.dense_rows:
            what = f"bfloat16 {name}, {rows} rows: speed of the product for few rows / torch's"
            found.append(Figure(what, "x", None, partial(few_beside_torch, name, rows)))
    name, peer = "gate_up", "torch's _weight_int4pack_mm"
    what = f"W4A16 {name}, {size.few_rows[-1]} rows: speed / {peer}"
    return [*found, Figure(what, "x", 1.0, partial(beside_peer, peer, name, size.few_rows[-1]))]


def share_of_copy(name: str, rows: int, stage: Stage) -> float:
    methods, weight = four_bits(stage, name)
    x = checked(stage, methods[0].apply, weight, rows, TOLERANCE)
    taken = seconds_of(stage, [partial(method.apply, x) for method in methods])
    return methods[0].weight_bytes() / taken / copy_rate(stage)


def beside_cublas(name: str, rows: int, stage: Stage) -> float:
    methods, weight = four_bits(stage, name)
    x = checked(stage, methods[0].apply, weight, rows, TOLERANCE)
    dense = weight.to(stage.size.dtype)
    weights = [dense.clone() for _ in range(stage.copies(dense.nbytes))]
    sides: dict[str, Sequence[Call]] = {
        "ours": [partial(method.apply, x) for method in methods],
        "cublas": _linears(x, weights),
    }
    taken = stage.clock.seconds(sides)
    return taken["cublas"] / taken["ours"]


def _linears(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[Callable[[], torch.Tensor]]:
    return [partial(F.linear, x, weight) for weight in weights]


def packed_beside_dense(name: str, rows: int, stage: Stage) -> float:
    """Above or below 1, tiles.DENSE_ROWS is too low or too high."""
    methods, weight = four_bits(stage, name)
    y = torch.empty(rows, len(weight), dtype=stage.size.dtype, device=stage.device)

    def product(multiply: Callable[..., None], x: torch.Tensor) -> torch.Tensor:
        multiply(y, x, methods[0]._weights[0], None)
        return y.clone()

    for multiply in (multiply_packed, multiply_dense):
        x = checked(stage, partial(product, multiply), weight, rows, TOLERANCE)
    weights = [method._weights[0] for method in methods]
    taken = stage.clock.seconds(
        {
            "packed": [partial(multiply_packed, y, x, weight, None) for weight in weights],
            "dense": [partial(multiply_dense, y, x, weight, None) for weight in weights],
        }
    )
    return taken["dense"] / taken["packed"]


def beside_peer(peer: str, name: str, rows: int, stage: Stage) -> float:
    methods, weight = four_bits(stage, name)
    x = checked(stage, methods[0].apply, weight, rows, TOLERANCE)
    products = checked_peer(stage, peer, codes_of(stage, name), x, x.float() @ weight.T)
    taken = stage.clock.seconds(
        {
            "ours": [partial(method.apply, x) for method in methods],
            "theirs": [partial(product, x) for product in products],
        }
    )
    return taken["theirs"] / taken["ours"]


def few_beside_torch(name: str, rows: int, stage: Stage) -> float:
    """Above 1, decodes of so few rows should take it."""
    outputs, inputs = stage.size.linears[name]
    weight = stage.random(outputs, inputs, scale=0.02)
    weights = [weight, *[weight.clone() for _ in range(stage.copies(weight.nbytes) - 1)]]
    y = torch.empty(rows, outputs, dtype=weight.dtype, device=stage.device)

    def product(x: torch.Tensor) -> torch.Tensor:
        multiply_few_rows(y, x, weight, None)
        return y.clone()

    x = checked(stage, product, weight.float(), rows, TOLERANCE)
    ours = [partial(multiply_few_rows, y, x, each, None) for each in weights]
    taken = stage.clock.seconds({"ours": ours, "torch": _linears(x, weights)})
    return taken["torch"] / taken["ours"]


def beside_scaled_product(name: str, rows: int, stage: Stage) -> float:
    """Of the time beyond what making x takes without a cast, where the kernel that makes it casts it too."""
    methods, weight = eight_bits(stage, name)
    values = stage.random(rows, weight.shape[1]).to(torch.float8_e4m3fn)
    scales = torch.ones(rows, 1, device=stage.device)
    theirs = [partial(scaled_product, stage, values, scales, method._weight, method._scales) for method in methods]
    theirs[0]()
    x = checked(stage, methods[0].apply, weight, rows, FLOAT8_TOLERANCE)
    made, cast = makers(stage, name, x)
    ours = [partial(multiply_made, method, cast) for method in methods]
    require_call(ours[0], made().float() @ weight.T, FLOAT8_TOLERANCE)
    sides: dict[str, Sequence[Call]] = {} if name == "o" else {"made": [made for _ in methods]}
    taken = stage.clock.seconds({**sides, "ours": ours, "theirs": theirs})
    return taken["theirs"] / (taken["ours"] - taken.get("made", 0.0))


def multiply_made(method: CudaScaledFloat8Linear, cast: Callable[[], Float8Rows]) -> torch.Tensor:
    return method.apply_cast(cast())


def makers(
    stage: Stage, name: str, x: torch.Tensor
) -> tuple[Callable[[], torch.Tensor], Callable[[], Float8Rows]]:  # fmt: skip
    """What the engine makes the inputs of a linear with, plain and cast: the norm, or the gate; the output's come from
    attention and are cast by themselves."""
    if name == "o":
        return (lambda: x), lambda: cast_rows(x)
    if name == "down":
        gate_up = stage.random(len(x), 2 * x.shape[1])
        return partial(multiply_gate, gate_up), lambda: multiply_gate_cast(gate_up)[1:]
    gain, nothing = stage.random(x.shape[1]), torch.zeros_like(x)
    return partial(add_rms_norm, nothing, x, gain, EPS), lambda: add_rms_norm_cast(nothing, x, gain, EPS)[1:]


def codes_of(stage: Stage, name: str) -> IntegerWeight:
    outputs, inputs = stage.size.linears[name]
    return random_integers(outputs, inputs, 4, inputs // stage.size.group)


@lru_cache(maxsize=1)
def four_bits(stage: Stage, name: str) -> tuple[list[CudaPackedLinear], torch.Tensor]:
    """Copies of one weight, as many as no cache holds, and the weight as float32 [out, in]."""
    weight = codes_of(stage, name)
    outputs, inputs = weight.shape
    method = CudaPackedLinear(inputs, (outputs,), stage.size.dtype, stage.device)
    method.load(0, weight, None)
    method.finish()
    copies = [copy.deepcopy(method) for _ in range(stage.copies(method.weight_bytes()))]
    return [method, *copies], weight.dequantized().to(stage.device)


@lru_cache(maxsize=1)
def eight_bits(stage: Stage, name: str) -> tuple[list[CudaScaledFloat8Linear], torch.Tensor]:
    outputs, inputs = stage.size.linears[name]
    weight = random_float8(outputs, inputs, (1, inputs))
    method = CudaScaledFloat8Linear(inputs, (outputs,), stage.device)
    method.load(0, weight, None)
    method.finish()
    copies = [copy.deepcopy(method) for _ in range(stage.copies(method.weight_bytes()))]
    return [method, *copies], weight.dequantized().to(stage.device)


def checked(
    stage: Stage, apply: Callable[[torch.Tensor], torch.Tensor], weight: torch.Tensor, rows: int, tolerance: float
) -> torch.Tensor:
    """x [rows, in] for which `apply` gives x W^T. Raises WrongResult."""
    x = stage.random(rows, weight.shape[1])
    require_call(partial(apply, x), x.float() @ weight.T, tolerance)
    return x
