"""Fields of a config.json, each read and checked in one place. ValueError says what is missing or unsupported."""

import math
import struct
from collections.abc import Mapping
from typing import Any, Final

from .spec import Activation, RopeConfig

Raw = Mapping[str, Any]

ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
"""transformers' names of what is computed here."""
FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls a layer's attention."""
DTYPES: Final = ("bfloat16", "float16", "float32")
"""That weights may be stored in."""
ROPE_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("original_max_position_embeddings",),
    "proportional": (),
}
"""What each supported kind of rope scaling must say. ROPE_OPTIONS has what some may say besides."""
ROPE_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("factor", "attention_factor"),
    "proportional": ("factor", "partial_rotary_factor"),
}
ORIGINAL: Final = "original_max_position_embeddings"
LONGROPE_LISTS: Final = ("short_factor", "long_factor")


def stored_dtype(raw: Raw) -> str:
    """Of the weights: one of DTYPES."""
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"the checkpoint's dtype {name} is not supported; supported: {', '.join(DTYPES)}")
    return name


def rounded(value: float, dtype: str) -> float:
    """To the nearest number of a dtype of DTYPES, ties to even."""
    if dtype == "bfloat16":
        [bits] = struct.unpack("<I", struct.pack("<f", value))
        return float(struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0])
    code = "<e" if dtype == "float16" else "<f"
    return float(struct.unpack(code, struct.pack(code, value))[0])


def positive(raw: Raw, name: str, default: int | None = None) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config.json must give {name} as a positive integer, got {value!r}")
    return value


def whole_number(raw: Raw, name: str, default: int) -> int:
    """0 or more."""
    return 0 if raw.get(name) == 0 and raw[name] is not False else positive(raw, name, default)


def number(raw: Raw, name: str, default: float | None = None) -> float:
    value = raw.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"config.json must give {name} as a number, got {value!r}")
    return float(value)


def above_zero(raw: Raw, name: str, default: float | None = None) -> float:
    value = number(raw, name, default)
    if value <= 0:
        raise ValueError(f"config.json must give {name} as a number above 0, got {value!r}")
    return value


def flag(raw: Raw, name: str, default: bool = False) -> bool:
    value = raw.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"config.json must give {name} as true or false, got {value!r}")
    return default if value is None else value


def window(raw: Raw, default: int | None = None) -> int | None:
    """sliding_window; `default`: where it is not there. None: layers see all tokens."""
    said = raw.get("sliding_window", default)
    return None if said is None else positive({"sliding_window": said}, "sliding_window")


def activation(raw: Raw, name: str, default: str, supported: tuple[Activation, ...] | None = None) -> Activation:
    """`supported`: those that the family has; None: all."""
    said = raw.get(name) or default
    found = ACTIVATIONS.get(said) if isinstance(said, str) else None
    if found is None or (supported is not None and found not in supported):
        words = [name for name, kind in ACTIVATIONS.items() if supported is None or kind in supported]
        raise ValueError(f"{name} {said!r} is not supported; supported: {', '.join(words)}")
    return found


