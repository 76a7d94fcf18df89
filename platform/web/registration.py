"""Making a version of two uploaded files; shared by the admin API and the dashboard."""

import asyncio

from loraplex.registry.adapters import AddedVersion
from loraplex.registry.artifacts import Blob
from loraplex.registry.errors import UploadMissing
from loraplex.registry.report import Report

from .auth import Caller
from .state import State


async def register_version(
    state: State, caller: Caller, name: str, config_sha256: str, weights_sha256: str
) -> tuple[AddedVersion, Report]:
    """Check the two files, make them what `name` means, and bring the engine to it. Raises RegistryError."""
    added = await asyncio.to_thread(_add, state, caller, name, config_sha256, weights_sha256)
    await state.reconciler.reconcile()
    return added


def _add(
    state: State, caller: Caller, name: str, config_sha256: str, weights_sha256: str
) -> tuple[AddedVersion, Report]:
    registry = state.registry
    assert registry.preflight is not None
    registry.adapters.check_name(name)
    config, weights = _blob(state, config_sha256), _blob(state, weights_sha256)
    report = registry.preflight.check(config, weights)
    added = registry.adapters.add_version(
        name,
        config,
        weights,
        report,
        base_fingerprint=state.base.signature.fingerprint,
        actor=caller.actor,
        tenant=caller.tenant,
    )
    return added, report


def _blob(state: State, sha256: str) -> Blob:
    blob = state.registry.store.find(sha256)
    if blob is None:
        raise UploadMissing(f"No file with SHA-256 {sha256} is here. Upload it with PUT first.")
    return blob
