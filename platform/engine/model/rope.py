"""Rotary positions: the angles of a configuration as tables of cosines and sines.

x' = x * cos + rotate_half(x) * sin, with both halves of the head turned by the same D / 2 angles.
Formulae: RoFormer (arXiv 2104.09864), Llama 3.1's frequency bands, YaRN (arXiv 2309.00071).
"""

import math

import torch

from .config import RopeConfig

RopeTables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [length, head_dim / 2] float32 of positions 0 to length - 1."""


def rope_tables(rope: RopeConfig, head_dim: int, length: int) -> RopeTables:
    """The attention factor, where there is one, is in the tables."""
    frequencies, factor = inverse_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos() * factor, angles.sin() * factor


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians per position [head_dim / 2] float32, and the factor on cosines and sines.

    `dynamic` scaling changes nothing up to max_position_embeddings, and no sequence grows past that here.
    """
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "linear":
        return plain / rope.parameters["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(plain, rope.parameters), 1.0
    if rope.kind == "yarn":
        return _yarn(plain, rope, head_dim), _yarn_attention_factor(rope.parameters)
    return plain, 1.0


def _llama3(plain: torch.Tensor, parameters: dict[str, float]) -> torch.Tensor:
    factor, low, high = (parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = parameters["original_max_position_embeddings"] * plain / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return plain / factor * (1 - keep) + plain * keep


def _yarn(plain: torch.Tensor, rope: RopeConfig, head_dim: int) -> torch.Tensor:
    parameters = rope.parameters
    first = _dimension_of_turns(parameters.get("beta_fast") or 32, rope, head_dim)
    last = _dimension_of_turns(parameters.get("beta_slow") or 1, rope, head_dim)
    if parameters.get("truncate", 1.0):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first or 0.001)
    scaled = ramp.clamp(0, 1)
    return plain / parameters["factor"] * scaled + plain * (1 - scaled)


def _dimension_of_turns(turns: float, rope: RopeConfig, head_dim: int) -> float:
    """The dimension whose angle makes `turns` full turns over the original length."""
    original = rope.parameters["original_max_position_embeddings"]
    return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_attention_factor(parameters: dict[str, float]) -> float:
    def magnitude(mscale: float) -> float:
        return 0.1 * mscale * math.log(parameters["factor"]) + 1.0 if parameters["factor"] > 1 else 1.0

    if "attention_factor" in parameters:
        return parameters["attention_factor"]
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return magnitude(parameters["mscale"]) / magnitude(parameters["mscale_all_dim"])
    return magnitude(1.0)
