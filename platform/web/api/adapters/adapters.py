"""/api/v1/adapters: list, look, register, change, remove. Every change reaches the engine before the answer does."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from loraplex.registry.adapters.activation import Activation, Mode
from loraplex.registry.adapters.routes import REQUEST, ShareBy
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.errors import InvalidName, RegistryError
from loraplex.registry.snapshot import ResolvedAdapter

from ...access.caller import Caller
from ...access.permissions import Permission
from ...endpoints.dependencies import CallerOf, RegistryOf, StateOf
from ...http.json_body import convert, read_json
from ...http.refusals import as_api_error
from ...management.changes import apply_change
from ...management.move_notes import note_move
from ...management.pins import check_pin
from ...management.registration import FIELDS, register_version, uploaded_file
from ...management.told import added_fields, changed_fields
from ...management.undoing import undo_change
from ...routing.moves import read_last_day
from ...routing.traffic import callers_of_day
from ..answers import AddedVersion, ChangedAdapter
from ..fields import Sha256
from ..views import adapter_json, fields_of, residency, version_of

if TYPE_CHECKING:
    from loraplex.registry.registry import Registry

    from ...state import State

router = APIRouter(tags=["Adapters"])


class NewVersion(msgspec.Struct, forbid_unknown_fields=True):
    config_sha256: Sha256
    weights_sha256: Sha256
    tokenizer_sha256: Sha256 | None = None
    tokenizer_config_sha256: Sha256 | None = None
    chat_template_sha256: Sha256 | None = None
    tokenizer_optional: bool = False
    """The tokenizer's files only lay beside the adapter: a server that uses none warns, and takes the rest."""
    activate: Mode | None = None
    """Whom it answers; absent: the bare name means what its route says, and without a route the newest version."""
    percent: Annotated[int, msgspec.Meta(ge=1, le=99)] = 10
    """With `share`: of what `share_by` names."""
    share_by: ShareBy = REQUEST

    def activation(self) -> Activation | None:
        return None if self.activate is None else Activation(self.activate, self.percent, self.share_by)


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """What may be changed of an adapter, or of one version when the path says name@version."""

    enabled: bool | None = None
    pinned: bool | None = None


