"""From a `lora_path` to an adapter's files in the artifact store."""

import asyncio
import os
import tempfile
from collections.abc import Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Final

from loraplex.registry.errors import UploadTooLarge
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE, ArtifactStore
from loraplex.registry.files.incoming import Blob

from ..adapter_tokenizers.files import TOKENIZER_LIMITS
from ..adapters.upload_slots import RETRY_AFTER, Slot, SlotLost
from ..http.errors import overloaded
from ..settings.settings import Settings
from .errors import SourceFailed, SourceRefused
from .folder import open_adapter
from .hub import ELSEWHERE, HubAdapter, parse_hub_id
from .hub_process import download_in_process

MAX_CONFIG_BYTES: Final = 1 << 20


def is_folder(lora_path: str) -> bool:
    """Of this machine; else it is an id of the hub. What is read from a folder cannot be broken off."""
    return lora_path.startswith("/")


async def fetch_adapter(lora_path: str, settings: Settings, store: ArtifactStore, slot: Slot) -> dict[str, Blob]:
    """The files of the adapter at a folder or hub id by their names, if the settings allow it.

    Configuration and weights, and what there is of a tokenizer. Raises SourceRefused, SourceMissing, SourceFailed,
    RegistryError; ApiError 503 where a download gave its slot up.
    """
    limits = {CONFIG_FILE: MAX_CONFIG_BYTES, WEIGHTS_FILE: int(settings.max_adapter_bytes), **TOKENIZER_LIMITS}
    if is_folder(lora_path):
        return await asyncio.to_thread(_from_folder, lora_path, settings.adapter_folders, store, limits)
    adapter = parse_hub_id(lora_path)
    if not settings.adapter_hub:
        raise SourceRefused(
            f"This server does not download adapters from the hub, so {adapter.repository} was not requested. The "
            "operator can allow it with adapter_hub or LORAPLEX_ADAPTER_HUB=true."
        )
    # A folder that the sweep removes if this process dies half-way.
    with tempfile.TemporaryDirectory(dir=store.incoming) as folder:
        await _download(adapter, Path(folder), limits, settings.hub_timeout, slot)
        return await asyncio.to_thread(_from_folder, folder, [Path(folder)], store, limits)


async def _download(adapter: HubAdapter, folder: Path, limits: Mapping[str, int], seconds: float, slot: Slot) -> None:
    try:
        async with slot.within(seconds):
            await download_in_process(adapter, folder, limits, optional=TOKENIZER_LIMITS)
    except TimeoutError:
        raise SourceFailed(
            f"The hub did not return {adapter.repository} within {seconds:g} seconds. Try again, allow more "
            f"(hub_timeout or LORAPLEX_HUB_TIMEOUT), {ELSEWHERE}."
        ) from None
    except SlotLost as gone:
        message = f"The download of {adapter.repository} was interrupted. {gone}"
        raise overloaded(f"{message} Try again in {RETRY_AFTER} seconds.", RETRY_AFTER) from None


def _from_folder(
    folder: str, allowed: Iterable[Path], store: ArtifactStore, limits: Mapping[str, int]
) -> dict[str, Blob]:
    with open_adapter(folder, tuple(allowed), optional=TOKENIZER_LIMITS) as files:
        return {name: _keep(store, file, name, limits) for name, file in files.items()}


def _keep(store: ArtifactStore, file: BufferedReader, name: str, limits: Mapping[str, int]) -> Blob:
    """Bring an open file into the store. Raises RegistryError, also when it changes while it is read."""
    size = os.fstat(file.fileno()).st_size
    if size > limits[name]:
        raise UploadTooLarge(f"{name} has {size:,} bytes; this server takes at most {limits[name]:,}.")
    return store.keep(file)
