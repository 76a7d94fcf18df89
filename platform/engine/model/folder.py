"""Where a model's files are. No torch: the API process asks too."""

from pathlib import Path
from typing import Final

FOLDED_SCALES: Final = "loraplex/awq_scales.safetensors"
"""What inputs of linears were scaled by when the checkpoint was quantized; in a folder of its own, because readers take
every safetensors file beside config.json for weights."""
FOLDED_DIGEST: Final = "loraplex_awq_scales"
"""In config.json: the SHA-256 of that file. Without the file the model answers, and its adapters answer wrongly."""
MOST_HEADER: Final = 100 << 20
"""Bytes, as the safetensors library allows."""


def is_hub_id(model: str) -> bool:
    """owner/name, and no folder of this machine."""
    return model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).is_dir()


def resolve_model_folder(model: str) -> Path:
    """A local folder as it is; a hub id as the folder its safetensors and JSON files were downloaded to.

    ValueError when it is neither.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if not is_hub_id(model):
        raise ValueError(f"the model folder {model} does not exist; give a local folder or a hub id such as owner/name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=["*.safetensors", "*.json", "*.jinja"]))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{model} is no local folder, and the hub did not give it ({type(error).__name__}: {error}); "
            "check the name and the network, or download it and give its folder"
        ) from error


def stores_head(folder: Path) -> bool:
    """Whether its safetensors have an lm_head. What cannot be read is told elsewhere."""
    return any(b'"lm_head.' in _header(file) for file in folder.glob("*.safetensors"))


def _header(file: Path) -> bytes:
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        return opened.read(min(size, MOST_HEADER))
