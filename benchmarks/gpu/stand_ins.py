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


class StructType(type):
    """Makes dataclasses with slots, whose attributes are set as fast as a struct's, and no others can be. Defaults that
    can change are copied."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], frozen: bool = False, kw_only: bool = False,
        **options: object,
    ) -> "StructType":  # fmt: skip
        made = super().__new__(cls, name, bases, namespace)
        if "__slots__" in namespace:
            return made
        for attribute in get_annotations(made):
            default = namespace.get(attribute)
            if isinstance(default, list | dict | set):
                factory = partial(copy.copy, default) if default else type(default)
                setattr(made, attribute, field(default_factory=factory))
        # This makes the class once more, with its slots.
        slotted: Any = dataclass(frozen=frozen, kw_only=kw_only, unsafe_hash=frozen, slots=True)(made)
        slotted.__struct_fields__ = tuple(part.name for part in fields(slotted))
        return cast(StructType, slotted)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: object) -> None:
        super().__init__(name, bases, namespace)


class Struct(metaclass=StructType):
    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]] = ()


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
