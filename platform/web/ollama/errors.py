"""ollama_error: an ApiError in the body that Ollama's clients read."""

from typing import Final

import msgspec
from starlette.responses import Response

from ..http.errors import ApiError

PATHS: Final = (
    *("/api/chat", "/api/generate", "/api/tags", "/api/show", "/api/version", "/api/ps", "/api/embed"),
    *("/api/embeddings", "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs"),
)
"""Of the API. The management API is at /api/v1."""


def ollama_error(error: ApiError, request_id: str) -> Response:
    return Response(_body(error), error.status, headers=error.headers, media_type="application/json")


def error_line(error: ApiError | None) -> bytes:
    """How a stream ends early: a line that clients raise as an error."""
    return b"" if error is None else _body(error) + b"\n"


def _body(error: ApiError) -> bytes:
    return msgspec.json.encode({"error": error.message})
