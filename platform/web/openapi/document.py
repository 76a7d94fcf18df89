"""An OpenAPI document: paths and parameters from the routes, bodies and answers from the types of their operations.

`page.py` shows one to people: the usual pages load their scripts from other hosts.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

import loraplex

from ..access.permissions import PUBLIC, SAFE_METHODS, access_of
from ..access.sessions import COOKIE
from .operation import ANTHROPIC, BYTES, FORM, JSON, OLLAMA, Answer, ErrorAnswer, Header, Operation
from .refusals import error_schema, messages_error_schema, ollama_error_schema, refusal

REFERENCE: Final = "#/components/schemas/{name}"
CREDENTIALS: Final = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key; x-api-key has it too"},
    "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "The dashboard's login"},
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": "x-csrf-token",
        "description": "The session's CSRF token, for changes",
    },
}
ANYWHERE: Final = (413, 500, 503)
WITH_CREDENTIAL: Final = (401, 403)
WITH_BODY: Final = (400, 408, 415)
WITH_PARAMETER: Final = (400, 404)


def openapi_document(
    title: str,
    words: str,
    routers: Sequence[APIRouter],
    operations: Mapping[str, Operation],
    in_path: Mapping[str, Any],
    root_path: str,
    everywhere: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`operations`: by method and path; routes without a row are left out. `in_path`: schemas of path parameters.
    `root_path`: where a proxy in front shows the API. `everywhere`: parameters of all operations."""
    document = get_openapi(
        title=title,
        version=loraplex.__version__,
        description=words,
        routes=[route for router in routers for route in router.routes if _is_described(route, operations)],
        servers=[{"url": root_path or "/"}],
    )
    types = [kind for operation in operations.values() for kind in _types(operation)]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    known = list(zip(types, schemas, strict=True))
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            described.setdefault("parameters", []).extend(map(dict, everywhere))
            operation = operations[f"{method.upper()} {path}"]
            _describe(described, operation, known, in_path)
            _demand(described, path, method.upper(), operation.errors)
    for component in components.values():
        component["description"] = inspect.cleandoc(component.get("description", ""))
    for body in {body for operation in operations.values() for body in operation.body}:
        _let_null_mean_absent(components[body.__name__])
    errors = {"Error": error_schema(components)}
    if any(operation.errors is ANTHROPIC for operation in operations.values()):
        errors[ANTHROPIC.schema] = messages_error_schema()
    if any(operation.errors is OLLAMA for operation in operations.values()):
        errors[OLLAMA.schema] = ollama_error_schema()
    document["components"] = {
        "schemas": {**components, **errors},
        "securitySchemes": CREDENTIALS,
    }
    return document


def _is_described(route: BaseRoute, operations: Mapping[str, Operation]) -> bool:
    return isinstance(route, APIRoute) and all(
        f"{method} {route.path_format}" in operations for method in route.methods or ()
    )


def _types(operation: Operation) -> list[Any]:
    return [*operation.body, *(kind for answer in operation.answers.values() for kind in answer.content.values())]


def _describe(
    described: dict[str, Any], operation: Operation, known: list[tuple[Any, Any]], in_path: Mapping[str, Any]
) -> None:
    """Parameters, body and answers of one operation."""
    parameters = described["parameters"]
    for parameter in parameters:
        if parameter["in"] == "path":
            parameter["schema"] = in_path.get(parameter["name"], parameter["schema"])
    parameters += [_header(header) for header in operation.headers]
    refusals = {*ANYWHERE, *operation.refusals, *(WITH_PARAMETER if parameters else ())}
    if operation.body:
        bodies = [_schema_of(body, known) for body in operation.body]
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
        refusals.update(WITH_BODY)
    if operation.raw:
        described["requestBody"] = {"required": True, "content": {BYTES: {}}}
    if operation.form is not None:
        described["requestBody"] = {"required": True, "content": {FORM: {"schema": dict(operation.form)}}}
        refusals.update(WITH_BODY)
    answered = {status: _response(answer, known) for status, answer in operation.answers.items()}
    for status in answered.keys() & refusals - set(ANYWHERE):
        _let_be_an_error(answered[status])
    own = operation.errors.statuses
    refused = {own.get(status, status): refusal(status, operation.errors) for status in refusals}
    responses = refused | answered
    described["responses"] = {str(status): responses[status] for status in sorted(responses)}


def _demand(described: dict[str, Any], path: str, method: str, errors: ErrorAnswer) -> None:
    """The credentials of one operation, and what is said to who lacks them."""
    safe = method in SAFE_METHODS
    if access_of(path, safe) == PUBLIC:
        return
    described["security"] = [{"key": []}, {"session": []} if safe else {"session": [], "csrf": []}]
    described["responses"] |= {str(status): refusal(status, errors) for status in WITH_CREDENTIAL}


def _header(header: Header) -> dict[str, Any]:
    words = {"name": header.name, "in": "header", "required": header.required, "description": header.words}
    return {**words, "schema": dict(header.schema)}


def _response(answer: Answer, known: list[tuple[Any, Any]]) -> dict[str, Any]:
    content = {media_type: {"schema": _schema_of(kind, known)} for media_type, kind in answer.content.items()}
    return {"description": answer.words} | ({"content": content} if content else {})


def _let_be_an_error(response: dict[str, Any]) -> None:
    """Refused before the operation had its own say."""
    error = refusal(400)["content"][JSON]["schema"]
    response["content"][JSON] = {"schema": {"anyOf": [response["content"][JSON]["schema"], error]}}


def _schema_of(kind: Any, known: list[tuple[Any, Any]]) -> dict[str, Any]:
    schema: dict[str, Any] = next(schema for other, schema in known if other is kind)
    return schema


def _let_null_mean_absent(schema: dict[str, Any]) -> None:
    """Members that are null are dropped before a body is read (`json_body.py`)."""
    required = schema.get("required", ())
    for name, member in schema["properties"].items():
        others = member.get("anyOf", [])
        if name not in required and {"type": "null"} not in others:
            default = {key: member.pop(key) for key in ("default",) if key in member}
            schema["properties"][name] = {"anyOf": [member, {"type": "null"}], **default}
