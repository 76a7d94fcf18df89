"""Where the base model lies: a folder on this machine, or a hub id that is fetched first."""

import re
from pathlib import Path
from typing import Final

HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES: Final = ["*.json", "*.safetensors", "*.jinja"]
"""Data only: no pickles, no code."""


def model_folder(model: str) -> Path:
    """The folder with config.json. Raises ValueError when there is none."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(f"the model folder {folder} has no config.json. Name a folder in Hugging Face layout.")
        return folder.resolve()
    if HUB_ID.fullmatch(model):
        return _from_hub(model)
    raise ValueError(f"the model {model} is neither a folder here nor a hub id such as Qwen/Qwen2.5-0.5B-Instruct.")


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"the model {model} is no folder here and could not be fetched from the hub: {error}. "
            "Check the id and the network, or download it yourself and name the folder."
        ) from None
