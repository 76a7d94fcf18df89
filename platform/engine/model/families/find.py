"""find_family: the family of an architecture, among the files of this room and the one below."""

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Final, NamedTuple

from . import __name__ as ROOM
from .family import Family, Task

LATENT: Final = "attention layers with compressed keys and values (multi-head latent attention)"
MAMBA: Final = "Mamba-2 layers"
MISSING: Final[Mapping[str, str]] = {
    "BambaForCausalLM": MAMBA,
    "DeepseekV2ForCausalLM": LATENT,
    "DeepseekV3ForCausalLM": LATENT,
    "FalconH1ForCausalLM": MAMBA,
    "Glm4MoeLiteForCausalLM": LATENT,
    "JambaForCausalLM": "Mamba layers",
    "KimiLinearForCausalLM": LATENT,
    "Lfm2ForCausalLM": "short convolutions",
    "Lfm2MoeForCausalLM": "short convolutions",
    "NemotronHForCausalLM": MAMBA,
}
"""Architectures that people ask for -> what they have that no family here has."""


WHOLE: Final = "ForConditionalGeneration"
"""Behind the name of a larger model."""


class Found(NamedTuple):
    family: Family
    name: str
    """One of the family's."""
    task: Task
    parts: Mapping[str, str]
    """Where it is the text part of a larger model: by the part's `model_type`, which of the names it is. Else empty."""


@lru_cache
def architectures() -> Mapping[str, Found]:
    """By the name that config.json has, in the order of the families' files."""
    found: dict[str, Found] = {}
    rooms = walk_packages(import_module(ROOM).__path__, f"{ROOM}.")
    for file in sorted(module.name for module in rooms):
        family = getattr(import_module(file), "FAMILY", None)
        if family is None:
            continue
        for suffix, task in family.tasks.items():
            found |= {f"{name}{suffix}": Found(family, name, task, {}) for name in family.names}
        found |= {other: Found(family, name, task, {}) for other, (name, task) in family.other_names.items()}
        for whole, parts in family.text_of.items():
            found[whole] = Found(family, next(iter(parts.values())), "generate", parts)
    return found


def find_family(named: list[str], model_type: object = None) -> Found:
    """Of the first of these architectures that is served. ValueError names those that are. `model_type`: what
    config.json says besides, which must not be another model's."""
    for name in named:
        if name in architectures():
            return _of_type(architectures()[name], name, model_type)
    missing = next((MISSING[name] for name in named if name in MISSING), None)
    why = "" if missing is None else f" yet: {missing} are not computed here"
    raise ValueError(
        f"the architecture {', '.join(named)} is not supported{why}; supported: {', '.join(architectures())}"
    )


def _of_type(found: Found, architecture: str, model_type: object) -> Found:
    """transformers goes by the model_type alone, also to another of the family's names."""
    if model_type is None:
        return found
    texts = {kind: name for parts in found.family.text_of.values() for kind, name in parts.items()}
    if not found.parts and model_type in texts:
        return found._replace(name=texts[str(model_type)])
    own = architecture.removesuffix(WHOLE) if found.parts else found.name
    if _letters(str(model_type)).removesuffix("text") != _letters(own):
        raise ValueError(
            f"config.json has the architecture {architecture} and the model_type {model_type!r}, which is another "
            "model's; correct the one that is wrong"
        )
    return found


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
