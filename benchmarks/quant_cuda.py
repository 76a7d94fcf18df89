"""Quantized linears of Llama 3.1 8B on a CUDA device, beside the memory's speed, cuBLAS and torch's scaled product.

    python -m benchmarks.quant_cuda [--rounds 20] [--only NAME ...]

Each figure is a ratio of one run. A call takes the next of several weights, so that they come from memory as in a
model; calls are replayed as a CUDA graph. A weight whose product is wrong stops the run before any speed is shown.
Without a CUDA device the rows say "not measured".
"""

import argparse
import copy
import statistics
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F

from loraplex.quant.cuda_packed import CudaPackedLinear
from loraplex.quant.cuda_scaled_float8 import CudaScaledFloat8Linear
from loraplex.quant.kernels.cuda.linear import multiply_dense, multiply_packed
from loraplex.quant.kernels.cuda.tiles import DENSE_ROWS
from loraplex.quant.scheme import LinearMethod
from tests.quant.kernels.weights import random_float8, random_integers

from .report import Row, publish, show

SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""Outputs and inputs."""
GROUP = 128
COLD_BYTES = 256 << 20
"""Weights that calls take in turn: several times the second-level cache."""
COPY_BYTES = 1 << 30
CHECKED_ROWS = (1, 16, 65, 512, 1024)
TOLERANCE = 0.02
"""Largest difference over the largest result: bfloat16 weights and results; activations in float8 have 3 bits."""
FLOAT8_TOLERANCE = 0.1
Call = Callable[[], object]
Method = TypeVar("Method", bound=LinearMethod)


class Figure(NamedTuple):
    what: str
    unit: str
    goal: float | None
    measure: Callable[[int], float]
    """Rounds -> value."""


class Applies(Protocol):
    def apply(self, x: torch.Tensor) -> torch.Tensor: ...


def figures() -> dict[str, list[Figure]]:
    w4a16 = [Figure("copy", "GB/s", None, copy_rate)]
    for name in SHAPES:
        for rows in (1, 16):
            what = f"W4A16 {name}, {rows} rows: bytes of the weight a second / copy"
            w4a16.append(Figure(what, "x", 0.75, partial(share_of_copy, name, rows)))
        for rows in (512, 2048):
            what = f"W4A16 {name}, {rows} rows: speed / cuBLAS bfloat16"
            w4a16.append(Figure(what, "x", 0.85, partial(beside_cublas, name, rows)))
        what = f"W4A16 {name}, {DENSE_ROWS} rows: speed of the packed kernel / of dense slices"
        w4a16.append(Figure(what, "x", None, partial(packed_beside_dense, name, DENSE_ROWS)))
    float8 = []
    for name in SHAPES:
        for rows in (2048, 8192):
            what = f"FP8 {name}, {rows} rows: speed with the cast / scaled product alone"
            float8.append(Figure(what, "x", 0.95, partial(beside_scaled_product, name, rows)))
    return {"w4a16": w4a16, "float8": float8}


def rows_of(figures: list[Figure], rounds: int) -> list[Row]:
    """Measured where there is a CUDA device."""
    here = torch.cuda.is_available()
    return [Row(figure.what, figure.measure(rounds) if here else None, figure.unit, figure.goal) for figure in figures]


def copy_rate(rounds: int) -> float:
    """Read and written, GB/s."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / seconds([lambda: target.copy_(source)], rounds) / 1e9


def share_of_copy(name: str, rows: int, rounds: int) -> float:
    methods = cold(four_bits(name))
    taken = seconds([partial(method.apply, activations(name, rows)) for method in methods], rounds)
    return methods[0].weight_bytes() / taken / 1e9 / copy_rate(rounds)


def beside_cublas(name: str, rows: int, rounds: int) -> float:
    methods, x = cold(four_bits(name)), activations(name, rows)
    weights = [torch.randn(SHAPES[name], dtype=torch.bfloat16, device="cuda") for _ in methods]
    theirs = seconds([partial(F.linear, x, weight) for weight in weights], rounds)
    return theirs / seconds([partial(method.apply, x) for method in methods], rounds)


