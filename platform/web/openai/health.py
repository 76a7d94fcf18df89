"""GET /health, /ping, /load, /ready, /version and /metrics: for probes, gateways and Prometheus."""

from fastapi import APIRouter
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

import loraplex

from ..endpoints.dependencies import StateOf
from ..state import State

router = APIRouter(tags=["Monitoring"])


@router.get("/health")
async def health() -> Response:
    """200 while this process answers, whatever the engine does."""
    return Response(status_code=200)


@router.post("/ping", operation_id="post_ping")
@router.get("/ping", operation_id="get_ping")
async def ping() -> Response:
    """As /health, where SageMaker looks."""
    return Response(status_code=200)


@router.get("/load")
async def load(state: StateOf) -> dict[str, int]:
    """Requests in flight, as vLLM has it."""
    return {"server_load": state.requests.taken}


@router.get("/ready")
async def ready(state: StateOf) -> Response:
    """200 when requests are served: not stopping, engine alive, desired state applied, database there and migrated."""
    reasons, warning = _obstacles(state), state.database_watch.warning
    answer = {"ready": not reasons, "reasons": reasons, "warnings": [] if warning is None else [warning]}
    return JSONResponse(answer, 503 if reasons else 200)


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": loraplex.__version__}


@router.get("/metrics")
async def metrics(state: StateOf) -> Response:
    """Prometheus text."""
    return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _obstacles(state: State) -> list[str]:
    found: list[str] = []
    if state.stopping.is_set():
        found.append("the server is stopping")
    elif state.start_error is not None:
        found.append("the engine could not start; see the server's log or the System page")
    elif (obstacle := state.engine.obstacle()) is not None:
        found.append(obstacle)
    elif not state.reconciler.in_step:
        found.append("adapters are being registered with the engine")
    if (obstacle := state.database_watch.obstacle()) is not None:
        found.append(obstacle)
    return found
