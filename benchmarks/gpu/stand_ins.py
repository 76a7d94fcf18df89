"""What the engine takes of msgspec, for machines that have torch and no msgspec: structs inside one process. Nothing
can be sent or read with them."""

import copy
import sys
from importlib import import_module
from inspect import get_annotations
from types import ModuleType
from typing import Any, ClassVar, Self, get_origin

REQUIRED: Any = object()


class Struct:
    """Fields are the annotations, in their order; defaults that can change are copied."""

    __struct_fields__: ClassVar[tuple[str, ...]] = ()
    __struct_defaults_by_name__: ClassVar[dict[str, Any]] = {}
    __frozen__: ClassVar[bool] = False

    def __init_subclass__(cls, frozen: bool = False, **options: object) -> None:
        own = {name: kind for name, kind in get_annotations(cls).items() if not _is_of_class(kind)}
        defaults = {name: cls.__dict__.get(name, REQUIRED) for name in own}
        cls.__struct_defaults_by_name__ = cls.__struct_defaults_by_name__ | defaults
        cls.__struct_fields__ = tuple(cls.__struct_defaults_by_name__)
        cls.__frozen__ = frozen

    def __init__(self, *values: object, **named: object) -> None:
        given = dict(zip(self.__struct_fields__, values, strict=False)) | named
        unknown = given.keys() - set(self.__struct_fields__)
        if unknown or len(values) > len(self.__struct_fields__):
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown)) or 'so many fields'}")
        for name, default in self.__struct_defaults_by_name__.items():
            value = given.get(name, default)
            if value is REQUIRED:
                raise TypeError(f"{type(self).__name__} needs {name}")
            object.__setattr__(self, name, value if name in given else copy.copy(value))

    def __setattr__(self, name: str, value: object) -> None:
        if self.__frozen__ or name not in self.__struct_fields__:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be set")
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _values(other) == _values(self)

    def __hash__(self) -> int:
        if not self.__frozen__:
            raise TypeError(f"{type(self).__name__} can change")
        return hash((type(self), *_values(self)))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({fields})"

    def __copy__(self) -> Self:
        copied: Self = replace(self)
        return copied


class Meta:
    """Bounds that nobody checks here."""

    def __init__(self, **bounds: object) -> None:
        self.bounds = bounds


def replace(struct: Any, **changes: object) -> Any:
    return type(struct)(**asdict(struct) | changes)


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


def _is_of_class(annotation: object) -> bool:
    return get_origin(annotation) is ClassVar or annotation is ClassVar


def _values(struct: Any) -> tuple[object, ...]:
    return tuple(asdict(struct).values())
