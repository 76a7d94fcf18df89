"""Loading and unloading adapters by name and path, as vLLM and SGLang do it at runtime, on top of the registry.

What is loaded is a registered version: it survives a restart, and it is the same whoever looks.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from loraplex.engine.ipc.client import AdapterError, EngineUnavailable
from loraplex.registry.adapters.adapters import AddedVersion
from loraplex.registry.errors import (
    AdapterUnavailable,
    InvalidName,
    PreflightRefused,
    RegistryError,
    UnknownAdapter,
    UploadEmpty,
    UploadTooLarge,
)
from loraplex.registry.names import DEFAULT
from loraplex.registry.registry import Registry

from ...access.caller import Caller
from ...adapters.engine_door import require_ready
from ...http.errors import ApiError, from_engine
from ...management.registration import register_version
from ...sources.errors import SourceFailed, SourceMissing, SourceRefused
from ...sources.fetch import fetch_adapter, is_folder
from ...state import State

WRONG_INPUT: Final = (400, "InvalidUserInput")
NOT_LOADABLE: Final = (400, "BadRequestError")
NOT_FOUND: Final = (404, "NotFoundError")
FAILED: Final = (500, "InternalServerError")
HUB_FAILED: Final = (502, "BadGatewayError")
"""It is the hub's fault, or the network's."""

logger = logging.getLogger(__name__)


class LoadOrder(msgspec.Struct):
    """Bodies of vLLM and SGLang. Fields that neither has are let pass: clients send `base_model_name`, for example."""

    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False
    """Give a name that is in use a new version."""
    pinned: bool = False
    is_3d_lora_weight: bool = False


class UnloadOrder(msgspec.Struct):
    lora_name: str = ""


async def load_adapter(state: State, caller: Caller, order: LoadOrder) -> None:
    """Register the adapter at `lora_path` and load it; either all of it happens or nothing. Raises ApiError."""
    _check_order(order)
    require_ready(state.engine)
    async with state.name_locks.of(caller.tenant, order.lora_name):
        hold = state.uploads.hold(caller.tenant, caller.actor, stays=is_folder(order.lora_path))
        with _refusals_explained(order), hold as slot:
            await state.reconciler.reconcile()
            _check_name(state.registry, caller, order)
            files = await fetch_adapter(order.lora_path, state.settings, state.registry.store, slot)
            digests = {file: blob.sha256 for file, blob in files.items()}
            for digest in digests.values():
                await asyncio.to_thread(state.registry.uploads.note, digest, caller.tenant)
            added, _ = await register_version(state, caller, order.lora_name, digests, chosen=False)
            await _bring_into_memory(state, caller, added)
            if order.pinned:
                await _pin(state, caller, order.lora_name)
    logger.info("adapter %s version %d: loaded from %a", added.name, added.version.number, order.lora_path)


async def unload_adapter(state: State, caller: Caller, order: UnloadOrder) -> None:
    """Remove the adapter with all its versions; requests that run with it end well. Raises ApiError."""
    name, adapters = order.lora_name, state.registry.adapters
    if not name:
        raise _refusal(WRONG_INPUT, "'lora_name' needs to be provided to unload a LoRA adapter.")
    async with state.name_locks.of(caller.tenant, name):
        try:
            adapter = await asyncio.to_thread(adapters.get, name, caller.tenant)
            await asyncio.to_thread(adapters.remove, name, **caller.by)
        except (UnknownAdapter, InvalidName):
            raise _refusal(NOT_FOUND, f"The lora adapter '{name}' cannot be found.") from None
        await state.reconciler.reconcile()
        state.metrics.forget(caller.tenant, name)
    if any(version.digest in state.reconciler.failures for version in adapter.versions):
        raise _refusal(FAILED, f"Failed to remove lora adapter '{name}' from the engine.")


def _check_order(order: LoadOrder) -> None:
    if not order.lora_name or not order.lora_path:
        raise _refusal(WRONG_INPUT, "Both 'lora_name' and 'lora_path' must be provided.")
    if order.is_3d_lora_weight:
        problem = "is_3d_lora_weight: stacked weights of experts are not supported. Save one matrix for each module."
        raise _refusal(WRONG_INPUT, problem)


def _check_name(registry: Registry, caller: Caller, order: LoadOrder) -> None:
    """A name that serves is only loaded again in place; one that an operator has disabled stays so."""
    name, snapshot = order.lora_name, registry.snapshots.current
    registry.adapters.check_name(name)
    adapter = snapshot.adapters.get(caller.tenant, {}).get(name)
    if adapter is not None and not adapter.enabled:
        raise _refusal(WRONG_INPUT, f"The lora adapter '{name}' is disabled. Enable it in the dashboard, or unload it.")
    if adapter is not None and DEFAULT in adapter.routes:
        problem = f"The alias '{DEFAULT}' says which version the lora adapter '{name}' means, so loading another one"
        raise _refusal(
            WRONG_INPUT, f"{problem} would change nothing. Upload a version and move the alias, or remove it."
        )
    if not order.load_inplace and any(served is adapter for served, _ in snapshot.servable(caller.tenant)):
        raise _refusal(
            WRONG_INPUT,
            f"The lora adapter '{name}' has already been loaded. "
            "If you want to load the adapter in place, set 'load_inplace' to True.",
        )


async def _bring_into_memory(state: State, caller: Caller, added: AddedVersion) -> None:
    """Load the version, or take it back when it cannot be loaded."""
    reference = f"{added.name}@{added.version.number}"
    try:
        adapter = state.registry.snapshots.current.resolve(reference, caller.tenant)
        assert adapter is not None
        await state.reconciler.ensure(adapter)
        await state.engine.load_adapter(adapter.digest)
    except (AdapterError, EngineUnavailable, AdapterUnavailable):
        if added.created:
            await asyncio.to_thread(state.registry.adapters.remove, reference, **caller.by)
            await state.reconciler.reconcile()
        raise


async def _pin(state: State, caller: Caller, name: str) -> None:
    await asyncio.to_thread(state.registry.adapters.set_pinned, name, True, **caller.by)
    await state.reconciler.reconcile()


@contextmanager
def _refusals_explained(order: LoadOrder) -> Iterator[None]:
    """What sources, registry and engine raise, as vLLM tells it."""
    name = order.lora_name
    try:
        yield
    except SourceMissing as error:
        message = f"Loading lora {name} failed: No adapter found for {order.lora_path}"
        raise _refusal(NOT_FOUND, f"{message}. {error}" if str(error) else message) from None
    except (SourceRefused, InvalidName) as error:
        raise _refusal(WRONG_INPUT, str(error)) from None
    except (PreflightRefused, UploadEmpty, UploadTooLarge) as error:
        message = f"LoRA adapter '{name}' was found but could not be loaded. {error}"
        raise _refusal(NOT_LOADABLE, message) from None
    except EngineUnavailable as error:
        raise from_engine(error) from None
    except SourceFailed as error:
        raise _refusal(FAILED if is_folder(order.lora_path) else HUB_FAILED, str(error)) from None
    except (RegistryError, AdapterError) as error:
        raise _refusal(FAILED, str(error)) from None


def _refusal(kind: tuple[int, str], message: str) -> ApiError:
    """vLLM's `code` is the status."""
    status, type_name = kind
    return ApiError(status, message, type=type_name, code=status)
