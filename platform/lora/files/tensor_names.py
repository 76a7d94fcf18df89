"""locate: which module of the base a tensor of the file belongs to, and what it is there, by the names PEFT gives."""

import re
from collections.abc import Collection, Container, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from .manifest import HEAD, BaseSignature, ModuleKind

MODULES: Final = 1 << 12
"""Names of so many modules are remembered: more than most bases have."""
OTHER_BASE: Final = "was this adapter trained on a different model?"
NO_HOME: Final = "not adapter tensors for a linear layer of the base"

_ROOT: Final = "base_model.model."
_DEEPEST: Final = 6
"""Names within the longest path of a module."""
_IN_LAYER: Final = re.compile(r"(0|[1-9][0-9]{0,4})\.([a-zA-Z0-9_.]+)")

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
_OF_NORM_WITH_BIAS: Final = _OF_NORM | {"bias": "norm_bias"}
"""How PEFT names the tensors of a module -> what each is: A, B, the role of a vector, or rows of tokens."""

WHOLE_LINEAR: Final = "whole linear layers are not supported; name them in target_modules, not in modules_to_save"
_WHOLE: Final = ("weight", "base_layer.weight", "modules_to_save.weight", "original_module.weight")

_OF_EXPERT: Final = ".experts."
_FOREIGN: Final = (
    (_OF_EXPERT, "not the weights of an expert of the base, as a module of its own"),
    (".bias", "not the bias of a linear layer of the base"),
)
"""Part of a name -> why such tensors are not served; first match."""


class ModuleLocation(NamedTuple):
    layer: int
    """0 for what the base has once."""
    kind: str
    path: str
    """The module's name in the base model, as PEFT matches names against it."""
    once: bool
    """Whether it stands outside of the layers."""

    def __str__(self) -> str:
        """For people."""
        return self.kind if self.once else f"{self.kind} of layer {self.layer}"


class Location(NamedTuple):
    place: ModuleLocation
    part: str


def place_of(base: BaseSignature, layer: int, kind: str) -> ModuleLocation:
    return ModuleLocation(layer, kind, base.path_of(layer, kind), base.modules[kind].layers is None)


def every_place(base: BaseSignature) -> Iterator[ModuleLocation]:
    """All modules of the base, kind by kind."""
    return (place_of(base, layer, kind) for kind in base.shapes() for layer in base.modules[kind].layers or (0,))


def reached(targeted: set[ModuleLocation], present: set[ModuleLocation]) -> set[ModuleLocation]:
    """Of the modules that target_modules names, those that PEFT puts an adapter on: since transformers 5 experts are no
    modules, so an adapter without a tensor of any expert lacks none."""
    has_experts = any(_OF_EXPERT in place.path for place in present)
    return targeted if has_experts else {place for place in targeted if _OF_EXPERT not in place.path}


def as_named(names: Collection[str], base: BaseSignature) -> BaseSignature:
    """The base with the prefix of these names: a part of a larger model may have been trained alone."""
    for prefix in filter(None, (base.prefix, *base.name_prefixes)):
        if any(name.startswith(f"{_ROOT}{prefix}{base.layers_path}.") for name in names):
            others = tuple([other for other in (base.prefix, *base.name_prefixes) if other != prefix])
            return base if prefix == base.prefix else replace(base, prefix=prefix, name_prefixes=others)
    return base


def locate(name: str, base: BaseSignature) -> Location | str:
    """Where the tensor belongs; or in words why nowhere."""
    found = find_module(name, base)
    if isinstance(found, str):
        return found
    place, suffix = found
    module = base.modules[place.kind]
    part = _part(module, suffix)
    if part is None:
        return WHOLE_LINEAR if module.role == "linear" and suffix in _WHOLE else _foreign(name)
    return Location(place, part)


