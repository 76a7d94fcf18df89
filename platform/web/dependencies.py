"""What endpoints ask for, as annotated types."""

from typing import Annotated

from fastapi import Depends, Request

from .auth import Caller, caller_of
from .state import State


def state_of(request: Request) -> State:
    state: State = request.app.state.loraplex
    return state


def request_id_of(request: Request) -> str:
    request_id: str = request.scope["state"]["request_id"]
    return request_id


StateOf = Annotated[State, Depends(state_of)]
CallerOf = Annotated[Caller, Depends(caller_of)]
RequestId = Annotated[str, Depends(request_id_of)]
