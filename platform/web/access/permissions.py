"""What each credential may do, and what each route demands: the one place where that is decided.

Permissions hold within the caller's tenant. Only `OPERATE` reaches beyond: admins of the tenant `default` have it.
"""

from enum import StrEnum
from typing import Final

from loraplex.registry.access import scopes
from loraplex.registry.database.tables import DEFAULT_TENANT


class Permission(StrEnum):
    INFERENCE = "inference"
    """Use models."""
    READ = "read"
    """Look at adapters, memory and usage; change one's own password."""
    ADAPTERS = "adapters"
    """Upload adapters and change how they are served."""
    ADMIN = "admin"
    """Keys, users and the audit log."""
    OPERATE = "operate"
    """The server itself: tenants, the engine, the base's certificate, adapters from its folders."""


PUBLIC: Final = "public"
MONITORING: Final = "monitoring"
"""Operators, and programs on this machine when `public_metrics` is set."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

WHO: Final = {
    Permission.ADAPTERS: "an editor or admin of your tenant",
    Permission.ADMIN: "an admin of your tenant",
    Permission.OPERATE: "the operator of this server",
}
"""Whom to ask, of what not everybody may who opens pages."""

EVERYTHING: Final = frozenset(Permission) - {Permission.OPERATE}
OF_ROLE: Final = {
    scopes.VIEWER_ROLE: frozenset({Permission.READ}),
    scopes.EDITOR_ROLE: frozenset({Permission.READ, Permission.INFERENCE, Permission.ADAPTERS}),
    scopes.ADMIN_ROLE: EVERYTHING,
}
OF_SCOPE: Final = {
    scopes.INFERENCE: frozenset({Permission.INFERENCE}),
    scopes.ADAPTERS: frozenset({Permission.READ, Permission.ADAPTERS}),
    scopes.ADMIN: EVERYTHING,
}

PUBLIC_ROUTES: Final = frozenset({"/health", "/ping", "/docs", "/ready", "/version", "/openapi.json", "/login"})
INFERENCE_ROUTES: Final = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/input_items",
        "/v1/responses/{response_id}/cancel",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/models",
        "/v1/models/{name:path}",
        *("/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content"),
        *("/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"),
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/load",
        *("/api/chat", "/api/generate", "/api/tags", "/api/ps", "/api/show", "/api/version"),
        *("/api/embed", "/api/embeddings", "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"),
    }
)
OPERATOR_ROUTES: Final = frozenset(
    {
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter"),
        *("/api/v1/engine", "/api/v1/engine/certify", "/certify", "/api/v1/settings"),
        *("/api/v1/tenants", "/api/v1/tenants/{tenant}"),
        *("/upload/fetch", "/cache/what-if", "/system", "/tenants", "/tenants/{tenant}", "/tenants/{tenant}/{action}"),
    }
)
READ_ROUTES: Final = frozenset(
    {
        *(
            "/",
            "/logout",
            "/dashboard/live",
            "/dashboard/state",
            "/requests",
            "/batches",
            "/usage",
            "/usage/points",
            "/usage/csv",
        ),
        *("/api/v1/me", "/api/v1/me/password", "/api/v1/engine/certificate", "/api/v1/usage"),
        "/api/v1/openapi.json",
        *("/account", "/account/password"),
    }
)
ADAPTER_ROUTES: Final = ("/api/v1/adapters", "/adapters", "/cache")
"""Prefixes: to look needs READ, to change ADAPTERS."""
EDITOR_PAGES: Final = frozenset({"/upload", "/playground", "/batches/{batch_id}/cancel"})
"""No key for inference alone opens a page."""


def permissions_of_user(role: str, tenant: str) -> frozenset[Permission]:
    return _with_operation(OF_ROLE.get(role, frozenset()), tenant)


def permissions_of_key(scopes: frozenset[str], tenant: str) -> frozenset[Permission]:
    granted = (OF_SCOPE.get(scope, frozenset()) for scope in scopes)
    return _with_operation(frozenset().union(*granted), tenant)


def access_of(path: str, safe: bool) -> str:
    """What a route demands, by its whole path template: `public`, `monitoring` or a permission. `safe`: it only reads.

    Fails closed: a route that is named nowhere here is for administrators only.
    """
    if path in PUBLIC_ROUTES:
        return PUBLIC
    if path == "/metrics":
        return MONITORING
    if path in INFERENCE_ROUTES:
        return Permission.INFERENCE
    if path in OPERATOR_ROUTES:
        return Permission.OPERATE
    if path in READ_ROUTES:
        return Permission.READ
    if path in EDITOR_PAGES:
        return Permission.ADAPTERS
    if any(path == prefix or path.startswith(f"{prefix}/") for prefix in ADAPTER_ROUTES):
        return Permission.READ if safe else Permission.ADAPTERS
    return Permission.ADMIN


def demand_of(route: str) -> str:
    """As `access_of`, of a method and a path: `POST /adapters/{name}/delete`."""
    method, _, path = route.partition(" ")
    return access_of(path, method in SAFE_METHODS)


def who_may(route: str) -> str:
    """In words for people who may not."""
    return WHO[Permission(demand_of(route))]


def _with_operation(granted: frozenset[Permission], tenant: str) -> frozenset[Permission]:
    return granted | {Permission.OPERATE} if granted == EVERYTHING and tenant == DEFAULT_TENANT else granted
