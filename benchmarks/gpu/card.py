"""What the card itself does, measured in the same run: every share and ratio stands on it."""

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import torch

from .clock import Call
from .figure import Figure, Stage, Unsupported, seconds_of

PACKAGES: Final = ("torch", "triton", "transformers", "peft", "safetensors", "numpy", "gemlite")
FLOAT8_CAPABILITY: Final = (9, 0)
"""From which on torch multiplies float8 with a scale for each row."""


def figures() -> list[Figure]:
    return [
        Figure("card: copy of device memory, read and written", "GB/s", None, lambda stage: copy_rate(stage) / 1e9),
        Figure("card: bfloat16 product", "TFLOP/s", None, lambda stage: product_rate(stage) / 1e12),
        Figure("card: float8 product, a scale for each row", "TFLOP/s", None, lambda stage: float8_rate(stage) / 1e12),
    ]


@lru_cache(maxsize=1)
def copy_rate(stage: Stage) -> float:
    """Bytes a second, read and written: by torch's copy or by a kernel, whichever is faster. Captured, a copy is a node
    of its own kind, 2.7 TB/s on an H200 whose kernels move 4.2."""
    source = torch.zeros(stage.size.copy_bytes // 4, dtype=torch.int32, device=stage.device)
    target = torch.empty_like(source)
    ways: dict[str, list[Call]] = {
        "copy": [lambda: target.copy_(source)],
        "kernel": [lambda: torch.bitwise_not(source, out=target)],
    }
    return 2 * source.nbytes / min(stage.clock.seconds(ways).values())


@lru_cache(maxsize=1)
def product_rate(stage: Stage) -> float:
    """Operations a second of a large square product."""
    side = stage.size.square
    left, right = stage.random(side, side), stage.random(side, side)
    return 2 * side**3 / seconds_of(stage, [lambda: torch.mm(left, right.T)])


@lru_cache(maxsize=1)
def float8_rate(stage: Stage) -> float:
    side = stage.size.square
    left, right = (stage.random(side, side).to(torch.float8_e4m3fn) for _ in range(2))
    scales = torch.ones(side, 1, device=stage.device)
    return 2 * side**3 / seconds_of(stage, [lambda: scaled_product(stage, left, scales, right, scales.T)])


def scaled_product(
    stage: Stage, values: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """values [T, in] with scales [T, 1] times weight [out, in] with scales [1, out]. Raises Unsupported."""
    if stage.device.type == "cuda" and torch.cuda.get_device_capability(stage.device) < FLOAT8_CAPABILITY:
        raise Unsupported("the card has no float8 product with a scale for each row")
    try:
        product: torch.Tensor = torch._scaled_mm(
            values, weight.T, scales, weight_scales, out_dtype=torch.bfloat16, use_fast_accum=False
        )
    except (RuntimeError, ValueError) as error:
        if stage.device.type == "cuda":
            raise
        # Torch 2.11 knows it on CUDA alone: on a CPU it takes one scale for all rows.
        words = str(error).strip().partition("\n")[0]
        reason = f"torch {torch.__version__} has no float8 product with a scale for each row on a {stage.device.type}"
        raise Unsupported(f"{reason}: {words}") from None
    return product


def describe(device: torch.device) -> dict[str, object]:
    """The card and the versions of what computes on it."""
    described: dict[str, object] = {name: _version(name) for name in PACKAGES}
    if device.type != "cuda":
        return described | {"card": None}
    properties = torch.cuda.get_device_properties(device)
    return described | {
        "card": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
