"""Both documents of a server, made when they are first asked for."""

from functools import cache
from typing import Any, Final

from ..anthropic.routes import routers as anthropic_routers
from ..api.fields import IN_PATH
from ..api.routes import routers as admin_routers
from ..batches.routes import routers as batch_routers
from ..endpoints.authentication import TENANT
from ..ollama.routes import routers as ollama_routers
from ..openai.routes import routers as public_routers
from ..pooling.routes import routers as pooling_routers
from .admin import OPERATIONS as ADMIN
from .document import openapi_document
from .public import OPERATIONS as PUBLIC

TENANT_QUERY: Final = {
    "name": TENANT,
    "in": "query",
    "required": False,
    "description": "The tenant: the caller's own, or any tenant for the operator",
    "schema": {"type": "string", "default": ""},
}


@cache
def public_document(root_path: str) -> dict[str, Any]:
    """Of the OpenAI API."""
    words = "The APIs of OpenAI, Anthropic and Ollama over one base model: `model` names an adapter or the base."
    routers = (*public_routers, *anthropic_routers, *ollama_routers, *batch_routers, *pooling_routers)
    return openapi_document("loraplex", words, routers, PUBLIC, {}, root_path)


@cache
def admin_document(root_path: str) -> dict[str, Any]:
    """Of the management API."""
    words = "Adapters, keys, users, tenants, usage and audit log of a loraplex server, within the caller's tenant."
    return openapi_document("loraplex management", words, admin_routers, ADMIN, IN_PATH, root_path, (TENANT_QUERY,))
