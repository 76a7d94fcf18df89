"""Errors in the documents: one body for all of them, and what each status says."""

from collections.abc import Mapping
from typing import Any, Final

from .operation import JSON

FIELDS: Final = {
    "message": {"type": "string", "description": "What is wrong, why, and what to do"},
    "type": {"type": "string"},
    "param": {"type": ["string", "null"], "description": "The field or header that it is about"},
    "code": {"type": ["string", "integer", "null"], "description": "Stable, for programs"},
}
RECEIVED: Final = {"type": "integer", "description": "Bytes of a broken upload that are here"}
WORDS: Final = {
    400: "The request is wrong and will stay wrong",
    401: "No credential, or none that is known",
    403: "The credential may not do that",
    404: "There is nothing of this name for this tenant",
    408: "The body did not arrive in time",
    409: "Something that is there stands against it",
    411: "The size of the body was not declared",
    412: "What is there is not what `If-Match` names",
    413: "The body is too large",
    415: "The body is of a kind that is not accepted",
    429: "A quota or a limit is used up for now",
    500: "A fault of the server: report the request id",
    502: "Another server, which this one has asked, did not answer as it should",
    503: "Not now: the same request may succeed later",
    507: "The server's disk is full",
}
RETRY_AFTER: Final = {"description": "Seconds", "schema": {"type": "string", "pattern": "^[0-9]+$"}}
HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: {"www-authenticate": {"required": True, "schema": {"type": "string"}}},
    429: {"retry-after": RETRY_AFTER},
    503: {"retry-after": {"required": True, **RETRY_AFTER}},
}


def error_schema(components: Mapping[str, Any]) -> dict[str, Any]:
    """The body of all errors; where the document knows reports, they may stand beside it."""
    fields = {"type": "object", "required": list(FIELDS), "properties": FIELDS, "additionalProperties": False}
    beside = {"report": {"$ref": "#/components/schemas/Report"}, "received": RECEIVED} if "Report" in components else {}
    properties = {"error": fields, **beside}
    return {"type": "object", "required": ["error"], "properties": properties, "additionalProperties": False}


def refusal(status: int) -> dict[str, Any]:
    """The response object of one status."""
    response: dict[str, Any] = {
        "description": WORDS[status],
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    return response | ({"headers": HEADERS[status]} if status in HEADERS else {})
