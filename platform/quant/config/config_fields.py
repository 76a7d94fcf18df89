"""Fields of a quantization config, read with their types checked, and the one refusal of what is not accepted."""

from collections.abc import Mapping
from typing import Any, Final

ACCEPTED: Final = (
    "awq (4 bits, version gemm); gptq (4 or 8 bits, checkpoint_format gptq or gptq_v2); compressed-tensors "
    "(pack-quantized and int-quantized with 4 or 8 bits, float-quantized and naive-quantized with 8 bits); "
    "fp8 (per tensor, or by blocks); mxfp4"
)


def refused(what: str) -> ValueError:
    return ValueError(
        f"the checkpoint is quantized in a way that is not accepted: {what}. Accepted: {ACCEPTED}. "
        "Take a checkpoint in one of these forms, or the unquantized one"
    )


def integer(said: Mapping[str, Any], name: str, default: int) -> int:
    value = said.get(name)
    value = default if value is None else value
    if type(value) is not int:
        raise ValueError(f"{name} of the quantization in config.json must be an integer, got {value!r}")
    return value


def flag(said: Mapping[str, Any], name: str, default: bool) -> bool:
    value = said.get(name)
    value = default if value is None else value
    if type(value) is not bool:
        raise ValueError(f"{name} of the quantization in config.json must be true or false, got {value!r}")
    return value


def strings(said: Mapping[str, Any], name: str) -> list[str]:
    value = said.get(name) or []
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ValueError(f"{name} of the quantization in config.json must be a list of names, got {value!r}")
    return value


def section(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Fields of their own; none where it is left out."""
    value = said.get(name)
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise ValueError(f"{name} of the quantization in config.json must be an object, got {value!r}")
    return value


def whole(group_size: int) -> int | None:
    """A group size; -1 stands for whole rows, which are None here."""
    if group_size == -1:
        return None
    if group_size < 1:
        raise ValueError(f"group_size of the quantization in config.json must be positive or -1, got {group_size}")
    return group_size
