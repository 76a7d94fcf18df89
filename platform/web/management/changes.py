"""apply_change: a change of the desired state, of which the engine has heard once it is answered."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ..http.refusals import as_api_error

if TYPE_CHECKING:
    from ..state import State

P = ParamSpec("P")
T = TypeVar("T")


async def apply_change(state: "State", write: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What `write` answers, on a thread; then the engine is brought to it. Raises ApiError."""
    with as_api_error():
        changed = await asyncio.to_thread(write, *arguments, **named)
        await state.reconciler.reconcile()
    return changed
