"""StructuredOutputs: what an answer must look like. The field names and meanings are vLLM's. No torch."""

import json as json_text
from typing import Any, Final

import msgspec

from .field_types import FLAG, TEXT, TEXTS, Fields, Kind, ParameterError, Unfit

SOURCES: Final = ("json", "regex", "choice", "grammar")
"""Of source(): the kinds, where a schema of any object is one of json."""
KINDS: Final = ("json", "regex", "choice", "grammar", "json_object")
MOST_BYTES: Final = {"json": 128 << 10, "regex": 16 << 10, "choice": 64 << 10, "grammar": 64 << 10}
"""Of UTF-8; of all choices together."""
MOST_CHOICES: Final = 2048


class StructuredOutputs(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Exactly one is set; `verify()` looks. Types are checked as it is made: ValueError."""

    json: str | dict[str, Any] | None = None
    """A JSON Schema, or its text."""
    regex: str | None = None
    """In the syntax of Rust's `regex` crate: no look-around, no backreferences. The whole answer matches."""
    choice: list[str] | None = None
    """The answer is one of these."""
    grammar: str | None = None
    """In llguidance's dialect of Lark."""
    json_object: bool | None = None
    """True: any JSON object."""
    field: str = "structured_outputs"
    """What the request calls it, for errors."""

    def __post_init__(self) -> None:
        FIELDS.check(self)

    def verify(self) -> None:
        """ParameterError for none or several, and for one that is empty or too large."""
        kinds = [kind for kind in KINDS if getattr(self, kind) not in (None, False)]
        if not kinds:
            raise _refused(f" says nothing; set one of {', '.join(KINDS)}")
        if len(kinds) > 1:
            raise _refused(f" has {kinds[0]} and {kinds[1]}; an answer has one form, so send one")
        kind, text = self.source()
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MOST_BYTES[kind]:
            raise _refused(f".{kind} has {size} bytes; at most {MOST_BYTES[kind]} are taken")
        if size == 0 or self.choice == []:
            raise _refused(f".{kind} is empty")
        if len(self.choice or ()) > MOST_CHOICES:
            raise _refused(f".choice has {len(self.choice or ())} texts; at most {MOST_CHOICES} are taken")

    def source(self) -> tuple[str, str]:
        """json, regex, choice or grammar, and its text; choices as a JSON array."""
        if self.regex is not None:
            return "regex", self.regex
        if self.choice is not None:
            return "choice", json_text.dumps(self.choice)
        if self.grammar is not None:
            return "grammar", self.grammar
        schema = {"type": "object"} if self.json is None else self.json
        return "json", schema if isinstance(schema, str) else json_text.dumps(schema)


def _refused(message: str) -> ParameterError:
    return ParameterError("structured_outputs", f"structured_outputs{message}")


def _read_schema(value: Any) -> str | dict[str, Any]:
    if isinstance(value, str | dict):
        return value
    raise Unfit(value)


SCHEMA: Final = Kind("a JSON Schema as a dict or a string", _read_schema, frozenset({str, dict}))
FIELDS: Final = Fields(
    {
        "json": SCHEMA.or_none(),
        "regex": TEXT.or_none(),
        "choice": TEXTS.or_none(),
        "grammar": TEXT.or_none(),
        "json_object": FLAG.or_none(),
        "field": TEXT,
    },
    prefix="structured_outputs.",
)
