"""The body of a request to a generating endpoint, read and checked."""

from typing import TypeVar

from fastapi import Request

from ..http.errors import invalid
from ..http.json_body import convert, read_json
from ..observability.refusal_log import MODEL
from .fields import check_fields, ignored_header
from .schemas import GenerationFields

Fields = TypeVar("Fields", bound=GenerationFields)


async def read_fields(
    request: Request, body_timeout: float, schema: type[Fields]
) -> tuple[Fields, frozenset[str], dict[str, str]]:
    """The body as `schema`, the names of its members, and response headers that name what was ignored."""
    body = await read_json(request, body_timeout)
    ignored = check_fields(body, schema.__struct_fields__)
    fields = convert(body, schema)
    note_model(request, fields.model)
    if fields.stream_options is not None and not fields.stream:
        raise invalid("stream_options is only for streams; set stream to true, or leave it out.", "stream_options")
    return fields, frozenset(body), ignored_header(ignored)


def note_model(request: Request, model: str) -> None:
    """What the request asks for, for the log of requests."""
    request.scope["state"][MODEL] = model
