"""A serving profile as a form: its fields as text and back, and in a few words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loraplex.registry.adapters.profiles import ServingProfile

from ...http.errors import ApiError, invalid
from ...http.json_body import parse_object
from ...units import count_words


@dataclass(frozen=True, slots=True)
class NumberField:
    """`empty`: what a request means that does not name it either."""

    name: str
    label: str
    empty: str


TEXTS: Final = ("system_prompt", "chat_template")
SCHEMA: Final = "json_schema"
WRITTEN: Final = {"tool_call_parser": "tool calls", "reasoning_parser": "reasoning"}
"""What each parser reads, in words."""
NUMBERS: Final[Sequence[NumberField]] = (
    NumberField("temperature", "Temperature", "1"),
    NumberField("top_p", "Top p", "1"),
    NumberField("top_k", "Top k", "0"),
    NumberField("min_p", "Min p", "0"),
    NumberField("presence_penalty", "Presence penalty", "0"),
    NumberField("frequency_penalty", "Frequency penalty", "0"),
    NumberField("repetition_penalty", "Repetition penalty", "1"),
    NumberField("seed", "Seed", "server's"),
    NumberField("max_tokens", "Max tokens", "endpoint's"),
    NumberField("max_tokens_limit", "Max tokens cap", "none"),
)


def as_fields(profile: ServingProfile | None) -> dict[str, str]:
    """What stands in the form; stop strings one on a line, as JSON has them."""
    given = {} if profile is None else profile.given()
    texts = {name: given.get(name, "") for name in TEXTS}
    numbers = {field.name: json.dumps(given[field.name]) for field in NUMBERS if field.name in given}
    schema = json.dumps(given[SCHEMA], ensure_ascii=False, indent=2) if SCHEMA in given else ""
    stop = "\n".join(json.dumps(text, ensure_ascii=False) for text in given.get("stop", []))
    return texts | numbers | {"stop": stop, SCHEMA: schema} | {name: given.get(name, "") for name in WRITTEN}


def as_document(fields: Mapping[str, str]) -> dict[str, Any]:
    """What the form says, as the API takes it. Raises ApiError that names the field."""
    # Browsers end lines with CRLF whatever was stored, and tokens would differ.
    texts = {name: fields.get(name, "").replace("\r\n", "\n") for name in TEXTS}
    numbers = {
        field.name: _number(field, fields[field.name]) for field in NUMBERS if fields.get(field.name, "").strip()
    }
    stop = [_stop(line) for line in fields.get("stop", "").replace("\r\n", "\n").split("\n") if line.strip()]
    found = texts | numbers | {"stop": stop} | {name: fields.get(name, "") for name in WRITTEN}
    schema = {SCHEMA: _schema(fields[SCHEMA])} if fields.get(SCHEMA, "").strip() else {}
    return {name: value for name, value in found.items() if value not in ("", [])} | schema


def summary(profile: ServingProfile) -> str:
    """In one line, for people."""
    given = profile.given()
    words = [name.replace("_", " ") for name in TEXTS if name in given]
    words += ["JSON schema"] if SCHEMA in given else []
    words += [f"{what}: {given[name]}" for name, what in WRITTEN.items() if name in given]
    words += [f"{field.label.lower()} {_shown(given[field.name])}" for field in NUMBERS if field.name in given]
    return ", ".join(words + ([count_words(len(given["stop"]), "stop string")] if "stop" in given else []))


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(field: NumberField, text: str) -> int | float:
    try:
        value = json.loads(text.strip())
    except ValueError:
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"{field.name} must be a number, got {text[:40]!a}.", field.name)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _schema(text: str) -> dict[str, Any]:
    try:
        return parse_object(text.encode("utf-8", "surrogatepass"))
    except ApiError as error:
        raise invalid(error.message.replace("The body", SCHEMA), SCHEMA) from None


def _stop(line: str) -> str:
    """The line itself, or the JSON string that it is: only so can a stop string hold a line break."""
    if not line.startswith('"'):
        return line
    try:
        text = json.loads(line.strip())
    except ValueError:
        text = None
    if not isinstance(text, str):
        raise invalid(
            f"stop has the line {line[:40]!a}, which starts with a quote but is not a valid JSON string.", "stop"
        )
    return text
