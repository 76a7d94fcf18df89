"""What the engine takes of msgspec, for machines that have torch and no msgspec: structs inside one process. Nothing
can be sent or read with them."""

import copy
import sys
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from inspect import get_annotations
from types import ModuleType
from typing import Any, ClassVar, cast


class Struct:
    """A dataclass by another name; defaults that can change are copied."""

    __struct_fields__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, frozen: bool = False, kw_only: bool = False, **options: object) -> None:
        for name in get_annotations(cls):
            default = cls.__dict__.get(name)
            if isinstance(default, list | dict | set):
                setattr(cls, name, field(default_factory=partial(copy.copy, default)))
        dataclass(frozen=frozen, kw_only=kw_only, eq=True, unsafe_hash=frozen)(cls)
        cls.__struct_fields__ = tuple(part.name for part in fields(cast(Any, cls)))

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__struct_fields__:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be set")
        object.__setattr__(self, name, value)


class Meta:
    """Bounds that nobody checks here."""

    def __init__(self, **bounds: object) -> None:
        self.bounds = bounds


def asdict(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


class Wire(ModuleType):
    def __getattr__(self, name: str) -> Any:
        raise ImportError(f"{self.__name__}.{name} needs the package msgspec")


def provide_msgspec() -> None:
    """Let the engine find these where the package is missing."""
    try:
        import_module("msgspec")
    except ModuleNotFoundError:
        _provide()


def _provide() -> None:
    package, structs = ModuleType("msgspec"), ModuleType("msgspec.structs")
    package.__dict__.update(Struct=Struct, Meta=Meta, structs=structs, json=Wire("json"), msgpack=Wire("msgpack"))
    structs.__dict__.update(replace=replace, asdict=asdict)
    sys.modules |= {"msgspec": package, "msgspec.structs": structs}
