"""GET /health, /ready, /version and /metrics: for probes, gateways and Prometheus."""

import asyncio

from fastapi import APIRouter
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

import loraplex
from loraplex.registry.migrate import is_current

from ..dependencies import StateOf
from ..state import State

STALE_SECONDS = 10.0
DATABASE_SECONDS = 3.0
"""How long the database may take to say which schema it has: who probes waits a few seconds at most."""
router = APIRouter(tags=["Monitoring"])


@router.get("/health")
async def health() -> Response:
    """200 while this process answers, whatever the engine does."""
    return Response(status_code=200)


@router.get("/ready")
async def ready(state: StateOf) -> Response:
    """200 when requests are served: not stopping, engine alive, desired state applied, database there and migrated."""
    reasons = await _obstacles(state)
    return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": loraplex.__version__}


@router.get("/metrics")
async def metrics(state: StateOf) -> Response:
    """Prometheus text."""
    return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _obstacles(state: State) -> list[str]:
    found: list[str] = []
    if state.stopping.is_set():
        found.append("the server is stopping")
    elif state.start_error is not None:
        found.append("the engine could not start; the server's log and its page System say why")
    elif (obstacle := state.engine.obstacle()) is not None:
        found.append(obstacle)
    elif not state.reconciler.in_step:
        found.append("adapters are being registered with the engine")
    if state.registry.snapshots.age > STALE_SECONDS or not await _database_is_current(state):
        found.append("the database cannot be reached or is not migrated to the newest schema")
    return found


async def _database_is_current(state: State) -> bool:
    """Any failure to ask is a no."""
    try:
        async with asyncio.timeout(DATABASE_SECONDS):
            return await asyncio.to_thread(is_current, state.settings.database)
    except Exception:
        return False
