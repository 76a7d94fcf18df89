"""Linears of a 0.5B model on this CPU: the stored schemes against torch's fp32 linear, in one process, best of many.

    python -m benchmarks.bench_linear [--rows 1,16,64] [--rounds 100]

Each call takes the next of several weights, so that they come from memory as in a model.
"""

import argparse

import torch
import torch.nn.functional as F

from benchmarks.timing import best_of_each
from loraplex.engine.device.threads import prepare_environment, set_threads
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.linears.stored_float import StoredFloatLinear
from loraplex.quant.schemes.choose import choose_scheme

SHAPES = {"qkv": (1152, 896), "o": (896, 896), "gate_up": (9728, 896), "down": (896, 4864)}
COPIES_BYTES = 128 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,4,8,16,32,64,256")
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    prepare_environment()
    print(set_threads(), choose_scheme(torch.device("cpu"), torch.bfloat16).reason)
    print(f"{'linear':8} {'M':>4} {'torch fp32':>11} {'bf16 stored':>12} {'speed-up':>8} {'GFLOP/s':>8} {'GB/s':>6}")
    for name, (outputs, inputs) in SHAPES.items():
        for rows in map(int, arguments.rows.split(",")):
            measure(name, outputs, inputs, rows, arguments.rounds)


def measure(name: str, outputs: int, inputs: int, rows: int, rounds: int) -> None:
    copies = max(2, COPIES_BYTES // (outputs * inputs * 4))
    weights = [torch.randn(outputs, inputs) / inputs**0.5 for _ in range(copies)]
    methods = [stored(weight) for weight in weights]
    x = torch.randn(rows, inputs)
    seconds = best_of_each(
        {
            "torch": lambda index: F.linear(x, weights[index % copies]),
            "stored": lambda index: methods[index % copies].apply(x),
        },
        rounds,
    )
    print(
        f"{name:8} {rows:4} {seconds['torch'] * 1e6:8.0f} us {seconds['stored'] * 1e6:9.0f} us"
        f" {seconds['torch'] / seconds['stored']:8.2f} {2 * rows * outputs * inputs / seconds['stored'] / 1e9:8.0f}"
        f" {2 * outputs * inputs / seconds['stored'] / 1e9:6.1f}",
        flush=True,
    )


def stored(weight: torch.Tensor) -> LinearMethod:
    method = StoredFloatLinear(weight.shape[1], (weight.shape[0],), torch.bfloat16)
    method.load(0, weight, None)
    method.finish()
    return method


if __name__ == "__main__":
    main()
