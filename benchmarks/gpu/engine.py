"""Figures that need the engine on CUDA. Until it runs there, nothing measures them."""

from typing import Final

from .figure import Figure

WAITING: Final = "the engine does not run on CUDA yet"


def figures() -> list[Figure]:
    floors = {
        "decode step of 1 x 1024 tokens, bfloat16: roofline / time": 0.85,
        "decode step of 64 x 1024 tokens, bfloat16: roofline / time": 0.80,
        "0.5B dimensions, decode step of 64 x 1024 tokens: roofline / time": 0.40,
        "GPU busy share, 32 streams": 0.985,
        "1,000 adapters of mixed ranks, Zipf: tokens/s / with 5": 0.95,
        "256 requests: tokens/s / transformers' continuous batching": 2.0,
    }
    ceilings = {
        "64 streams with 1 adapter: time of a token / base": 1.08,
        "64 streams with 8 adapters: time of a token / base": 1.11,
        "64 streams with 64 adapters: time of a token / base": 1.33,
        "adapters enabled and unused: time of a token / base": 1.005,
        "1,000 adapters of mixed ranks, Zipf: P99 time to the first token / with 5": 1.3,
        "W4A16, one stream: time of a token / own bfloat16": 0.42,
    }
    return [Figure(f"engine: {what}", "x", goal, None, note=WAITING) for what, goal in floors.items()] + [
        Figure(f"engine: {what}", "x", goal, None, False, WAITING) for what, goal in ceilings.items()
    ]
