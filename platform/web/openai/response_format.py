"""The form that an answer must have, as requests say it: in OpenAI's way, in vLLM's, and in vLLM's older one."""

import json
from collections.abc import Collection
from typing import Annotated, Any, Final, Protocol

import msgspec
from msgspec import Meta

from loraplex.engine.structured_outputs import KINDS, StructuredOutputs

from ..http.errors import invalid

GUIDED: Final = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
FORMS: Final = ("response_format", "structured_outputs", *GUIDED)
"""Fields of a request of which one may name a form."""


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    """The schema is enforced in any case."""


class TextFormat(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectFormat(
    msgspec.Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True, omit_defaults=True
):
    """Any JSON object."""

    value: dict[str, Any] | None = None
    """TGI's: the schema that it has."""


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's structured_outputs: one of the first five is set."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    disable_fallback: bool = False
    """There is but one way."""


UNSUPPORTED: Final = (
    *("structural_tag", "whitespace_pattern", "disable_any_whitespace"),
    "disable_additional_properties",
)


class FormatFields(Protocol):
    """The fields of a request that FORMS names."""

    response_format: ResponseFormat | None
    structured_outputs: StructuredFields | None
    guided_json: str | dict[str, Any] | None
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None


def asked_form(request: FormatFields) -> StructuredOutputs | None:
    """Verified. Raises ApiError that names the field, and the two of them where two collide."""
    named = [name for name in FORMS if getattr(request, name) is not None]
    named = [name for name in named if not isinstance(getattr(request, name), TextFormat)]
    if not named:
        return None
    form, *others = (_form(name, getattr(request, name)) for name in named)
    for name, other in zip(named[1:], others, strict=True):
        # Some clients say the same by the newer name and by the older one.
        if msgspec.structs.replace(other, field=form.field) != form:
            raise invalid(f"{named[0]} and {name} both set the response format, and differ; send one.", name)
    try:
        form.verify()
    except ValueError as error:
        raise invalid(f"{_in_terms_of(named[0], str(error))}.", named[0]) from None
    return form


def schema_form(schema: dict[str, Any]) -> StructuredOutputs:
    """Verified. Raises ApiError."""
    form = StructuredOutputs(json=json.dumps(schema))
    try:
        form.verify()
    except ValueError as error:
        raise invalid(f"{_in_terms_of('json_schema', str(error))}.", "json_schema") from None
    return form


def _form(field: str, value: Any) -> StructuredOutputs:
    match value:
        case JsonObjectFormat(value=None):
            return StructuredOutputs(json_object=True, field=field)
        case JsonObjectFormat():
            return StructuredOutputs(json=json.dumps(value.value), field=field)
        case JsonSchemaFormat():
            return StructuredOutputs(json=json.dumps(value.json_schema.schema), field=field)
        case StructuredFields():
            _refuse_unsupported(value)
            return StructuredOutputs(**{kind: _as_text(getattr(value, kind)) for kind in KINDS})
    return StructuredOutputs(**{field.removeprefix("guided_"): _as_text(value)}, field=field)


def _as_text(value: Any) -> Any:
    """A schema as text, which may hold larger numbers than messages to the engine."""
    return json.dumps(value) if isinstance(value, dict) else value


def _refuse_unsupported(fields: StructuredFields) -> None:
    name = next((name for name in UNSUPPORTED if getattr(fields, name)), None)
    if name is not None:
        path = f"structured_outputs.{name}"
        raise invalid(f"{path} is not supported by this server. Leave it out.", path, "unsupported")


def _in_terms_of(field: str, message: str) -> str:
    """`message` of StructuredOutputs.verify with the client's own word for it."""
    if field == "structured_outputs":
        return message
    words = message.replace("structured_outputs.json_object", field).replace("structured_outputs.json", field)
    return words.replace(f"structured_outputs.{field.removeprefix('guided_')}", field)


def asks_for_form(sent: Collection[str]) -> bool:
    """Whether a request with these members has its own word on the form, be it that there is none."""
    return any(name in sent for name in FORMS)