def packed_beside_dense(name: str, rows: int, rounds: int) -> float:
    """Above or below 1, tiles.DENSE_ROWS is too low or too high."""
    methods, x = cold(four_bits(name)), activations(name, rows)
    y = torch.empty(rows, SHAPES[name][0], dtype=x.dtype, device="cuda")
    weights = [method._weights[0] for method in methods]
    dense = seconds([partial(multiply_dense, y, x, weight, None) for weight in weights], rounds)
    return dense / seconds([partial(multiply_packed, y, x, weight, None) for weight in weights], rounds)


def beside_scaled_product(name: str, rows: int, rounds: int) -> float:
    weight = random_float8(*SHAPES[name], (1, SHAPES[name][1]))
    method = CudaScaledFloat8Linear(SHAPES[name][1], (SHAPES[name][0],), torch.device("cuda"))
    method.load(0, weight, None)
    method.finish()
    check(method, weight.dequantized().cuda(), FLOAT8_TOLERANCE)
    methods, x = cold(method), activations(name, rows)
    values, scale = x.to(torch.float8_e4m3fn), torch.ones(rows, 1, device="cuda")
    theirs = seconds([partial(scaled_product, values, scale, method) for method in methods], rounds)
    return theirs / seconds([partial(method.apply, x) for method in methods], rounds)


def scaled_product(values: torch.Tensor, scale: torch.Tensor, method: CudaScaledFloat8Linear) -> torch.Tensor:
    product: torch.Tensor = torch._scaled_mm(
        values, method._weight.T, scale, method._scales, out_dtype=torch.bfloat16, use_fast_accum=False
    )
    return product


def four_bits(name: str) -> CudaPackedLinear:
    outputs, inputs = SHAPES[name]
    weight = random_integers(outputs, inputs, 4, inputs // GROUP)
    method = CudaPackedLinear(inputs, (outputs,), torch.bfloat16, torch.device("cuda"))
    method.load(0, weight, None)
    method.finish()
    check(method, weight.dequantized().cuda(), TOLERANCE)
    return method


def activations(name: str, rows: int) -> torch.Tensor:
    return torch.randn(rows, SHAPES[name][1], dtype=torch.bfloat16, device="cuda")


def check(method: Applies, weight: torch.Tensor, tolerance: float) -> None:
    """Raises RuntimeError for a product that is not x W^T, or not the same bits twice."""
    for rows in CHECKED_ROWS:
        x = torch.randn(rows, weight.shape[1], dtype=torch.bfloat16, device=weight.device)
        y, wanted = method.apply(x), x.float() @ weight.T
        off = float((y.float() - wanted).abs().max() / wanted.abs().max())
        if not off <= tolerance or not torch.equal(y, method.apply(x)):
            raise RuntimeError(f"{rows} rows: off by {off:.3g} of the largest or not the same twice: no speed is shown")


def cold(method: Method) -> list[Method]:
    """As many copies as the caches cannot hold."""
    return [method] + [copy.deepcopy(method) for _ in range(COLD_BYTES // method.weight_bytes() + 1)]


def seconds(calls: list[Call], rounds: int) -> float:
    """Of one call: all of them captured as one graph, median of `rounds` replays."""
    calls[0]()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(rounds + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000 / len(calls))
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = figures()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="*", choices=list(parts), default=list(parts))
    arguments = parser.parse_args()
    for name in arguments.only:
        rows = rows_of(parts[name], arguments.rounds)
        if torch.cuda.is_available():
            notes = {"rounds": arguments.rounds, "device": torch.cuda.get_device_name()}
            print(publish(f"quant-cuda-{name}", rows, notes))
        else:
            show(f"quant-cuda-{name}", rows)


if __name__ == "__main__":
    main()