def heads(raw: Raw) -> tuple[int, int]:
    """Query heads and KV heads."""
    num_heads = positive(raw, "num_attention_heads")
    num_kv_heads = positive(raw, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    return num_heads, num_kv_heads


def head_size(raw: Raw, default: int | None = None) -> int:
    """`default`: where nothing is said; None: hidden_size over the number of heads."""
    shared = positive(raw, "hidden_size") // positive(raw, "num_attention_heads")
    size = positive(raw, "head_dim", default or shared)
    if size % 2:
        raise ValueError(f"head_dim {size} is odd; rotary positions need an even head_dim")
    return size


def layer_types(raw: Raw, supported: tuple[str, ...], default: list[str]) -> list[str]:
    """What each layer is; `default`, of at least as many, where config.json does not say."""
    num_layers, said = positive(raw, "num_hidden_layers"), raw.get("layer_types")
    types = default[:num_layers] if said is None else said
    if not isinstance(types, list) or not all(isinstance(kind, str) for kind in types):
        raise ValueError(f"layer_types must be a list of words, one for each layer; supported: {', '.join(supported)}")
    unknown = sorted({kind for kind in types if kind not in supported})
    if unknown:
        raise ValueError(
            f"layer_types has {', '.join(unknown)}, which is not supported; supported: {', '.join(supported)}"
        )
    if len(types) != num_layers:
        raise ValueError(
            f"layer_types has {len(types)} entries for {num_layers} layers; it must have one for each, as "
            "num_hidden_layers counts them"
        )
    return types


def layers_alike(raw: Raw, kind: str = FULL) -> int:
    """How many layers there are, where the family has one kind of them."""
    count = positive(raw, "num_hidden_layers")
    return len(layer_types(raw, (kind,), [kind] * count))


def rope(raw: Raw, head_dim: int, *, said: Raw | None = None, may_be_partial: bool = False) -> RopeConfig:
    """`said`: rope parameters of a kind of layer; None: those of the model. `may_be_partial`: whether the family turns
    a part of each head where config.json says so.

    transformers 4 writes `rope_theta` and `rope_scaling`, transformers 5 writes `rope_parameters`; both are read.
    """
    said = said_of_rope(raw) if said is None else said
    kind = said.get("rope_type") or said.get("type") or "default"
    if kind not in ROPE_PARAMETERS:
        raise ValueError(f"rope scaling {kind!r} is not supported; supported: {', '.join(ROPE_PARAMETERS)}")
    said = {ORIGINAL: _original_length(raw, said)} | dict(said)
    missing = [name for name in ROPE_PARAMETERS[kind] if said.get(name) is None]
    if missing:
        raise ValueError(f"rope scaling {kind!r} lacks {', '.join(missing)} in config.json")
    names = ROPE_PARAMETERS[kind] + ROPE_OPTIONS.get(kind, ())
    parameters = {name: _parameter(said, name) for name in names if said.get(name) is not None}
    theta = above_zero(dict(raw) | dict(said), "rope_theta", 10_000.0)
    dims = head_dim if kind == "proportional" else _rotated(raw, said, head_dim, may_be_partial)
    if kind != "longrope":
        return RopeConfig(kind, theta, parameters, dims)
    longest = positive(raw, "max_position_embeddings")
    parameters.setdefault("factor", longest / parameters[ORIGINAL])
    short, long = (_factors(said, name, dims) for name in LONGROPE_LISTS)
    return RopeConfig(kind, theta, parameters, dims, factors=short, long_factors=long)


def said_of_rope(raw: Raw) -> Raw:
    """rope_scaling where it says something, as in transformers; else rope_parameters."""
    said = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(said, Mapping):
        raise ValueError(f"config.json must give rope parameters as an object, got {said!r}")
    return said


def _parameter(said: Raw, name: str) -> float:
    if name == "truncate":
        return float(flag(said, name))
    return above_zero(said, name) if name == "factor" else number(said, name)


def _original_length(raw: Raw, said: Raw) -> int:
    """Outside of rope parameters or among them: versions of transformers differ in which of two they take."""
    outside, inside = raw.get(ORIGINAL), said.get(ORIGINAL)
    if outside is not None and inside is not None and outside != inside:
        raise ValueError(f"{ORIGINAL} is {outside} in config.json and {inside} in its rope parameters; give it once")
    return positive(raw, ORIGINAL, positive(raw, "max_position_embeddings"))


def _factors(said: Raw, name: str, dims: int) -> tuple[float, ...]:
    """Of longrope, one for each frequency."""
    listed = said.get(name)
    if not isinstance(listed, list) or len(listed) != dims // 2:
        raise ValueError(f"rope scaling 'longrope' must give {name} as a list of {dims // 2} numbers in config.json")
    return tuple(number({name: factor}, name) for factor in listed)


def _rotated(raw: Raw, said: Raw, head_dim: int, may_be_partial: bool) -> int:
    """Dimensions of a head that turn."""
    share = number(dict(raw) | dict(said), "partial_rotary_factor", 1.0)
    dims = int(head_dim * share)
    if dims != head_dim and not may_be_partial:
        raise ValueError("partial_rotary_factor is not supported for this family; the whole head must be rotated")
    if not 2 <= dims <= head_dim or dims % 2:
        raise ValueError(
            f"partial_rotary_factor {share!r} turns {dims} of {head_dim} dimensions; it must be an even number of them"
        )
    return dims
