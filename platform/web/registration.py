"""Making a version of two files; shared by the admin API, the dashboard and the command line."""

import asyncio
from pathlib import Path

from loraplex.registry.adapters import AddedVersion
from loraplex.registry.artifacts import CONFIG_FILE, WEIGHTS_FILE, Blob
from loraplex.registry.base import ServedBase
from loraplex.registry.errors import UploadMissing
from loraplex.registry.registry import Registry
from loraplex.registry.report import Report
from loraplex.registry.tables import DEFAULT_TENANT

from .auth import Caller
from .state import State


async def register_version(
    state: State, caller: Caller, name: str, config_sha256: str, weights_sha256: str
) -> tuple[AddedVersion, Report]:
    """Check the two files, make them what `name` means, and bring the engine to it. Raises RegistryError."""
    added = await asyncio.to_thread(_add, state, caller, name, config_sha256, weights_sha256)
    await state.reconciler.reconcile()
    return added


def uploaded_file(state: State, sha256: str) -> Blob:
    """The received file with this SHA-256. Raises UploadMismatch (the SHA-256 is none), UploadMissing."""
    blob = state.registry.store.find(sha256)
    if blob is None:
        raise UploadMissing(f"No file with SHA-256 {sha256} is here. Upload it with PUT first.")
    return blob


def add_from_folder(
    registry: Registry, base: ServedBase, name: str, folder: Path, actor: str
) -> tuple[AddedVersion, Report]:
    """Copy an adapter's two files from a folder into the store and register them. Raises RegistryError, ValueError."""
    registry.adapters.check_name(name)
    config, weights = (_copied(registry, folder / file) for file in (CONFIG_FILE, WEIGHTS_FILE))
    return _checked(registry, base, name, config, weights, actor)


def _add(
    state: State, caller: Caller, name: str, config_sha256: str, weights_sha256: str
) -> tuple[AddedVersion, Report]:
    state.registry.adapters.check_name(name)
    config, weights = uploaded_file(state, config_sha256), uploaded_file(state, weights_sha256)
    return _checked(state.registry, state.base, name, config, weights, caller.actor, caller.tenant)


def _checked(
    registry: Registry,
    base: ServedBase,
    name: str,
    config: Blob,
    weights: Blob,
    actor: str,
    tenant: str = DEFAULT_TENANT,
) -> tuple[AddedVersion, Report]:
    assert registry.preflight is not None
    ready = registry.preflight.prepare(config, weights)
    fingerprint = base.signature.fingerprint
    added = registry.adapters.add_version(
        name, ready.config, ready.weights, ready.report, base_fingerprint=fingerprint, actor=actor, tenant=tenant
    )
    return added, ready.report


def _copied(registry: Registry, path: Path) -> Blob:
    if not path.is_file():
        raise ValueError(f"{path} is missing. An adapter's folder has {CONFIG_FILE} and {WEIGHTS_FILE}.")
    with path.open("rb") as file:
        return registry.store.keep(file)
