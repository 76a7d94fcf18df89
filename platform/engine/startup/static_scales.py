"""Which scales keys and values of 8 bits are stored with: one for each of them, or static ones that were there before.

Static scales come from a file of `loraplex calibrate-kv` or from the checkpoint. Shapes: G KV heads.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from ..attention.layer import owner
from ..config import EngineConfig
from ..model.config import ModelConfig
from ..model.expected import layer_path
from ..model.folder import FOLDED_SCALES
from ..model.loader import Checkpoint
from .kv_cache_size import EIGHT_BITS, attention_layers, cache_dtype_name
from .scales_file import read_scales_file

AUTO: Final = "auto"
STATIC: Final = "static"
DYNAMIC: Final = "dynamic"
CHOICES: Final = (AUTO, STATIC, DYNAMIC)
NAMES: Final = {
    "k": ("k_scale", "k_proj.k_scale", "k_proj.output_scale", "kv_scale"),
    "v": ("v_scale", "v_proj.v_scale", "v_proj.output_scale", "kv_scale"),
}
"""Where checkpoints have the scales of a layer's keys and of its values; the first that is there counts."""
LEAST: Final = torch.finfo(torch.float32).tiny
MOST: Final = torch.finfo(torch.float32).max / torch.finfo(torch.float8_e5m2).max
"""The scale itself, its inverse and the largest number that 8 bits stand for with it are float32 in full precision."""
REMEDY: Final = "correct the checkpoint, or use --kv-cache-scales dynamic"
OF_FOLDED: Final = "values that AWQ scaled, which get their own size back as they are loaded"
OWN_WORDS: Final = "a scale for each token and KV head"


@dataclass(frozen=True, slots=True)
class CacheScales:
    static: tuple[torch.Tensor, ...] | None = None
    """By layer that attends [2, G] float32, of the keys and of the values that it reads; None: each gets its own, or
    has more than 8 bits."""
    words: str = ""
    """For people; empty with more than 8 bits."""

    @property
    def identity(self) -> str:
        """A part of what a cached prefix was computed with."""
        if self.static is None:
            return ""
        return hashlib.sha256(b"".join(scales.numpy().tobytes() for scales in self.static)).hexdigest()


def choose_scales(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, checkpoint: Checkpoint, fingerprint: str
) -> CacheScales:
    """What `kv_cache_scales` asks for. auto: static scales made for this dtype of the cache where there are any, those
    of the file before those of the checkpoint.

    ValueError for a file of another base (`fingerprint`), for numbers that cannot be scales, and for static where there
    are none for this dtype.
    """
    asked, name = config.kv_cache_scales, cache_dtype_name(dtype)
    if asked not in CHOICES:
        raise ValueError(f"kv_cache_scales {asked!r} is not supported; use {', '.join(CHOICES)}")
    if name not in EIGHT_BITS:
        if asked == STATIC:
            raise ValueError(f"kv_cache_scales is static, and {name} keys and values have no scales: use {_dtypes()}")
        return CacheScales()
    if asked == DYNAMIC:
        return CacheScales(words=OWN_WORDS)
    others: list[str] = []
    for source in (_calibrated, _stored):
        found = source(config, model, checkpoint, fingerprint)
        if found is not None and found.purpose == name:
            return CacheScales(found.scales, f"static scales of {found.words}")
        if found is not None:
            others.append(f"those of {found.words} are for {found.purpose}")
    if asked == STATIC:
        reason = "; ".join(others) or "neither the checkpoint nor the data folder has any"
        raise ValueError(
            f"kv_cache_scales is static, and there are no static scales for {name}: {reason}. "
            f"Make some with: loraplex calibrate-kv --kv-cache-dtype {name}"
        )
    return CacheScales(words="; ".join([OWN_WORDS, *others]))


@dataclass(frozen=True, slots=True)
class _Found:
    scales: tuple[torch.Tensor, ...]
    purpose: str
    """The dtype of the cache that they were made for, as people set it, or what they are for instead."""
    words: str


def _calibrated(config: EngineConfig, model: ModelConfig, checkpoint: Checkpoint, fingerprint: str) -> _Found | None:
    if not config.kv_scales_file:
        return None
    path = Path(config.kv_scales_file)
    file = read_scales_file(path, fingerprint)
    try:
        scales = read_scales(file.tensors, model)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if scales is None:
        raise ValueError(f"{path} has no scales; make it anew with: loraplex calibrate-kv")
    adapters = f"{len(file.adapters)} adapter{'' if len(file.adapters) == 1 else 's'}"
    return _Found(scales, file.kv_cache_dtype, f"{path.name} (calibrated on the base and {adapters})")


