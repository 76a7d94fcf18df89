"""What the buttons beside an adapter do, on whichever page they stand."""

import asyncio
from typing import Final

from loraplex.registry.adapters.views import Adapter, Version
from loraplex.registry.names import DEFAULT, parse_reference
from loraplex.registry.registry import Registry

from ...access.caller import Caller
from ...api.adapters.certification import request_certificate, version_subject
from ...http.errors import ApiError
from ...http.refusals import as_api_error
from ...management.changes import apply_change
from ...management.move_notes import note_move
from ...management.pins import check_pin
from ...state import State
from .rolling import aliases_in_the_way

NOTICES: Final = {
    "enable": "Enabled. Requests are served again.",
    "disable": "Disabled. New requests are refused; running ones finish.",
    "pin": "Pinned. It stays in memory.",
    "unpin": "Unpinned. It may be evicted when others need memory.",
    "load": "Loaded into memory.",
    "evict": "Evicted from memory. The next request loads it again.",
    "certify": "Certificate requested. The certificate is measured in the background at low priority.",
    "current": "Switched. The name now serves this version. Running requests finish on the version they started with.",
    "profile": "Saved. It applies to new requests.",
    "delete": "Deleted. Running requests finish.",
    "undo": "Undone: everything is as it was before.",
}
"""What a page says after it was done."""


async def act_on(state: State, caller: Caller, reference: str, action: str) -> None:
    """`reference` is a name, or name@number for one version. Raises ApiError."""
    adapters = state.registry.adapters
    match action:
        case "enable" | "disable":
            await apply_change(state, adapters.set_enabled, reference, action == "enable", **caller.by)
        case "pin" | "unpin":
            if action == "pin":
                with as_api_error():
                    check_pin(state, caller.tenant, reference)
            await apply_change(state, adapters.set_pinned, reference, action == "pin", **caller.by)
        case "load" | "evict":
            await _move(state, caller, reference, action)
        case "current":
            await _make_current(state, caller, reference)
        case "certify":
            await request_certificate(state, caller, await version_subject(state, caller, reference), anew=True)
        case _:
            raise ApiError(404, f"There is no action '{action}' on an adapter.")


async def _make_current(state: State, caller: Caller, reference: str) -> None:
    """Let the bare name mean this version, which is enabled for it: by its alias, or as the newest enabled one. Then
    newer ones are disabled."""
    with as_api_error():
        parsed = parse_reference(reference)
    adapter = await asyncio.to_thread(get_adapter, state.registry, parsed.name, caller.tenant)
    version = adapter.select(parsed.selector)
    if version is None or parsed.selector is None:
        raise ApiError(404, f"There is no version '{reference}'. Name one as {adapter.name}@NUMBER.")
    if DEFAULT in adapter.routes:
        await apply_change(state, _point_default, state.registry, caller, adapter.name, version)
        return
    _check_unrouted(adapter, version)
    await apply_change(state, state.registry.adapters.roll_to, f"{adapter.name}@{version.number}", **caller.by)


def _check_unrouted(adapter: Adapter, version: Version) -> None:
    """Raises ApiError before the first newer one is disabled."""
    names = ", ".join(aliases_in_the_way(adapter, version))
    if names:
        message = (
            f"This would disable newer versions, which serve the callers of {names}. Instead, add a route for "
            f"'{DEFAULT}' to version {version.number}: it changes the default version only."
        )
        raise ApiError(409, message, code="version_in_use")


def _point_default(registry: Registry, caller: Caller, name: str, version: Version) -> None:
    adapters = registry.adapters
    if not version.enabled:
        adapters.set_enabled(f"{name}@{version.number}", True, **caller.by)
    adapters.routes.set(name, DEFAULT, version.number, **caller.by)


def get_adapter(registry: Registry, name: str, tenant: str) -> Adapter:
    with as_api_error():
        return registry.adapters.get(name, tenant)


async def _move(state: State, caller: Caller, reference: str, action: str) -> None:
    with as_api_error():
        parsed = parse_reference(reference)
    adapter = await asyncio.to_thread(get_adapter, state.registry, parsed.name, caller.tenant)
    version = adapter.select(parsed.selector)
    if version is None or not version.enabled or not adapter.enabled:
        raise ApiError(400, f"Adapter '{reference}' is disabled. Enable it before you {action} it.")
    move = state.engine.load_adapter if action == "load" else state.engine.evict_adapter
    with as_api_error(names={version.digest: reference}):
        await move(version.digest)
    await note_move(state, caller, action, adapter.name, version.number)
