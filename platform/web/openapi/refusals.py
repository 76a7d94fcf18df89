"""Errors in the documents: one body for all of them, and what each status says."""

from collections.abc import Mapping
from typing import Any, Final

from .operation import JSON, OPENAI, ErrorAnswer

FIELDS: Final = {
    "message": {"type": "string", "description": "What is wrong, why, and what to do"},
    "type": {"type": "string"},
    "param": {"type": ["string", "null"], "description": "The field or header at fault"},
    "code": {"type": ["string", "integer", "null"], "description": "Stable code for programs"},
}
RECEIVED: Final = {"type": "integer", "description": "Bytes already received of an interrupted upload"}
WORDS: Final = {
    400: "The request is invalid; do not retry it unchanged",
    401: "No valid credential",
    403: "The credential does not allow that",
    404: "This tenant has nothing of this name",
    408: "The body did not arrive in time",
    409: "It conflicts with the current state",
    411: "The size of the body was not declared",
    412: "The current ETag differs from `If-Match`",
    413: "The body is too large",
    415: "The content type or encoding is not accepted",
    429: "A quota or limit is used up",
    500: "A fault of the server: report the request id",
    502: "An upstream server did not answer properly",
    503: "Not now: the same request may succeed later",
    507: "The server's disk is full",
    529: "Not now: the same request may succeed later",
}
RETRY_AFTER: Final = {"description": "Seconds", "schema": {"type": "string", "pattern": "^[0-9]+$"}}
HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: {"www-authenticate": {"required": True, "schema": {"type": "string"}}},
    429: {"retry-after": RETRY_AFTER},
    503: {"retry-after": {"required": True, **RETRY_AFTER}},
    529: {"retry-after": {"required": True, **RETRY_AFTER}},
}


def error_schema(components: Mapping[str, Any]) -> dict[str, Any]:
    """The body of all errors; where the document knows reports, they may stand beside it."""
    fields = {"type": "object", "required": list(FIELDS), "properties": FIELDS, "additionalProperties": False}
    beside = {"report": {"$ref": "#/components/schemas/Report"}, "received": RECEIVED} if "Report" in components else {}
    properties = {"error": fields, **beside}
    return {"type": "object", "required": ["error"], "properties": properties, "additionalProperties": False}


def messages_error_schema() -> dict[str, Any]:
    """The body of errors of the Messages API."""
    text = {"type": "string"}
    error = {
        "type": "object",
        "required": ["type", "message"],
        "properties": {"type": text, "message": FIELDS["message"]},
        "additionalProperties": False,
    }
    properties = {"type": {"const": "error"}, "error": error, "request_id": text}
    return {"type": "object", "required": list(properties), "properties": properties, "additionalProperties": False}


def ollama_error_schema() -> dict[str, Any]:
    """The body of errors of Ollama's API."""
    properties = {"error": FIELDS["message"]}
    return {"type": "object", "required": ["error"], "properties": properties, "additionalProperties": False}


def refusal(status: int, errors: ErrorAnswer = OPENAI) -> dict[str, Any]:
    """The response object of one status, ours."""
    status = errors.statuses.get(status, status)
    response: dict[str, Any] = {
        "description": WORDS[status],
        "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{errors.schema}"}}},
    }
    return response | ({"headers": HEADERS[status]} if status in HEADERS else {})
