"""/api/v1/engine: the engine's facts and its last heartbeat."""

from typing import Any

import msgspec
from fastapi import APIRouter

from ...endpoints.dependencies import StateOf
from ...observability.engine_metrics import adapter_names

router = APIRouter(tags=["Engine"])


@router.get("/api/v1/engine")
async def get_engine(state: StateOf) -> dict[str, Any]:
    """`status.block_map` is base64, one byte for each KV block; `names` says what people call the digests."""
    engine, age = state.engine, state.engine.heartbeat_age()
    return {
        "state": engine.state.value,
        "ready": engine.ready(),
        "restarts": engine.restarts,
        "start_error": state.start_error,
        "heartbeat_age": age if age != float("inf") else None,
        "generation": state.reconciler.revision,
        "in_step": state.reconciler.in_step,
        "failures": state.reconciler.failures,
        "info": msgspec.to_builtins(engine.info),
        "status": msgspec.to_builtins(engine.status),
        "names": adapter_names(state.registry.snapshots.current),
    }
