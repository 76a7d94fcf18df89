"""locate: which module of the base a tensor of the file belongs to, and what it is there, by the names PEFT gives."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from .manifest import EMBEDDING, HEAD, ONCE, BaseSignature

MODULES: Final = 1 << 12
"""Names of so many modules are remembered: more than most bases have."""
OTHER_BASE: Final = "was this adapter trained on a different model?"
NO_HOME: Final = "not adapter tensors for a linear layer of the base"

PARENTS: Final = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
_NORM_PARENTS: Final = {
    "input_layernorm": "",
    "post_attention_layernorm": "",
    "q_norm": "self_attn",
    "k_norm": "self_attn",
}
_ALL_PARENTS: Final = PARENTS | _NORM_PARENTS

_IN_LAYER: Final = re.compile(
    r"base_model\.model\.(?:model\.)?layers\.(0|[1-9][0-9]{0,4})\.(?:(self_attn|mlp)\.)?([a-z_]+?)\.([a-zA-Z0-9_.]+)"
)
"""PEFT names a model without its head, as embedding models are trained, without the second `model`."""
_ONCE: Final = re.compile(r"base_model\.model\.(?:(model)\.)?(embed_tokens|lm_head|norm)\.([a-zA-Z0-9_.]+)")

TRAINING_AID: Final = "training aid"
"""VeLoRA's projection, by which its backward pass compresses activations: no answer depends on it."""
_OF_LINEAR: Final = {
    "lora_A.weight": "A",
    "lora_B.weight": "B",
    "lora_B.bias": "lora_bias",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
    "bias": "bias",
    "base_layer.bias": "bias",
    "ia3_l": "gain",
    "lora_velora_embed": TRAINING_AID,
}
_ROWS: Final = {
    "weight": "all rows",
    "base_layer.weight": "all rows",
    "token_adapter.base_layer.weight": "all rows",
    "token_adapter.trainable_tokens_delta": "rows",
    "trainable_tokens_delta": "rows",
}
_SPARE: Final = {"modules_to_save.weight": "copy", "original_module.weight": "original"}
"""PEFT saves a whole embedding and head whenever the vocabulary was resized, with all that modules_to_save has made of
them: the trained weight once more, and the one it stands for."""
_OF_HEAD: Final = {name: part for name, part in _OF_LINEAR.items() if part not in ("bias", "gain")} | _ROWS | _SPARE
_OF_EMBEDDING: Final = (
    {
        "lora_embedding_A": "A",
        "lora_embedding_B": "B",
        "lora_magnitude_vector": "magnitude",
        "lora_magnitude_vector.weight": "magnitude",
    }
    | _ROWS
    | _SPARE
)
_OF_NORM: Final = {"weight": "norm"}
"""How PEFT names the tensors of a module -> what each is: A, B, the role of a vector, or rows of tokens."""

WHOLE_LINEAR: Final = "whole linear layers are not supported; name them in target_modules, not in modules_to_save"
_WHOLE: Final = ("weight", "base_layer.weight", "modules_to_save.weight", "original_module.weight")

_FOREIGN: Final = (
    (".experts.", "LoRA on experts is not supported"),
    (".bias", "not the bias of a linear layer of the base"),
)
"""Part of a name -> why such tensors are not served; first match."""


class ModuleLocation(NamedTuple):
    layer: int
    """0 for what the base has once."""
    kind: str

    @property
    def path(self) -> str:
        """The module's name in the base model, as PEFT matches names against it."""
        return module_path(self.layer, self.kind)

    def __str__(self) -> str:
        """For people."""
        return self.kind if self.kind in ONCE else f"{self.kind} of layer {self.layer}"


class Location(NamedTuple):
    place: ModuleLocation
    part: str


def locate(name: str, base: BaseSignature) -> Location | str:
    """Where the tensor belongs; or in words why nowhere."""
    match = _IN_LAYER.fullmatch(name)
    if match is not None:
        return _locate_in_layer(name, int(match[1]), match[2] or "", match[3], match[4], base)
    match = _ONCE.fullmatch(name)
    if match is None or (match[2] == HEAD and match[1]):
        return _foreign(name)
    part = _part(match[2], match[3])
    if part is None or match[2] not in base.shapes():
        return _foreign(name)
    return Location(ModuleLocation(0, match[2]), part)


@lru_cache(maxsize=MODULES)
def module_path(layer: int, kind: str) -> str:
    if kind in ONCE:
        return kind if kind == HEAD else f"model.{kind}"
    parent = _ALL_PARENTS[kind]
    return ".".join(filter(None, ("model.layers", str(layer), parent, kind)))


def saved_twice(name: str) -> str | None:
    """What the tensor that this one is a copy of is called; None for one that is no such copy."""
    stem, found, _ = name.replace(".default", "", 1).partition(".modules_to_save.weight")
    return f"{stem}.weight" if found else None


def _locate_in_layer(name: str, layer: int, parent: str, kind: str, suffix: str, base: BaseSignature) -> Location | str:
    if _ALL_PARENTS.get(kind) != parent or kind not in base.shapes():
        return next((reason for part, reason in _FOREIGN if part in name), "the base has no such module")
    if layer >= base.num_layers:
        return f"the base has {base.num_layers} layers, numbered from 0; {OTHER_BASE}"
    part = _part(kind, suffix)
    if part is None:
        return WHOLE_LINEAR if kind in PARENTS and suffix in _WHOLE else _foreign(name)
    return Location(ModuleLocation(layer, kind), part)


def _part(kind: str, suffix: str) -> str | None:
    """PEFT names its default adapter in some versions."""
    names = {EMBEDDING: _OF_EMBEDDING, HEAD: _OF_HEAD}.get(kind, _OF_LINEAR if kind in PARENTS else _OF_NORM)
    return names.get(suffix.replace(".default", "", 1))


def _foreign(name: str) -> str:
    return next((reason for part, reason in _FOREIGN if part in name), NO_HOME)