@router.get("/api/v1/adapters")
async def list_adapters(state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """All adapters, disabled ones too. `generation` grows with every change in any tenant, so it is the operator's."""
    snapshot = state.registry.snapshots.current
    return {
        "generation": snapshot.revision if caller.allows(Permission.OPERATE) else None,
        "data": [adapter_json(adapter, state) for adapter in snapshot.of_tenant(caller.tenant, caller.only)],
    }


@router.get("/api/v1/adapters/{name}")
async def get_adapter(name: str, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    with as_api_error():
        adapter = await asyncio.to_thread(state.registry.adapters.get, name, caller.tenant)
    return adapter_json(adapter, state)


@router.get("/api/v1/adapters/{reference}/report")
async def get_report(reference: str, registry: RegistryOf, caller: CallerOf) -> Any:
    """What preflight said of a version: name, name@version or name@alias."""
    with as_api_error():
        return msgspec.to_builtins(await asyncio.to_thread(registry.adapters.report, reference, caller.tenant))


@router.post("/api/v1/adapters/{name}/versions")
async def add_version(name: str, request: Request, state: StateOf, caller: CallerOf) -> Response:
    """Make a version of uploaded files: 201 with the report and whom it moves, 200 when the name means these bytes
    already."""
    fields = convert(await read_json(request, state.settings.body_timeout), NewVersion)
    digests = {file: getattr(fields, field) for file, field in FIELDS.items() if getattr(fields, field) is not None}
    for file, digest in digests.items():
        with as_api_error(FIELDS[file]):
            await asyncio.to_thread(uploaded_file, state, caller, digest)
    with as_api_error():
        chosen = not fields.tokenizer_optional
        added, report = await register_version(state, caller, name, digests, chosen, fields.activation())
    day = await asyncio.to_thread(read_last_day, state.registry, added.before, caller.allows(Permission.ADMIN))
    running = state.metrics.use.running(caller.tenant, added.name, added.version.number)
    version = version_of(added.version, residency(state), state.reconciler.failures, running)
    answer = AddedVersion.of(added, version=version, report=report, **added_fields(added, day))
    return JSONResponse(answer.as_json(), 201 if added.created else 200)


@router.patch("/api/v1/adapters/{reference}")
async def change_adapter(reference: str, request: Request, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Enable or disable, pin or unpin."""
    change = convert(await read_json(request, state.settings.body_timeout), Change)
    if change.pinned:
        with as_api_error():
            check_pin(state, caller.tenant, reference)
    return await changed(state, caller, reference, lambda: _change(state.registry, caller, reference, change))


@router.delete("/api/v1/adapters/{reference}", status_code=204)
async def remove_adapter(reference: str, state: StateOf, caller: CallerOf) -> Response:
    """Serve it no more. Requests that run with it end well."""
    await apply_change(state, state.registry.adapters.remove, reference, **caller.by)
    name = reference.partition("@")[0]
    if name not in state.registry.snapshots.current.adapters.get(caller.tenant, {}):
        state.metrics.forget(caller.tenant, name)
    return Response(status_code=204)


@router.post("/api/v1/adapters/{reference}/load")
async def load_adapter(reference: str, state: StateOf, caller: CallerOf) -> dict[str, str]:
    """Make it resident now; answers when it is."""
    with as_api_error():
        adapter = _resolved(state.registry, caller, reference)
    with as_api_error(names={adapter.digest: reference}):
        await state.reconciler.ensure(adapter)
        await state.engine.load_adapter(adapter.digest)
    await note_move(state, caller, "load", adapter.name, adapter.version)
    return {"digest": adapter.digest}


@router.post("/api/v1/adapters/{reference}/evict")
async def evict_adapter(reference: str, state: StateOf, caller: CallerOf) -> dict[str, str]:
    """Free its memory as soon as no request uses it."""
    with as_api_error():
        adapter = _resolved(state.registry, caller, reference)
    with as_api_error(names={adapter.digest: reference}):
        await state.engine.evict_adapter(adapter.digest)
    await note_move(state, caller, "evict", adapter.name, adapter.version)
    return {"digest": adapter.digest}


@router.post("/api/v1/adapters/{name}/undo")
async def undo(name: str, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Take back the last change of routes, of what is enabled, or a removal, if it was within the last minute and
    nothing has changed since."""
    return adapter_json(await undo_change(state, caller.tenant, name, None, caller.actor), state)


async def changed(state: "State", caller: Caller, reference: str, change: Callable[[], Adapter]) -> dict[str, Any]:
    """Write the desired state, bring the engine to it, show the adapter and whom the change has moved."""

    def write() -> tuple[Adapter | None, Adapter]:
        before = None
        with suppress(RegistryError):  # the change says what is wrong
            before = state.registry.adapters.get(reference.partition("@")[0], caller.tenant)
        return before, change()

    before, adapter = await apply_change(state, write)
    assert before is not None, "a PATCH does not create adapters"
    day = await asyncio.to_thread(read_last_day, state.registry, before, caller.allows(Permission.ADMIN))
    callers = callers_of_day(state.callers, adapter, day.uses)
    told = changed_fields(day, adapter, callers)
    return ChangedAdapter.of(adapter, **fields_of(adapter, state), **told).as_json()


def _change(registry: "Registry", caller: Caller, reference: str, change: Change) -> Adapter:
    adapters = registry.adapters
    if change.enabled is not None:
        adapters.set_enabled(reference, change.enabled, **caller.by)
    if change.pinned is not None:
        adapters.set_pinned(reference, change.pinned, **caller.by)
    return adapters.get(reference.partition("@")[0], caller.tenant)


def _resolved(registry: "Registry", caller: Caller, reference: str) -> ResolvedAdapter:
    """The adapter that the reference means, which must not be the base model."""
    adapter = registry.snapshots.current.resolve(reference, caller.tenant)
    if adapter is None:
        raise InvalidName(f"'{reference}' is the base model, which is always loaded. Name an adapter instead.")
    return adapter
