"""Rotary positions: the angles of a configuration as tables of cosines and sines.

x' = x * cos + rotate_half(x) * sin, with both halves of the head turned by the same D / 2 angles.
Formulae: RoFormer (arXiv 2104.09864), Llama 3.1's frequency bands, YaRN (arXiv 2309.00071),
LongRoPE (arXiv 2402.13753).
"""

import math
from collections.abc import Mapping

import torch

from .description.spec import QueryScale, RopeConfig

RopeTables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [length, dims / 2] float32 of positions 0 to length - 1."""


def rope_tables(rope: RopeConfig, length: int) -> RopeTables:
    """The attention factor, where there is one, is in the tables."""
    frequencies, factor = inverse_frequencies(rope, length)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos() * factor, angles.sin() * factor


def query_scales(scale: QueryScale, length: int) -> torch.Tensor:
    """[length] float32 of positions 0 to length - 1."""
    positions = torch.arange(length, dtype=torch.float32)
    return 1 + scale.beta * torch.log(1 + torch.floor(positions / scale.length))


def inverse_frequencies(rope: RopeConfig, length: int) -> tuple[torch.Tensor, float]:
    """Radians per position [dims / 2] float32, and the factor on cosines and sines, for sequences of at most `length`.

    `dynamic` scaling changes nothing up to max_position_embeddings, and no sequence grows past that here.
    """
    plain = 1.0 / rope.theta ** (torch.arange(0, rope.dims, 2, dtype=torch.float32) / rope.dims)
    if rope.kind == "linear":
        return plain / rope.parameters["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(plain, rope.parameters), 1.0
    if rope.kind == "yarn":
        return _yarn(plain, rope), _yarn_attention_factor(rope.parameters)
    if rope.kind == "proportional":
        return _proportional(plain, rope), 1.0
    if rope.kind == "longrope":
        return _longrope(rope, length), _longrope_attention_factor(rope.parameters)
    return plain, 1.0


def _proportional(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """The slowest of the whole head's frequencies stand still."""
    turning = int(rope.parameters.get("partial_rotary_factor", 1.0) * rope.dims // 2)
    still = torch.arange(len(plain)) >= turning
    return plain.masked_fill(still, 0.0) / rope.parameters.get("factor", 1.0)


def _llama3(plain: torch.Tensor, parameters: Mapping[str, float]) -> torch.Tensor:
    factor, low, high = (parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = parameters["original_max_position_embeddings"] * plain / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return plain / factor * (1 - keep) + plain * keep


def _yarn(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    parameters = rope.parameters
    first = _dimension_of_turns(parameters.get("beta_fast") or 32, rope)
    last = _dimension_of_turns(parameters.get("beta_slow") or 1, rope)
    if parameters.get("truncate", 1.0):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dims - 1)
    ramp = (torch.arange(rope.dims // 2, dtype=torch.float32) - first) / (last - first or 0.001)
    scaled = ramp.clamp(0, 1)
    return plain / parameters["factor"] * scaled + plain * (1 - scaled)


def _dimension_of_turns(turns: float, rope: RopeConfig) -> float:
    """The dimension whose angle makes `turns` full turns over the original length."""
    original = rope.parameters["original_max_position_embeddings"]
    return rope.dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_attention_factor(parameters: Mapping[str, float]) -> float:
    def magnitude(mscale: float) -> float:
        return 0.1 * mscale * math.log(parameters["factor"]) + 1.0 if parameters["factor"] > 1 else 1.0

    if "attention_factor" in parameters:
        return parameters["attention_factor"]
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return magnitude(parameters["mscale"]) / magnitude(parameters["mscale_all_dim"])
    return magnitude(1.0)


def _longrope(rope: RopeConfig, length: int) -> torch.Tensor:
    assert rope.original_length is not None
    factors = torch.tensor(rope.long_factors if length > rope.original_length else rope.factors)
    return 1.0 / (factors * rope.theta ** (torch.arange(0, rope.dims, 2, dtype=torch.float32) / rope.dims))


def _longrope_attention_factor(parameters: Mapping[str, float]) -> float:
    """The same for short and long sequences."""
    if "attention_factor" in parameters:
        return parameters["attention_factor"]
    factor, original = parameters["factor"], parameters["original_max_position_embeddings"]
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
