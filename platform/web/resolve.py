"""From the `model` a client names to what the engine runs with."""

from loraplex.engine.client import AdapterError, EngineUnavailable
from loraplex.registry.errors import AdapterUnavailable, UnknownAdapter
from loraplex.registry.snapshot import ResolvedAdapter

from .errors import ApiError, from_engine, not_found
from .state import State


async def resolve_adapter(state: State, model: str, tenant: str) -> ResolvedAdapter | None:
    """None for the base model. When this returns, the engine knows the adapter. Raises ApiError."""
    try:
        adapter = state.registry.snapshots.current.resolve(model, tenant)
    except UnknownAdapter as error:
        raise not_found(f"{error} GET /v1/models lists what there is.", "model", "model_not_found") from None
    except AdapterUnavailable as error:
        raise unavailable(str(error)) from None
    if adapter is None:
        return None
    try:
        await state.reconciler.ensure(adapter)
    except AdapterError as error:
        raise unavailable(f"Adapter '{adapter.name}' cannot be served: {error}") from None
    except EngineUnavailable as error:
        raise from_engine(error) from None
    return adapter


def unavailable(message: str) -> ApiError:
    """It exists and is not served; repeating the request would not help."""
    return ApiError(400, message, param="model", code="adapter_unavailable", headers={"x-should-retry": "false"})
