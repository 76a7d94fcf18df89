"""ApiError: everything a client may be told, as the error body OpenAI's clients read."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from loraplex.engine.ipc.client import EngineUnavailable, RequestRejected

INVALID = "invalid_request_error"
RETRY_AFTER_SECONDS = 2
LOGIN_PATH = "/login"
REFUSAL = "refusal"
"""In a request's state: the ApiError that it was answered with."""

PageOf = Callable[[Scope, "ApiError"], Response | None]
"""What a browser is told instead of JSON; None: JSON."""
ErrorForm = Callable[["ApiError", str], Response]
"""How an API tells of an error; the text is the request's id."""
FORM = "error_form"
"""In a request's state: the ErrorForm of its API, where that is not OpenAI's."""


class ApiError(Exception):
    """`message` says what, why and what to do; `param` names the field it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | int | None = None,
        type: str = INVALID,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.type = type
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def body(self) -> bytes:
        """The JSON document; `extra` stands beside `error`."""
        return msgspec.json.encode({"error": self.fields(), **self.extra})

    def fields(self) -> dict[str, str | int | None]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def response(self) -> Response:
        return Response(self.body(), self.status, headers=self.headers, media_type="application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is wrong and will stay wrong."""
    return ApiError(400, message, param=param, code=code)


def unauthorized(message: str) -> ApiError:
    headers = {"www-authenticate": "Bearer"}
    return ApiError(401, message, code="invalid_api_key", type="authentication_error", headers=headers)


def forbidden(message: str) -> ApiError:
    return ApiError(403, message, code="insufficient_permissions", type="permission_error")


def not_found(message: str, param: str | None = None, code: str = "not_found") -> ApiError:
    return ApiError(404, message, param=param, code=code)


def overloaded(message: str, retry_after: float = RETRY_AFTER_SECONDS) -> ApiError:
    """503: the same request may succeed later."""
    headers = {"retry-after": str(max(1, round(retry_after)))}
    return ApiError(503, message, type="server_error", code="unavailable", headers=headers)


def with_names(message: str, names: Mapping[str, str]) -> str:
    """What the engine says, which knows digests alone, with the client's `names` of adapters by their digests."""
    for digest, name in names.items():
        message = message.replace(digest[:12], f"'{name}'")
    return message


def from_engine(error: Exception) -> ApiError:
    """What the engine's refusal means to the client."""
    if isinstance(error, EngineUnavailable):
        return overloaded(str(error), error.retry_after)
    assert isinstance(error, RequestRejected)
    if error.kind == "invalid":
        return invalid(str(error), error.param)
    if error.kind in ("overloaded", "unavailable", "out_of_memory"):
        return overloaded(str(error))
    return ApiError(500, str(error), type="server_error", code="internal_error")


def note(scope: Scope, error: ApiError) -> None:
    """Keep what a request is refused with, for the log of requests."""
    scope.setdefault("state", {})[REFUSAL] = error


def refusal_of(scope: Scope) -> ApiError | None:
    """As `note` kept it."""
    error: ApiError | None = scope["state"].get(REFUSAL)
    return error


def response_of(error: ApiError, scope: Scope) -> Response:
    """In the form of the API that was asked."""
    state = scope.get("state", {})
    form: ErrorForm | None = state.get(FORM)
    return error.response() if form is None else form(error, state["request_id"])


def answer_of(error: ApiError, scope: Scope, page_of: PageOf) -> Response:
    """The page that a browser gets, else JSON."""
    note(scope, error)
    return page_of(scope, error) or response_of(error, scope)


async def answer_api_error(request: Request, error: Exception) -> Response:
    """A browser that is not logged in is sent to the login page; all others get the JSON body."""
    assert isinstance(error, ApiError)
    note(request.scope, error)
    if error.status == 401 and request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(request.scope.get("root_path", "") + LOGIN_PATH, 303)
    return response_of(error, request.scope)


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """404 for unknown paths, 405 for wrong methods, and whatever else the framework raises."""
    assert isinstance(error, HTTPException)
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    messages = {
        404: f"There is no {request.method} {request.url.path}. {_where(path)}.",
        405: f"{request.method} is not allowed on {request.url.path}.",
    }
    message = messages.get(error.status_code, str(error.detail))
    told = ApiError(error.status_code, message, code="unknown_url", headers=error.headers)
    return response_of(told, request.scope)


def _where(path: str) -> str:
    """What to do for who asked for a path that is not here."""
    if path.startswith("/v1/v1/"):
        return "The client adds /v1 to a base URL that already has it"
    if path.startswith("/api/"):
        return "GET /api/v1/openapi.json lists what exists"
    return "The API is under /v1, see GET /v1/models"


async def answer_validation_error(request: Request, error: Exception) -> Response:
    """A parameter of the path or the query that the framework has checked."""
    assert isinstance(error, RequestValidationError)
    return response_of(from_validation(error), request.scope)


def from_validation(error: RequestValidationError) -> ApiError:
    """What the framework refused, by the name of the first parameter at fault."""
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:])
    return invalid(f"{param}: {first['msg']}.", param or None)


def crashed(request_id: str) -> ApiError:
    """A fault of ours: the client gets the request id to report, the log has the trace."""
    message = f"The server failed on this request. Report it to the operator with the request id {request_id}."
    return ApiError(500, message, type="server_error", code="internal_error")


HANDLERS: dict[Any, Any] = {
    ApiError: answer_api_error,
    HTTPException: answer_http_exception,
    RequestValidationError: answer_validation_error,
}
