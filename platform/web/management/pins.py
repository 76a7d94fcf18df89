"""Pins hold adapter memory that nobody else can have: how much of it those of one tenant may."""

from typing import TYPE_CHECKING, Final

from loraplex.registry.adapters.views import Adapter, Version
from loraplex.registry.database.tables import DEFAULT_TENANT
from loraplex.registry.names import parse_reference

from ..http.errors import ApiError, overloaded
from ..units import size_words

if TYPE_CHECKING:
    from loraplex.registry.registry import Registry

    from ..state import State

SHARE: Final = 0.5
BYTES_A_PARAMETER: Final = 2
"""Of an adapter that was never in memory."""


def check_pin(state: "State", tenant: str, reference: str) -> None:
    """Before the tenant pins an adapter, whichever way. Who operates the server may pin all it likes. ApiError 409."""
    if tenant == DEFAULT_TENANT:
        return
    status, info = state.engine.status, state.engine.info
    if status is None or info is None:
        raise overloaded("The engine is not running, so pins cannot be checked. Try again in a moment.")
    known = {adapter.digest: adapter.bytes for adapter in status.adapters}
    pinned = _pinned_with(state.registry, tenant, reference)
    held = sum(known.get(it.digest) or it.parameters * BYTES_A_PARAMETER for it in pinned.values())
    memory, slots = int(SHARE * info.adapter_memory), int(SHARE * info.max_loaded_adapters)
    if held > memory or len(pinned) > slots:
        raise ApiError(
            409,
            f"With it, what this tenant has pinned would hold {size_words(held)} and {len(pinned)} places of the "
            f"adapter memory; it may hold {size_words(memory)} and {slots}, half of all there is. Unpin others first; "
            "adapters that are used stay in memory without a pin.",
            param="pinned",
            code="too_many_pins",
        )


def _pinned_with(registry: "Registry", tenant: str, reference: str) -> dict[str, Version]:
    """By digest, what is pinned when `reference` is too; an unknown one adds nothing."""
    parsed = parse_reference(reference)
    return {
        version.digest: version
        for adapter in registry.snapshots.current.of_tenant(tenant)
        for version in adapter.versions
        if adapter.pins(version) or (adapter.name == parsed.name and _means(adapter, parsed.selector, version))
    }


def _means(adapter: Adapter, selector: int | str | None, version: Version) -> bool:
    return version.number in adapter.named() if selector is None else adapter.select(selector) == version
