"""What is in an adapter's two files, for people: its tensors, and how one version differs from another."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import SEEK_END, FileIO
from typing import Any

from loraplex.lora.files.manifest import TensorInfo
from loraplex.lora.files.report import Report
from loraplex.lora.files.safetensors_header import ACCEPTED, read_header

from ..files.artifacts import CONFIG_FILE, WEIGHTS_FILE, ArtifactStore


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of the configuration as JSON; None where it is not there."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Between two contents. `same_shape`: tensors that both have alike in shape and dtype; their values may differ."""

    fields: Sequence[FieldChange]
    added: Sequence[str]
    removed: Sequence[str]
    reshaped: Sequence[str]
    same_shape: int


def tensors_of(store: ArtifactStore, digest: str) -> tuple[TensorInfo, ...]:
    """By the order of their bytes; none where the file is gone or broken, which the sweep says in words. Blocks."""
    try:
        with FileIO(store.folder(digest) / WEIGHTS_FILE) as file:
            size = file.seek(0, SEEK_END)
            file.seek(0)
            return read_header(file, size, Report(), ACCEPTED, empty_allowed=True)
    except (FileNotFoundError, EOFError):
        return ()


def difference(store: ArtifactStore, before: str, after: str) -> Difference:
    """Between the contents with these digests. Blocks."""
    old, new = _by_name(store, before), _by_name(store, after)
    both = old.keys() & new.keys()
    reshaped = sorted(name for name in both if _form(old[name]) != _form(new[name]))
    return Difference(
        fields=_changes(_config(store, before), _config(store, after)),
        added=sorted(new.keys() - old.keys()),
        removed=sorted(old.keys() - new.keys()),
        reshaped=reshaped,
        same_shape=len(both) - len(reshaped),
    )


def _by_name(store: ArtifactStore, digest: str) -> dict[str, TensorInfo]:
    return {tensor.name: tensor for tensor in tensors_of(store, digest)}


def _form(tensor: TensorInfo) -> tuple[object, ...]:
    return tensor.dtype, tuple(tensor.shape)


def _config(store: ArtifactStore, digest: str) -> dict[str, Any]:
    try:
        found = json.loads((store.folder(digest) / CONFIG_FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[FieldChange]:
    fields = sorted(old.keys() | new.keys())
    pairs = [(field, _json(old, field), _json(new, field)) for field in fields]
    return [FieldChange(field, before, after) for field, before, after in pairs if before != after]


def _json(config: Mapping[str, Any], field: str) -> str | None:
    """Lists of names in any order are the same."""
    if field not in config:
        return None
    value = config[field]
    names = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return json.dumps(sorted(value) if names else value, sort_keys=True, ensure_ascii=False)
