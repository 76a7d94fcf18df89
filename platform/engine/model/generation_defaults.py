"""Sampling defaults of a checkpoint, out of its generation_config.json. No torch."""

from pathlib import Path
from typing import Any, Final

from .config import read_json

NAMES: Final = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}
"""transformers' names, and those of SamplingParams: vLLM reads the same."""


def generation_defaults(folder: Path) -> dict[str, Any]:
    """Fields of SamplingParams; empty without a file. ValueError for one that is no JSON object."""
    path = folder / "generation_config.json"
    said = read_json(path) if path.is_file() else {}
    return {ours: said[theirs] for theirs, ours in NAMES.items() if said.get(theirs) is not None}