def _stored(config: EngineConfig, model: ModelConfig, checkpoint: Checkpoint, fingerprint: str) -> _Found | None:
    """Of the checkpoint. Without a word about it they are meant for e4m3, as the tools that write them have it."""
    scheme = None if model.quantization is None else model.quantization.kv_cache
    suffixes = {suffix for names in NAMES.values() for suffix in names} | {f"{part}_zero_point" for part in NAMES}
    names = [f"{prefix}{suffix}" for prefix in _prefixes(model).values() for suffix in sorted(suffixes)]
    tensors = {name: checkpoint.tensor(name) for name in names if name in checkpoint}
    scales = read_scales(tensors, model)
    if scales is None:
        return None
    if (checkpoint.folder / FOLDED_SCALES).is_file():
        return _Found(scales, OF_FOLDED, "the checkpoint")
    kind = "fp8_e4m3" if scheme is None or scheme.type == "float" else scheme.type
    bits = 8 if scheme is None else scheme.bits
    return _Found(scales, kind if kind == "fp8_e4m3" and bits == 8 else f"{kind}{bits}", "the checkpoint")


def read_scales(tensors: Mapping[str, torch.Tensor], model: ModelConfig) -> tuple[torch.Tensor, ...] | None:
    """As of CacheScales.static, of tensors named as in a checkpoint, one number or one for each KV head in each; None
    where there are none. ValueError names the tensor that is missing or cannot be a scale."""
    layers, prefixes = attention_layers(model), _prefixes(model)
    names = {layer: [_name(tensors, prefix, part) for part in NAMES] for layer, prefix in prefixes.items()}
    if not any(name for pair in names.values() for name in pair):
        return None
    for layer, pair in names.items():
        for part, name in zip(NAMES, pair, strict=True):
            _refuse_zero_point(tensors, f"{prefixes[layer]}{part}_zero_point")
            if name is None:
                raise ValueError(f"{prefixes[layer]}{part}_scale is missing, and others have theirs; {REMEDY}")
    read = {
        layer: torch.stack([_heads(name, tensors[name], layers[layer].num_kv_heads) for name in pair if name])
        for layer, pair in names.items()
    }
    return tuple(read[owner(layers, layer)] for layer in range(len(layers)))


def scale_names(model: ModelConfig) -> dict[int, dict[str, str]]:
    """What the scales of keys (k) and values (v) are called, by the place among layers that attend of each that has
    keys."""
    return {
        layer: {part: f"{prefix}{names[0]}" for part, names in NAMES.items()}
        for layer, prefix in _prefixes(model).items()
    }


def _prefixes(model: ModelConfig) -> dict[int, str]:
    """What the names of a layer's scales begin with, by layer as of `scale_names`."""
    return {
        layer: f"{layer_path(model.spec, number)}{mixer.output.path.rpartition('.')[0]}."
        for layer, (number, mixer) in enumerate(model.spec.attention_layers())
        if mixer.keys_of is None
    }


def _name(tensors: Mapping[str, torch.Tensor], prefix: str, part: str) -> str | None:
    candidates = (f"{prefix}{suffix}" for suffix in NAMES[part])
    return next((name for name in candidates if name in tensors), None)


def _heads(name: str, scale: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[G] float32"""
    sizes = [size for size in scale.shape if size != 1]
    if sizes not in ([], [kv_heads]):
        raise ValueError(f"{name} is {list(scale.shape)} instead of one number or {kv_heads}, one a KV head; {REMEDY}")
    if not scale.is_floating_point():
        kind = str(scale.dtype).removeprefix("torch.")
        raise ValueError(f"{name} is {kind}, and a scale is a floating-point number above zero; {REMEDY}")
    numbers = scale.flatten().double()
    if not bool(((numbers >= LEAST) & (numbers <= MOST)).all()):
        raise ValueError(
            f"{name} is {numbers.tolist()}, which is no scale: a number from {LEAST:.2g} to {MOST:.2g} was expected; "
            f"{REMEDY}"
        )
    return numbers.float().expand(kv_heads)


def _refuse_zero_point(tensors: Mapping[str, torch.Tensor], name: str) -> None:
    if name in tensors and bool(tensors[name].any()):
        raise ValueError(f"{name} is not zero, and keys and values are stored around zero; {REMEDY}")


def _dtypes() -> str:
    return f"--kv-cache-dtype {', '.join(EIGHT_BITS)}"