def find_module(name: str, base: BaseSignature) -> tuple[ModuleLocation, str] | str:
    """The module that the tensor is of, and what it is called there; or in words why there is none."""
    if not name.startswith(_ROOT):
        return _foreign(name)
    of_fixed = _of_fixed(name.removeprefix(_ROOT), base)
    if of_fixed is not None:
        return of_fixed
    inner = name.removeprefix(_ROOT)
    reasons = list[str]()
    for prefix in (base.prefix, *base.name_prefixes):
        if inner.startswith(prefix):
            found = _find_behind(inner.removeprefix(prefix), name, base)
            if not isinstance(found, str):
                return found
            reasons.append(found)
    head = base.modules.get(HEAD)
    if head is not None and inner.startswith(f"{head.path}."):
        return place_of(base, 0, HEAD), inner.removeprefix(f"{head.path}.")
    return reasons[0] if reasons else _foreign(name)


def saved_twice(name: str) -> str | None:
    """What the tensor that this one is a copy of is called; None for one that is no such copy."""
    stem, found, _ = name.replace(".default", "", 1).partition(".modules_to_save.weight")
    return f"{stem}.weight" if found else None


def _of_fixed(inner: str, base: BaseSignature) -> str | None:
    """In words, of a tensor of a module that no adapter changes here."""
    for path, what in base.fixed.items():
        behind = path.removeprefix(base.prefix)
        starts = [f"{start}." for start in (path, behind, *(prefix + behind for prefix in base.name_prefixes))]
        start = next((start for start in starts if inner.startswith(start)), None)
        if start is not None:
            advice = _without(behind, inner.removeprefix(start))
            return f"this is {what}, which adapters do not change here; {advice}"
    return None


def _without(path: str, rest: str) -> str:
    """How an adapter is trained without it. `rest`: of the tensor's name."""
    if "lora_" not in rest and "ia3_" not in rest:
        return f"leave {path} out of modules_to_save, and do not train with bias='all'"
    if rest.startswith(("lora_", "ia3_")):
        return f"train with exclude_modules=[{path!r}]"
    return f"train without {path}, by target_modules or exclude_modules"


def _find_behind(rest: str, name: str, base: BaseSignature) -> tuple[ModuleLocation, str] | str:
    """`rest` of the name is what stands behind a prefix."""
    if not rest.startswith(f"{base.layers_path}."):
        path, suffix = _split(rest, base.kinds_once)
        return (place_of(base, 0, base.kinds_once[path]), suffix) if path else _foreign(name)
    match = _IN_LAYER.fullmatch(rest.removeprefix(f"{base.layers_path}."))
    if match is None:
        return _foreign(name)
    layer, (path, suffix) = int(match[1]), _split(match[2], base.kinds_in_layers)
    if not path:
        return next((reason for part, reason in _FOREIGN if part in name), "the base has no such module")
    if layer >= base.num_layers:
        return f"the base has {base.num_layers} layers, numbered from 0; {OTHER_BASE}"
    kind = base.kinds_in_layers[path].get(layer)
    return f"layer {layer} of the base has no {path}" if kind is None else (place_of(base, layer, kind), suffix)


def _split(text: str, paths: Container[str]) -> tuple[str, str]:
    """The longest of the paths that the text begins with, and the rest; "" twice where there is none."""
    parts = text.split(".", _DEEPEST)
    for count in range(len(parts) - 1, 0, -1):
        path = ".".join(parts[:count])
        if path in paths:
            return path, ".".join(parts[count:])
    return "", ""


def _part(module: ModuleKind, suffix: str) -> str | None:
    """PEFT names its default adapter in some versions."""
    of_norm = _OF_NORM_WITH_BIAS if module.has_bias else _OF_NORM
    names = {"linear": _OF_LINEAR, "head": _OF_HEAD, "embedding": _OF_EMBEDDING, "norm": of_norm}[module.role]
    return names.get(suffix.replace(".default", "", 1))


def _foreign(name: str) -> str:
    return next((reason for part, reason in _FOREIGN if part in name), NO_HOME)
