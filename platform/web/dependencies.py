"""What endpoints ask for, as annotated types.

Every dependency is a coroutine: FastAPI runs a plain function on a thread, and on a busy event loop each of those
costs a wait for the interpreter's lock.
"""

from typing import Annotated

from fastapi import Depends, Request

from .auth import Caller, caller_of
from .errors import not_found
from .permissions import Permission
from .state import State


def state_of(request: Request) -> State:
    state: State = request.app.state.loraplex
    return state


def request_id_of(request: Request) -> str:
    request_id: str = request.scope["state"]["request_id"]
    return request_id


async def tenant_of(request: Request, tenant: str = "") -> str:
    """The caller's own, or for the operator the one that the query names. ApiError 404 for all others alike."""
    caller = caller_of(request)
    if tenant in ("", caller.tenant):
        return caller.tenant
    if caller.allows(Permission.OPERATE) and tenant in state_of(request).registry.snapshots.current.tenants:
        return tenant
    raise not_found(f"There is no tenant {tenant[:80]!a}.", "tenant", "tenant_not_found")


async def _state(request: Request) -> State:
    return state_of(request)


async def _caller(request: Request) -> Caller:
    return caller_of(request)


async def _request_id(request: Request) -> str:
    return request_id_of(request)


StateOf = Annotated[State, Depends(_state)]
TenantOf = Annotated[str, Depends(tenant_of)]
CallerOf = Annotated[Caller, Depends(_caller)]
RequestId = Annotated[str, Depends(_request_id)]
