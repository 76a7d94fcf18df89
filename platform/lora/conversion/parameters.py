"""How PEFT names parameters that are no experts: weights of linears, such as routers, which since transformers 5 are no
modules; and ranks of parameters that it made of modules."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ..files.config_file import names_of
from ..files.manifest import BaseSignature
from ..files.tensor_names import ModuleLocation, every_place

_WEIGHT: Final = ".weight"
_ANY_PARENT: Final = re.compile(r"\.\*\\\.([A-Za-z0-9_]+)")
"""`.*\\.gate_up_proj`, as PEFT writes it where it has made one parameter of several modules: any parameter so named."""


def with_plain_patterns(raw: Mapping[str, Any]) -> dict[str, Any]:
    """adapter_config.json whose rank_pattern and alpha_pattern have a name in the place of such a pattern."""
    plain = dict(raw)
    for key in ("rank_pattern", "alpha_pattern"):
        if isinstance(raw.get(key), dict):
            plain[key] = {}
            for name, value in raw[key].items():
                found = _ANY_PARENT.fullmatch(name)
                plain[key].setdefault(name if found is None else found[1], value)
    return plain


def weights_of(names: Iterable[str], base: BaseSignature) -> dict[str, dict[str, str]]:
    """Of those that name weights of linears: path of each linear -> what PEFT calls its weight, in the whole model."""
    found: dict[str, dict[str, str]] = {name: {} for name in names if name.endswith(_WEIGHT)}
    for place in every_place(base) if found else ():
        if base.modules[place.kind].role == "linear" and not _is_of_expert(place, base):
            weight = _theirs(place.path, base) + _WEIGHT
            for name in names_of(weight) & found.keys():
                found[name][place.path] = weight
    return {name: weights for name, weights in found.items() if weights}


def as_stored(module: str, base: BaseSignature) -> str:
    """What checkpoints call a module, by its name in transformers. Both may have any prefix."""
    for theirs, ours in _blocks(base):
        before, found, rest = module.partition(f".{theirs}.")
        if found:
            return f"{before}.{ours}.{rest}"
    return module


def _theirs(path: str, base: BaseSignature) -> str:
    for theirs, ours in _blocks(base):
        path = path.replace(f".{ours}.", f".{theirs}.", 1)
    return path


def _blocks(base: BaseSignature) -> Iterator[tuple[str, str]]:
    """What is around experts, in transformers and in checkpoints, where the names differ."""
    for theirs, ours in {(_parent(one.module), _parent(one.experts)) for one in base.stacked}:
        if theirs != ours:
            yield theirs, ours


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _is_of_expert(place: ModuleLocation, base: BaseSignature) -> bool:
    return any(f".{one.experts}." in place.path for one in base.stacked)
