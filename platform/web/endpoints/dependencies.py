"""What endpoints ask for, as annotated types.

Every dependency is a coroutine: FastAPI runs a plain function on a thread, and on a busy event loop each of those
costs a wait for the interpreter's lock. The state's parts are imported for types alone: commands use handlers without
a server.
"""

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Query, Request

from loraplex.engine.ipc.client import RequestRejected

from ..access.caller import Caller
from ..http.errors import from_engine
from .authentication import caller_of

if TYPE_CHECKING:
    from loraplex.registry.registry import Registry

    from ..access.sessions import Sessions
    from ..audit.chain_check import ChainCheck
    from ..inference.inference import Inference
    from ..settings.settings import Settings
    from ..state import State


def state_of(request: Request) -> "State":
    state: State = request.app.state.loraplex
    return state


def request_id_of(request: Request) -> str:
    request_id: str = request.scope["state"]["request_id"]
    return request_id


async def _state(request: Request) -> "State":
    return state_of(request)


async def _caller(request: Request) -> Caller:
    return caller_of(request)


async def _caller_with_room(request: Request) -> Caller:
    """Whose request the server can take now. ApiError 503 before its body is read: a full server says no at once."""
    state, caller = state_of(request), caller_of(request)
    state.requests.check_room()
    try:
        state.engine.check_room(caller.tenant)
    except RequestRejected as error:
        raise from_engine(error) from None
    return caller


def _part(name: str) -> Any:
    """Of the state."""

    async def part(request: Request) -> Any:
        return getattr(state_of(request), name)

    return Depends(part)


StateOf = Annotated["State", Depends(_state)]
InferenceOf = Annotated["Inference", Depends(_state)]
RegistryOf = Annotated["Registry", _part("registry")]
SettingsOf = Annotated["Settings", _part("settings")]
SessionsOf = Annotated["Sessions", _part("sessions")]
ChainOf = Annotated["ChainCheck", _part("chain")]
CallerOf = Annotated[Caller, Depends(_caller)]
CallerWithRoom = Annotated[Caller, Depends(_caller_with_room)]
FirstDay = Annotated[str, Query(alias="from")]
