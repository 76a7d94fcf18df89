"""/api/v1/engine: the engine's facts and its last heartbeat."""

from typing import Any

import msgspec
from fastapi import APIRouter

from loraplex.engine.protocol import EngineInfo, EngineStatus

from ...endpoints.dependencies import StateOf
from ...observability.engine_metrics import adapter_names

router = APIRouter(tags=["Engine"])


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    ready: bool
    restarts: int
    start_error: str | None
    heartbeat_age: float | None
    generation: int
    in_step: bool
    failures: dict[str, str]
    info: EngineInfo | None
    status: EngineStatus | None
    names: dict[str, str]


@router.get("/api/v1/engine")
async def get_engine(state: StateOf) -> Any:
    """`status.block_map` is base64, one byte for each KV block; `names` says what people call the digests."""
    engine, age = state.engine, state.engine.heartbeat_age()
    answer = Engine(
        state=engine.state.value,
        ready=engine.ready(),
        restarts=engine.restarts,
        start_error=state.start_error,
        heartbeat_age=age if age != float("inf") else None,
        generation=state.reconciler.revision,
        in_step=state.reconciler.in_step,
        failures=state.reconciler.failures,
        info=engine.info,
        status=engine.status,
        names=adapter_names(state.registry.snapshots.current),
    )
    return msgspec.to_builtins(answer)
