"""From the `model` a client names to what the engine runs with."""

from loraplex.engine.client import AdapterError, EngineUnavailable, RequestRejected
from loraplex.registry.errors import AdapterUnavailable, UnknownAdapter
from loraplex.registry.snapshot import ResolvedAdapter

from .errors import ApiError, from_engine, not_found, overloaded
from .state import State


async def resolve_adapter(state: State, model: str, tenant: str) -> ResolvedAdapter | None:
    """None for the base model. When this returns, the engine knows the adapter. Raises ApiError."""
    adapter = find_model(state, model, tenant)
    if adapter is None:
        return None
    try:
        await state.reconciler.ensure(adapter)
    except AdapterError as error:
        raise _unavailable(f"Adapter '{adapter.name}' cannot be served: {error}") from None
    except EngineUnavailable as error:
        raise from_engine(error) from None
    return adapter


def explain(
    state: State, model: str, tenant: str, digest: str | None, error: EngineUnavailable | RequestRejected
) -> ApiError:
    """What the engine's refusal of a request for `model` means, which may have been removed since it was resolved.

    Gone for good is what a new request would hear; a version that another one has replaced is worth a retry.
    """
    if digest is None or not isinstance(error, RequestRejected) or error.kind != "unavailable":
        return from_engine(error)
    try:
        adapter = find_model(state, model, tenant)
    except ApiError as gone:
        gone.message = f"The adapter was removed before this request could run. {gone.message}"
        return gone
    if adapter is None or adapter.digest != digest:
        return overloaded(f"The version of '{model}' that this request waited for was removed; another serves now.")
    return from_engine(error)


def find_model(state: State, model: str, tenant: str) -> ResolvedAdapter | None:
    """What `model` names now, None for the base model. ApiError when there is no such model or it is not served."""
    try:
        return state.registry.snapshots.current.resolve(model, tenant)
    except UnknownAdapter as error:
        raise not_found(f"{error} GET /v1/models lists what there is.", "model", "model_not_found") from None
    except AdapterUnavailable as error:
        raise _unavailable(str(error)) from None


def _unavailable(message: str) -> ApiError:
    """It exists and is not served; repeating the request would not help."""
    return ApiError(400, message, param="model", code="adapter_unavailable", headers={"x-should-retry": "false"})
