"""Taking the last change of an adapter back, for the API and the dashboard."""

import asyncio
from typing import TYPE_CHECKING

from loraplex.registry.adapters.views import Adapter
from loraplex.registry.usage.usage import SHADOW

from ..observability.hourly_use import first_day
from .changes import apply_change

if TYPE_CHECKING:
    from ..state import State


async def undo_change(state: "State", tenant: str, name: str, change: str | None, actor: str) -> Adapter:
    """`change`: only if it is this one. Brings the engine to what is desired again. Raises ApiError."""
    undo = state.registry.undos.undo
    adapter = await apply_change(state, undo, name, change, actor=actor, tenant=tenant)
    if not state.metrics.hours.knows(tenant, name):
        booked = await asyncio.to_thread(state.registry.usage.hours_since, first_day(), SHADOW)
        own = [one for one in booked if (one.tenant, one.adapter) == (tenant, name)]
        state.metrics.hours.restore(own, state.registry.snapshots.current)
    return adapter
