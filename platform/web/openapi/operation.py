"""Operation: what a route takes and answers, beyond what its signature says.

The structs that check bodies also describe them. Tests send random requests and hold the answers to the document.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
FORM: Final = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Answer:
    """Type of the body by media type; none: no body. Types are those that msgspec describes."""

    content: Mapping[str, Any] = field(default_factory=dict)
    words: str = "As asked"


@dataclass(frozen=True, slots=True)
class Header:
    """Of the request. `schema`: of its value."""

    name: str
    words: str
    schema: Mapping[str, Any]
    required: bool = False


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """How an API tells of errors. `schema`: of the body; `statuses`: its own ones by ours."""

    schema: str
    statuses: Mapping[int, int] = field(default_factory=dict)


OPENAI: Final = ErrorAnswer("Error")
ANTHROPIC: Final = ErrorAnswer("MessagesError", {503: 529})
OLLAMA: Final = ErrorAnswer("OllamaError")


@dataclass(frozen=True, slots=True)
class Operation:
    """`body`: the struct that a JSON body is converted to, or one of several; `raw`: the body is a file's bytes;
    `form`: the schema of a form with a file.

    `refusals`: statuses beside those that follow from credentials, parameters and the body; `errors`: their form.
    """

    answers: Mapping[int, Answer]
    body: tuple[type, ...] = ()
    raw: bool = False
    form: Mapping[str, Any] | None = None
    refusals: tuple[int, ...] = ()
    headers: tuple[Header, ...] = ()
    errors: ErrorAnswer = OPENAI


def answers(content: Any, status: int = 200) -> dict[int, Answer]:
    """One answer in JSON."""
    return {status: Answer({JSON: content})}


NOTHING: Final = {204: Answer(words="Done")}
