"""Schemas of every kind that clients send, each with an end that a random model comes to."""

from typing import Any, Final


def closed(**properties: Any) -> dict[str, Any]:
    """An object with these members and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SHORT: Final = {"type": "string", "maxLength": 5}
DIGIT: Final = {"type": "integer", "minimum": 0, "maximum": 9}
TREE: Final = {
    "$defs": {"node": closed(value=DIGIT, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})},
    "$ref": "#/$defs/node",
}
SCHEMAS: Final[list[dict[str, Any]]] = [
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, "two", None, True]},
    {"const": "only this"},
    {"const": {"a": [1, {"b": None}]}},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["boolean", "null"]},
    {"type": "integer", "minimum": 10, "maximum": 99},
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 4},
    {"type": "number", "minimum": 0.5, "maximum": 0.75},
    {"type": "integer", "minimum": 10, "maximum": 40, "multipleOf": 10},
    {"type": "string", "maxLength": 8},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "string", "pattern": "^(foo|bar)+x$", "maxLength": 12},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "enum": ["größer", "日本", "naïve", '"quoted"', "a\\b", "tab\t"]},
    {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": SHORT, "maxItems": 2},
    {"type": "array", "prefixItems": [{"type": "boolean"}, DIGIT], "items": False, "minItems": 2},
    {"type": "array", "items": {"type": "array", "items": DIGIT, "maxItems": 2}, "maxItems": 2},
    closed(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 150}),
    closed(**{"größe": DIGIT, "with space": {"type": "boolean"}, '"': {"type": "null"}}),
    closed(kind={"const": "a"}, inner=closed(x=DIGIT, y=DIGIT)),
    {**closed(a=DIGIT, b=DIGIT, c=DIGIT), "required": ["b"]},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "patternProperties": {"^[a-c]{1,2}$": DIGIT}, "additionalProperties": False, "maxProperties": 1},
    {"anyOf": [closed(a=DIGIT), closed(b={"type": "boolean"})]},
    {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    {"oneOf": [{"type": "boolean"}, {"const": "neither"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}], "type": "integer"},
    {"$defs": {"point": closed(x=DIGIT, y=DIGIT)}, **closed(a={"$ref": "#/$defs/point"}, b={"$ref": "#/$defs/point"})},
    TREE,
    {"title": "Answer", "description": "as pydantic does", **closed(step={"title": "Step", **SHORT}, done=DIGIT)},
]  # fmt: skip
