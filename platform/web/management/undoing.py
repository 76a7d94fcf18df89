"""Taking the last change of an adapter back, for the API and the dashboard."""

import asyncio

from loraplex.registry.adapters.views import Adapter
from loraplex.registry.usage.usage import SHADOW

from ..http.refusals import as_api_error
from ..observability.hourly_use import first_day
from ..state import State


async def undo_change(state: State, tenant: str, name: str, change: str | None, actor: str) -> Adapter:
    """`change`: only if it is this one. Brings the engine to what is desired again. Raises ApiError."""
    with as_api_error():
        adapter = await asyncio.to_thread(state.registry.undos.undo, name, change, actor=actor, tenant=tenant)
        await state.reconciler.reconcile()
    if not state.metrics.hours.knows(tenant, name):
        booked = await asyncio.to_thread(state.registry.usage.hours_since, first_day(), SHADOW)
        own = [one for one in booked if (one.tenant, one.adapter) == (tenant, name)]
        state.metrics.hours.restore(own, state.registry.snapshots.current)
    return adapter
