"""From the `model` a client names to what the engine runs with."""

from collections.abc import Mapping
from dataclasses import dataclass

from loraplex.engine.ipc.client import AdapterError, EngineUnavailable, RequestRejected
from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.registry.adapters.routes import Asker
from loraplex.registry.errors import AdapterUnavailable, UnknownAdapter
from loraplex.registry.snapshot import ResolvedAdapter, Snapshot, Snapshots

from ..access.caller import Caller
from ..adapters.reconciler import Reconciler
from ..http.errors import ApiError, from_engine, invalid, not_found, overloaded, with_names
from ..text.text_processor import TextProcessor
from .inference import Inference


@dataclass(frozen=True, slots=True)
class Served:
    """What a request runs with from its first text to its last token, whatever the names mean meanwhile."""

    adapters: Mapping[str, tuple[ResolvedAdapter, float]]
    """By the names that the request used, each with its scale; empty: the base alone."""
    text_processor: TextProcessor
    vocab_size: int
    """Token ids below it have rows."""
    profile: ServingProfile | None = None
    """Of the adapter that `model` names."""
    asker: Asker | None = None
    """Whom an alias routed; None: nobody."""

    @property
    def routed(self) -> ResolvedAdapter | None:
        """The one adapter, where an alias led to its version."""
        found = [adapter for adapter, _ in self.adapters.values()]
        return found[0] if len(found) == 1 and found[0].route is not None else None


async def find_served(
    inference: Inference,
    caller: Caller,
    model: str,
    adapters: Mapping[str, float] | None = None,
    asker: Asker | None = None,
) -> Served:
    """Nothing beside the base; the adapter that `model` names; or `adapters` with their scales, on the base `model`.

    `asker`: whom an alias routes, None: it means its stable version. Raises ApiError.
    """
    found = _find_adapters(inference, caller, model, adapters, asker)
    digests = {adapter.tokenizer_digest for adapter, _ in found.values()} or {None}
    if len(digests) > 1:
        message = (
            "adapters have different tokenizers or chat templates, so no prompt fits them all; use them one at a time."
        )
        raise invalid(message, "adapters")
    own_sizes = [adapter.vocab_size for adapter, _ in found.values() if adapter.vocab_size]
    text_processor, profile = await inference.text_processors.of(digests.pop()), None
    if adapters is None and found:
        [(adapter, _)] = found.values()
        profile = adapter.profile
        if profile is not None:
            owner = f"{caller.tenant}/{adapter.name}@{adapter.version}"
            text_processor = inference.text_processors.with_profile(text_processor, profile, owner)
    return Served(found, text_processor, min(own_sizes, default=inference.model.vocab_size), profile, asker)


async def ensure_known(reconciler: Reconciler, served: Served) -> None:
    """Return when the engine knows the adapters. Raises ApiError."""
    for adapter, _ in served.adapters.values():
        try:
            await reconciler.ensure(adapter)
        except AdapterError as error:
            raise _unavailable(f"Adapter '{adapter.name}' cannot be served: {error}") from None
        except EngineUnavailable as error:
            raise from_engine(error) from None


def find_model(snapshots: Snapshots, caller: Caller, model: str, asker: Asker | None = None) -> ResolvedAdapter | None:
    """What `model` names now, to `asker` where an alias has a choice; None for the base model. ApiError when there is
    no such model or it is not served."""
    try:
        return snapshots.current.resolve(model, caller.tenant, caller.only, asker)
    except UnknownAdapter as error:
        raise not_found(f"{error} GET /v1/models lists the available models.", "model", "model_not_found") from None
    except AdapterUnavailable as error:
        raise _unavailable(str(error)) from None


def explain(
    snapshots: Snapshots,
    caller: Caller,
    adapters: Mapping[str, ResolvedAdapter],
    error: EngineUnavailable | RequestRejected,
) -> ApiError:
    """What the engine's refusal of a request with `adapters` means, of which some may have been removed since.

    Gone for good is what a new request would hear; a version that another one has replaced is worth a retry.
    """
    if not isinstance(error, RequestRejected) or error.kind not in ("unavailable", "invalid"):
        return from_engine(error)
    if error.kind == "invalid":
        return from_engine(_with_names(error, adapters))
    for name, served in adapters.items():
        try:
            adapter = find_model(snapshots, caller, name)
        except ApiError as gone:
            gone.message = f"The adapter was removed before this request could run. {gone.message}"
            return gone
        if adapter is None or not _is_served(snapshots.current, caller.tenant, served):
            return overloaded(
                f"The version of '{name}' that this request waited for was removed. Another version serves now."
            )
    return from_engine(_with_names(error, adapters))


def _is_served(snapshot: Snapshot, tenant: str, adapter: ResolvedAdapter) -> bool:
    """Whether the version is still there, whatever its name means by now."""
    try:
        found = snapshot.resolve(f"{adapter.name}@{adapter.version}", tenant)
    except (UnknownAdapter, AdapterUnavailable):
        return False
    return found is not None and found.digest == adapter.digest


def _with_names(error: RequestRejected, adapters: Mapping[str, ResolvedAdapter]) -> RequestRejected:
    names = {adapter.digest: name for name, adapter in adapters.items()}
    return RequestRejected(error.kind, with_names(str(error), names), error.param)


def _find_adapters(
    inference: Inference, caller: Caller, model: str, adapters: Mapping[str, float] | None, asker: Asker | None
) -> dict[str, tuple[ResolvedAdapter, float]]:
    snapshots = inference.snapshots
    if adapters is None:
        found = find_model(snapshots, caller, model, asker)
        return {} if found is None else {model: (found, 1.0)}
    if find_model(snapshots, caller, model) is not None:
        base = inference.settings.base_name
        message = f"adapters are applied to the base: set model to '{base}', or leave adapters out."
        raise invalid(message, "adapters")
    resolved = {name: (_find_adapter(snapshots, caller, name, asker), scale) for name, scale in adapters.items()}
    if len({adapter.digest for adapter, _ in resolved.values()}) < len(resolved):
        raise invalid("Two names in adapters mean the same adapter; add up their scales.", "adapters")
    return resolved


def _find_adapter(snapshots: Snapshots, caller: Caller, name: str, asker: Asker | None) -> ResolvedAdapter:
    try:
        adapter = find_model(snapshots, caller, name, asker)
    except ApiError as error:
        error.param = "adapters"
        raise
    if adapter is None:
        raise invalid(f"adapters names '{name}', which is the base model and is always used.", "adapters")
    return adapter


def _unavailable(message: str) -> ApiError:
    """It exists and is not served; repeating the request would not help."""
    return ApiError(400, message, param="model", code="adapter_unavailable", headers={"x-should-retry": "false"})
