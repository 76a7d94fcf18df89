"""QuantizationConfig: which tensors stand for each linear of a quantized checkpoint, out of its config.json. No torch.

Of schemes that quantize activations too, float8 with a scale for each token or tensor is known; devices that multiply
float8 follow it. All else is served with activations as they are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .compressed_groups import CompressedGroups, KvCacheScheme, parse_groups
from .config_fields import flag, integer, refused, strings, whole
from .layouts import Activations, AwqLayout, Float8Layout, GptqLayout, Layout, Mxfp4Layout
from .module_names import ModuleList
from .module_rules import Rule, parse_rules

KEYS: Final = ("quantization_config", "compression_config")
"""Where config.json says it; the second is what early compressed-tensors wrote."""
HEAD: Final = "lm_head"
JOINED: Final = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj") | dict.fromkeys(
    ("gate_proj", "up_proj"), "gate_up_proj"
)
"""What servers call the linears that they join."""


@dataclass(frozen=True, slots=True)
class OneLayout:
    """All linears of the layers alike, but for a list of names and for rules."""

    layout: Layout
    kept: ModuleList
    quantizes_head: bool
    rules: tuple[Rule, ...] = ()
    """The first that names a linear decides."""

    def layout_of(self, *names: str) -> Layout | None:
        if self.kept.covers(*names) or (HEAD in names and not self.quantizes_head):
            return None
        return self.layout_if_stored(*names)

    def layout_if_stored(self, *names: str) -> Layout | None:
        """Of a linear that no list is asked about."""
        return next((rule.layout for rule in self.rules if rule.target.names(*names)), self.layout)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return (self.layout, *(rule.layout for rule in self.rules if rule.layout is not None))


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    method: str
    """awq, gptq, compressed-tensors, fp8 or mxfp4."""
    linears: OneLayout | CompressedGroups
    identity: str
    """All of what config.json says, in one spelling: part of the base's fingerprint."""
    kv_cache: KvCacheScheme | None = None

    def layout_of(self, *names: str) -> Layout | None:
        """Of the linear that has all these names, such as model.layers.3.self_attn.q_proj or lm_head; None for plain
        floats. A part of a larger model has a name there too, and lists may have either."""
        return self.linears.layout_of(*names)

    def layout_if_stored(self, *names: str) -> Layout | None:
        """The same for a linear whose file has more than floats, where `is_told_by_file`."""
        return self.linears.layout_if_stored(*names) if isinstance(self.linears, OneLayout) else self.layout_of(*names)

    def is_told_by_file(self, *names: str) -> bool:
        """Whether the file itself tells if the linear is quantized, and no list: tools read the lists of most methods
        in different ways. compressed-tensors is exact, but for servers' names of linears that they join: some read
        qkv_proj in a list as q_proj, k_proj and v_proj, others as nothing."""
        if isinstance(self.linears, OneLayout):
            return True
        parts = [name.rpartition(".") for name in names]
        joined = [f"{path}.{JOINED[own]}" for path, _, own in parts if own in JOINED]
        return bool(joined) and self.linears.ignores(*joined)

    @property
    def casts_activations(self) -> bool:
        """Whether some linears are meant to read float8."""
        layouts = (layout for layout in self.linears.layouts if isinstance(layout, Float8Layout))
        return any(layout.activations != "as they are" for layout in layouts)

    @property
    def words(self) -> str:
        """Such as "awq, int4 in groups of 128"."""
        layouts = dict.fromkeys(layout.words for layout in self.linears.layouts)
        return f"{self.method}, {' and '.join(layouts) or 'weights as floats'}"


def parse_quantization(raw: Mapping[str, Any]) -> QuantizationConfig | None:
    """Of the whole config.json; None for a checkpoint of floats. ValueError says what is not accepted, and what is."""
    said = next((raw[key] for key in KEYS if raw.get(key)), None)
    if said is None:
        return None
    if not isinstance(said, dict):
        raise ValueError(f"quantization_config in config.json must be an object, got {type(said).__name__}")
    method = str(said.get("quant_method") or ("compressed-tensors" if "config_groups" in said else "unknown"))
    identity = json.dumps(said, sort_keys=True)
    match method:
        case "awq":
            return QuantizationConfig(method, _awq(said), identity)
        case "gptq":
            return QuantizationConfig(method, _gptq(said), identity)
        case "fp8":
            return QuantizationConfig(method, _fp8(said), identity)
        case "mxfp4":
            return QuantizationConfig(method, _mxfp4(said), identity)
        case "compressed-tensors":
            groups, kv_cache = parse_groups(said)
            return QuantizationConfig(method, groups, identity, kv_cache)
    raise refused(f"quant_method {method!r}")


