"""The public API as an OpenAPI document: paths from the routes, bodies from the structs that check them.

There is no page that shows it: the usual ones load their scripts from other hosts.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec
from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi

import loraplex

from .openai.schemas import ChatRequest, CompletionRequest, Detokenize, TokenizeChat, TokenizeText

BODIES: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "/v1/chat/completions": (ChatRequest,),
    "/v1/completions": (CompletionRequest,),
    "/tokenize": (TokenizeText, TokenizeChat),
    "/detokenize": (Detokenize,),
}
STREAMED: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
TEXT: Final = {"schema": {"type": "string"}}
ANSWERS: Final[dict[str, dict[str, Any]]] = {"/metrics": {"text/plain": TEXT}, "/health": {}}
"""Of paths that answer with something else than JSON."""
OPEN: Final = frozenset({"/health", "/ready", "/version"})
REFERENCE: Final = "#/components/schemas/{name}"
ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def openapi_document(routers: Sequence[APIRouter], root_path: str) -> dict[str, Any]:
    """`root_path`: where a proxy in front shows the API."""
    document = get_openapi(
        title="loraplex",
        version=loraplex.__version__,
        description="The OpenAI API over one base model and its adapters: `model` names an adapter or the base.",
        routes=[route for router in routers for route in router.routes],
        servers=[{"url": root_path or "/"}],
    )
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _describe(path, operation)
    document["components"] = {
        "schemas": {**_body_schemas(), "Error": ERROR},
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    return document


def _describe(path: str, operation: dict[str, Any]) -> None:
    """Body, errors and key of one operation."""
    if path in BODIES:
        content = {"application/json": {"schema": _body_schema(BODIES[path])}}
        operation["requestBody"] = {"required": True, "content": content}
    answer = operation["responses"]["200"]
    answer["content"] = ANSWERS.get(path, answer["content"])
    if path in STREAMED:
        answer["content"]["text/event-stream"] = TEXT
    error = {"application/json": {"schema": {"$ref": REFERENCE.format(name="Error")}}}
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = {"description": "What is wrong, in words", "content": error}
    if path not in OPEN:
        operation["security"] = [{"key": []}]


def _body_schema(bodies: tuple[type[msgspec.Struct], ...]) -> dict[str, Any]:
    references = [{"$ref": REFERENCE.format(name=body.__name__)} for body in bodies]
    return references[0] if len(references) == 1 else {"anyOf": references}


@cache
def _body_schemas() -> dict[str, Any]:
    bodies = [body for bodies in BODIES.values() for body in bodies]
    return msgspec.json.schema_components(bodies, ref_template=REFERENCE)[1]
