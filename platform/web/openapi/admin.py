"""The management API's operations, one row for each route."""

from typing import Final

from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.registry.adapters.routes import Guard
from loraplex.registry.report import Report

from ..api.access.keys import KeyChange, NewKey
from ..api.access.tenants import NewTenant, TenantChange
from ..api.access.users import NewUser, PasswordChange, UserChange
from ..api.adapters.adapters import Change, NewVersion
from ..api.adapters.aliases import Chosen, NewRoute, NewShadow
from ..api.adapters.certificates import Prompts
from ..api.adapters.certification import CertificateStanding
from ..api.adapters.runtime_lora import LoadOrder, UnloadOrder
from ..api.adapters.uploads import Receipt, Received
from ..api.answers import (
    Adapter,
    AddedVersion,
    ChangedAdapter,
    CreatedKey,
    Key,
    RuntimeLora,
    Tenant,
    User,
    WatchedRoute,
)
from ..api.fields import SHA256
from ..api.server.engine import Engine
from ..api.server.usage import UsageSums
from .admin_answers import (
    AdapterList,
    AuditLog,
    Digest,
    GoldenPrompts,
    KeyList,
    Me,
    Profile,
    RouteList,
    SettingList,
    TenantList,
    UserList,
)
from .operation import JSON, NOTHING, Answer, Header, Operation, answers

DIGEST: Final = Header("x-content-sha256", "SHA-256 of the whole file", SHA256, required=True)
RANGE: Final = Header(
    "content-range",
    "The rest of a partly uploaded file: from the first missing byte to the end",
    {"type": "string", "pattern": "^bytes [0-9]{1,15}-[0-9]{1,15}/[0-9]{1,15}$"},
)
IF_MATCH: Final = Header(
    "if-match",
    "The route's ETag: the change is refused if the route has a different one by now",
    {"type": "string", "pattern": '^"[^"]{1,64}"$'},
)
ADDED: Final = {
    200: Answer({JSON: AddedVersion}, "The name already has these files"),
    201: Answer({JSON: AddedVersion}, "A new version"),
}
ASKED: Final = {
    200: Answer({JSON: CertificateStanding}, "A valid certificate already exists"),
    202: Answer({JSON: CertificateStanding}, "The certificate is measured in the background"),
}
TEXT: Final = {200: Answer({"text/plain": str})}
LOADED: Final = {200: Answer({JSON: RuntimeLora}), 400: Answer({JSON: RuntimeLora}, "What is wrong")}
USAGE: Final = {200: Answer({JSON: UsageSums, "text/csv": str})}

