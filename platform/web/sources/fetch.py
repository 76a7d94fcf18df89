"""From a `lora_path` to an adapter's files in the artifact store."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Final

from loraplex.registry.artifacts import CONFIG_FILE, WEIGHTS_FILE, ArtifactStore, Blob
from loraplex.registry.errors import UploadTooLarge

from ..adapter_tokenizers.files import TOKENIZER_LIMITS
from ..settings import Settings
from .errors import SourceRefused
from .folder import open_adapter
from .hub import HubAdapter, download, parse_hub_id

MAX_CONFIG_BYTES: Final = 1 << 20


def fetch_adapter(lora_path: str, settings: Settings, store: ArtifactStore) -> dict[str, Blob]:
    """The files of the adapter at a folder or hub id by their names, if the settings allow it. Blocks.

    Configuration and weights, and what there is of a tokenizer. Raises SourceRefused, SourceMissing, SourceFailed,
    RegistryError.
    """
    limits = {CONFIG_FILE: MAX_CONFIG_BYTES, WEIGHTS_FILE: int(settings.max_adapter_bytes), **TOKENIZER_LIMITS}
    if lora_path.startswith("/"):
        return _from_folder(lora_path, settings.adapter_folders, store, limits)
    adapter = parse_hub_id(lora_path)
    if not settings.adapter_hub:
        raise SourceRefused(
            f"This server takes no adapters from the hub, so {adapter.repository} was not asked for. The operator "
            "allows it with adapter_hub or LORAPLEX_ADAPTER_HUB=true."
        )
    return _from_hub(adapter, store, limits)


def _from_folder(
    folder: str, allowed: Iterable[Path], store: ArtifactStore, limits: Mapping[str, int]
) -> dict[str, Blob]:
    with open_adapter(folder, tuple(allowed), optional=TOKENIZER_LIMITS) as files:
        return {name: _keep(store, file, name, limits) for name, file in files.items()}


def _from_hub(adapter: HubAdapter, store: ArtifactStore, limits: Mapping[str, int]) -> dict[str, Blob]:
    """By way of a folder that the sweep removes if this process dies half-way."""
    with tempfile.TemporaryDirectory(dir=store.incoming) as folder:
        download(adapter, Path(folder), limits, optional=TOKENIZER_LIMITS)
        return _from_folder(folder, [Path(folder)], store, limits)


def _keep(store: ArtifactStore, file: BufferedReader, name: str, limits: Mapping[str, int]) -> Blob:
    """Bring an open file into the store. Raises RegistryError, also when it changes while it is read."""
    size = os.fstat(file.fileno()).st_size
    if size > limits[name]:
        raise UploadTooLarge(f"{name} has {size:,} bytes; this server takes at most {limits[name]:,}.")
    return store.keep(file)
