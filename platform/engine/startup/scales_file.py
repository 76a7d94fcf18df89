"""The file of static KV-cache scales that `loraplex calibrate-kv` writes, its tensors named as in a checkpoint."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

KIND: Final = "loraplex KV-cache scales 1"
REMEDY: Final = "make it anew with `loraplex calibrate-kv`, delete it, or use --kv-cache-scales dynamic"


@dataclass(frozen=True, slots=True)
class ScalesFile:
    tensors: Mapping[str, torch.Tensor]
    base: str
    """Fingerprint of the base model."""
    kv_cache_dtype: str
    adapters: tuple[str, ...]
    """Digests of those that text was read with, beside the base."""


def write_scales_file(path: Path, scales: ScalesFile) -> None:
    """It appears complete or not at all. ValueError where it cannot be written."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    metadata = {
        "kind": KIND,
        "base": scales.base,
        "kv_cache_dtype": scales.kv_cache_dtype,
        "adapters": " ".join(scales.adapters),
    }
    try:
        save_file(dict(scales.tensors), unfinished, metadata)
        unfinished.replace(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def read_scales_file(path: Path, base: str) -> ScalesFile:
    """ValueError for a file that is broken, something else, or of another base than that of the fingerprint `base`."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a valid safetensors file: {error}; {REMEDY}") from error
    if metadata.get("kind") != KIND:
        raise ValueError(f"{path} holds no KV-cache scales of loraplex; {REMEDY}")
    if metadata.get("base") != base:
        raise ValueError(f"the KV-cache scales in {path} were made for another base model than this one; {REMEDY}")
    adapters = tuple(metadata.get("adapters", "").split())
    return ScalesFile(tensors, base, metadata.get("kv_cache_dtype", ""), adapters)