OPERATIONS: Final = {
    "GET /api/v1/adapters": Operation(answers(AdapterList)),
    "GET /api/v1/adapters/{name}": Operation(answers(Adapter)),
    "GET /api/v1/adapters/{reference}/report": Operation(answers(Report)),
    "POST /api/v1/adapters/{name}/versions": Operation(ADDED, (NewVersion,), refusals=(409, 507)),
    "PATCH /api/v1/adapters/{reference}": Operation(answers(ChangedAdapter), (Change,), refusals=(409,)),
    "DELETE /api/v1/adapters/{reference}": Operation(NOTHING, refusals=(409,)),
    "GET /api/v1/adapters/{name}/aliases": Operation(answers(RouteList)),
    "GET /api/v1/adapters/{name}/aliases/{alias}": Operation(answers(WatchedRoute)),
    **{
        f"{method} /api/v1/adapters/{{name}}/aliases/{{alias}}{rest}": Operation(
            answers(ChangedAdapter), body, refusals=(409, 412), headers=(IF_MATCH,)
        )
        for method, rest, body in (
            ("PUT", "", (NewRoute,)),
            ("DELETE", "", ()),
            ("POST", "/promote", (Chosen,)),
            ("POST", "/rollback", (Chosen,)),
            ("PUT", "/guard", (Guard,)),
            ("DELETE", "/guard", ()),
            ("PUT", "/shadow", (NewShadow,)),
            ("DELETE", "/shadow", ()),
        )
    },
    "POST /api/v1/adapters/{name}/undo": Operation(answers(Adapter), refusals=(409,)),
    "GET /api/v1/adapters/{reference}/profile": Operation(answers(Profile)),
    "PUT /api/v1/adapters/{reference}/profile": Operation(answers(Profile), (ServingProfile,)),
    "DELETE /api/v1/adapters/{reference}/profile": Operation(NOTHING),
    "POST /api/v1/adapters/{reference}/load": Operation(answers(Digest)),
    "POST /api/v1/adapters/{reference}/evict": Operation(answers(Digest)),
    "PUT /api/v1/adapters/{name}/files/{filename}": Operation(
        answers(Receipt, 201), raw=True, refusals=(408, 409, 411, 507), headers=(DIGEST, RANGE)
    ),
    "GET /api/v1/adapters/{name}/files/{filename}": Operation(answers(Received), headers=(DIGEST,)),
    "GET /api/v1/adapters/{reference}/certificate": Operation(answers(CertificateStanding)),
    "POST /api/v1/adapters/{reference}/certify": Operation(ASKED, refusals=(409, 429)),
    "GET /api/v1/adapters/{name}/prompts": Operation(answers(GoldenPrompts)),
    "PUT /api/v1/adapters/{name}/prompts": Operation(answers(GoldenPrompts), (Prompts,)),
    "DELETE /api/v1/adapters/{name}/prompts": Operation(NOTHING),
    "GET /api/v1/engine": Operation(answers(Engine)),
    "GET /api/v1/settings": Operation(answers(SettingList)),
    "GET /api/v1/engine/certificate": Operation(answers(CertificateStanding)),
    "POST /api/v1/engine/certify": Operation(ASKED, refusals=(409, 429)),
    "GET /api/v1/keys": Operation(answers(KeyList)),
    "POST /api/v1/keys": Operation(answers(CreatedKey, 201), (NewKey,)),
    "GET /api/v1/keys/{prefix}": Operation(answers(Key)),
    "PATCH /api/v1/keys/{prefix}": Operation(answers(Key), (KeyChange,)),
    "DELETE /api/v1/keys/{prefix}": Operation(NOTHING),
    "GET /api/v1/me": Operation(answers(Me)),
    "PUT /api/v1/me/password": Operation(NOTHING, (PasswordChange,), refusals=(429,)),
    "GET /api/v1/users": Operation(answers(UserList)),
    "POST /api/v1/users": Operation(answers(User, 201), (NewUser,), refusals=(409,)),
    "PATCH /api/v1/users/{user}": Operation(answers(User), (UserChange,), refusals=(409,)),
    "DELETE /api/v1/users/{user}": Operation(NOTHING, refusals=(409,)),
    "GET /api/v1/tenants": Operation(answers(TenantList)),
    "POST /api/v1/tenants": Operation(answers(Tenant, 201), (NewTenant,), refusals=(409,)),
    "GET /api/v1/tenants/{tenant}": Operation(answers(Tenant)),
    "PATCH /api/v1/tenants/{tenant}": Operation(answers(Tenant), (TenantChange,)),
    "GET /api/v1/usage": Operation(USAGE),
    "GET /api/v1/audit": Operation(answers(AuditLog)),
    "GET /api/v1/audit/export": Operation({200: Answer({"text/csv": str, "application/jsonl": str})}),
    "POST /v1/load_lora_adapter": Operation(TEXT, (LoadOrder,), refusals=(404, 502)),
    "POST /v1/unload_lora_adapter": Operation(TEXT, (UnloadOrder,), refusals=(404,)),
    "POST /load_lora_adapter": Operation(LOADED, (LoadOrder,)),
    "POST /unload_lora_adapter": Operation(LOADED, (UnloadOrder,)),
}
