"""Is this a JSON Schema at all? Looked at where it is sent; what of a good one cannot be enforced, the grammars say."""

from collections.abc import Iterator
from typing import Any, Final

TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE: Final = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def fault_of_parameters(schema: dict[str, Any]) -> str | None:
    """Why this cannot be the schema of a function's arguments, or None. Its nesting must be bounded."""
    if schema.get("type", "object") != "object":
        return f"type must be object, because arguments are an object; got {str(schema['type'])[:40]!a}"
    return next(_faults(schema, ""), None)


def _faults(schema: Any, path: str) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"{path or 'the schema'} must be a JSON Schema, an object or a boolean"
        return
    at = f"{path}." if path else ""
    yield from _fault_of_type(schema, at)
    for name, wanted in (("required", list), ("enum", list), ("$ref", str), *((name, dict) for name in MAPS)):
        if name in schema and not isinstance(schema[name], wanted):
            yield f"{at}{name} must be {'an array' if wanted is list else 'a string' if wanted is str else 'an object'}"
            return
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        yield f"{at}required must be a list of member names"
    for name in MAPS:
        for key, member in schema.get(name, {}).items():
            yield from _faults(member, f"{at}{name}.{key[:40]}")
    for name in LISTS:
        if name in schema:
            yield from _faults_of_list(schema[name], f"{at}{name}")
    for name in SINGLE:
        member = schema.get(name, True)
        if name == "items" and isinstance(member, list):
            yield from _faults_of_list(member, f"{at}{name}")
        else:
            yield from _faults(member, f"{at}{name}")


def _fault_of_type(schema: dict[str, Any], at: str) -> Iterator[str]:
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in TYPES:
            yield f"{at}type must be one of {', '.join(TYPES)}; got {str(kind)[:40]!a}"


def _faults_of_list(schemas: Any, path: str) -> Iterator[str]:
    if not isinstance(schemas, list) or not schemas:
        yield f"{path} must be an array of schemas"
        return
    for number, member in enumerate(schemas):
        yield from _faults(member, f"{path}[{number}]")