def _awq(said: Mapping[str, Any]) -> OneLayout:
    version = str(said.get("version") or said.get("format") or "gemm").lower()
    version = "llm-awq" if said.get("backend") == "llm-awq" else version
    if version != "gemm":
        raise refused(f"awq version {version!r}")
    bits = integer(said, "w_bit" if "w_bit" in said else "bits", 4)
    if bits != 4:
        raise refused(f"awq with {bits} bits")
    size = whole(integer(said, "q_group_size" if "q_group_size" in said else "group_size", 128))
    layout = AwqLayout(group_size=size, has_zeros=flag(said, "zero_point", True))
    kept = ModuleList(strings(said, "modules_to_not_convert"))
    return OneLayout(layout, kept, quantizes_head=flag(said, HEAD, False))


def _gptq(said: Mapping[str, Any]) -> OneLayout:
    if flag(said, "is_marlin_format", False):
        raise refused("gptq in the marlin format")
    if _gptq_version(said) not in ("gptq", "gptq_v2"):
        raise refused(f"gptq checkpoint_format {_gptq_version(said)!r}")
    if str(said.get("pack_dtype") or "int32") != "int32":
        raise refused(f"gptq with pack_dtype {said['pack_dtype']!r}")
    kept = ModuleList(strings(said, "modules_to_not_convert"))
    rules = parse_rules(said, _gptq_layout)
    return OneLayout(_gptq_layout(said), kept, quantizes_head=flag(said, HEAD, False), rules=rules)


def _gptq_layout(said: Mapping[str, Any]) -> GptqLayout:
    bits = integer(said, "bits", 4)
    if bits not in (4, 8):
        raise refused(f"gptq with {bits} bits")
    return GptqLayout(
        bits=bits,
        group_size=whole(integer(said, "group_size", 128)),
        symmetric=flag(said, "sym", True),
        ordered=flag(said, "desc_act", False),
        zero_offset=1 if _gptq_version(said) == "gptq" else 0,
    )


def _gptq_version(said: Mapping[str, Any]) -> str:
    return str(said.get("checkpoint_format") or said.get("format") or "gptq").lower()


def _fp8(said: Mapping[str, Any]) -> OneLayout:
    if str(said.get("fmt") or "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise refused(f"fp8 with fmt {said['fmt']!r}")
    if said.get("modules_to_convert"):
        raise refused("fp8 with modules_to_convert")
    activations = _fp8_activations(said)
    block: tuple[int | None, int | None] = (None, None)
    names = ("weight_scale", "weight_scale_inv")
    if said.get("weight_block_size") is not None:
        block, names, activations = _block(said["weight_block_size"]), names[::-1], "as they are"
    layout = Float8Layout(block=block, scale_names=names, activations=activations)
    kept = strings(said, "modules_to_not_convert") + strings(said, "ignored_layers")
    return OneLayout(layout, ModuleList(kept), quantizes_head=True)


def _mxfp4(said: Mapping[str, Any]) -> OneLayout:
    kept = ModuleList(strings(said, "modules_to_not_convert"))
    return OneLayout(Mxfp4Layout(), kept, quantizes_head=False)


def _fp8_activations(said: Mapping[str, Any]) -> Activations:
    match said.get("activation_scheme") or "dynamic":
        case "dynamic":
            return "by token"
        case "static":
            return "static"
        case other:
            raise refused(f"fp8 with activation_scheme {other!r}")


def _block(said: Any) -> tuple[int, int]:
    is_pair = isinstance(said, list) and len(said) == 2 and all(type(size) is int and size > 0 for size in said)
    if not is_pair:
        raise ValueError(f"weight_block_size in config.json must be two positive integers, got {said!r}")
    return said[0], said[1]
