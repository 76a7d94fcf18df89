"""Adapters that the operator names at the start (`lora_modules`): registered like uploads, with the same checks."""

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from loraplex.engine.ipc.client import AdapterError, EngineStartError
from loraplex.registry.audit import SYSTEM
from loraplex.registry.database.tables import DEFAULT_TENANT
from loraplex.registry.errors import RegistryError

from ..access.caller import Caller
from ..http.errors import ApiError
from ..settings.lora_modules import LoraModule
from ..sources.errors import SourceFailed, SourceMissing, SourceRefused
from ..sources.fetch import fetch_adapter
from .registration import register_version

if TYPE_CHECKING:
    from ..state import State

logger = logging.getLogger(__name__)


async def register_modules(state: "State") -> None:
    """Once the engine runs. What is there already stays as it is. EngineStartError names the first that is refused."""
    caller = Caller(DEFAULT_TENANT, SYSTEM, frozenset())
    for module in state.settings.lora_modules:
        try:
            await _register(state, caller, module)
        except SourceMissing as error:
            words = str(error) or f"{module.path} has no adapter_config.json and adapter_model.safetensors."
            raise EngineStartError(f"lora_modules: {module.name}: {words}") from None
        except (RegistryError, ApiError, AdapterError, SourceFailed, SourceRefused) as error:
            words = error.message if isinstance(error, ApiError) else str(error)
            raise EngineStartError(f"lora_modules: {module.name}: {words}") from error


async def _register(state: "State", caller: Caller, module: LoraModule) -> None:
    folder = Path(module.path).expanduser().absolute()
    path = str(folder) if folder.is_dir() or module.path.startswith(("/", ".", "~")) else module.path
    settings = state.settings.model_copy(update={"adapter_folders": (Path(path),), "adapter_hub": True})
    async with state.name_locks.of(caller.tenant, module.name):
        with state.uploads.hold(caller.tenant, caller.actor, stays=True) as slot:
            state.registry.adapters.check_name(module.name)
            files = await fetch_adapter(path, settings, state.registry.store, slot)
            digests = {file: blob.sha256 for file, blob in files.items()}
            for digest in digests.values():
                await asyncio.to_thread(state.registry.uploads.note, digest, caller.tenant)
            added, _ = await register_version(state, caller, module.name, digests, chosen=False)
    what = "registered" if added.created else "already registered"
    logger.info("adapter %s version %d: %s from %a", added.name, added.version.number, what, module.path)
