"""messages_error: an ApiError in the body and with the status that Anthropic's clients tell errors apart by."""

from typing import Any, Final

import msgspec
from starlette.responses import Response

from ..http.errors import ApiError
from ..http.event_stream import event

MESSAGES: Final = "/v1/messages"
"""The API is at this path and below."""
REQUEST_ID: Final = "request-id"
OVERLOADED: Final = 529
TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def messages_error(error: ApiError, request_id: str) -> Response:
    """503 becomes 529."""
    status = OVERLOADED if error.status == 503 else error.status
    headers = {**error.headers, REQUEST_ID: request_id}
    body = msgspec.json.encode(error_body(error, request_id))
    return Response(body, status, headers=headers, media_type="application/json")


def error_event(error: ApiError, request_id: str) -> bytes:
    """The last event of a stream that broke."""
    return event(msgspec.json.encode(error_body(error, request_id)), "error")


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id}
