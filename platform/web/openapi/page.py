"""docs_page: /openapi.json for people, one page without scripts and without anything from another host."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader

from .documents import public_document
from .operation import JSON

TEMPLATES: Final = Environment(loader=PackageLoader("loraplex.web", "templates"), autoescape=True)


@dataclass(frozen=True, slots=True)
class Field:
    """Of a body. `default`: as JSON has it; empty: none."""

    name: str
    kind: str
    required: bool
    default: str


@dataclass(frozen=True, slots=True)
class Described:
    """One operation."""

    method: str
    path: str
    words: str
    open: bool
    """It needs no key."""
    fields: tuple[Field, ...]
    statuses: tuple[tuple[str, str], ...]


@cache
def docs_page(root_path: str) -> str:
    """HTML. `root_path`: where a proxy in front shows the API."""
    described = list(_described(public_document(root_path)))
    return TEMPLATES.get_template("api_docs.html").render(root=root_path, operations=described)


def _described(document: dict[str, Any]) -> Iterator[Described]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema", {})
            yield Described(
                method.upper(),
                path,
                operation.get("description", ""),
                "security" not in operation,
                tuple(_fields(body, document["components"]["schemas"])),
                tuple((status, answer["description"]) for status, answer in operation["responses"].items()),
            )


def _fields(schema: dict[str, Any], known: dict[str, Any]) -> Iterator[Field]:
    """Of the body, or of the first of several."""
    schema = schema.get("anyOf", [schema])[0]
    struct = known.get(_name(schema), {})
    required = struct.get("required", ())
    for name, member in struct.get("properties", {}).items():
        default = member.get("default")
        yield Field(name, _kind(member), name in required, "" if default in (None, [], {}) else repr(default))


def _kind(schema: dict[str, Any]) -> str:
    """In a few words."""
    if "$ref" in schema:
        return _name(schema)
    if "anyOf" in schema:
        kinds = dict.fromkeys(_kind(one) for one in schema["anyOf"] if one != {"type": "null"})
        return " or ".join(kinds)
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}) or {})}"
    return str(schema.get("type", "any"))


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
