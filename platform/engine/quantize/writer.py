"""A checkpoint folder that appears complete or not at all: shards in a hidden folder beside it, renamed at the end."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import save, save_file

from ..model.loader import INDEX, SINGLE

SHARD_BYTES: Final = 512 << 20
"""What waits in memory until it is written."""
COPIED_ENDINGS: Final = (".json", ".jinja", ".txt", ".model")
"""Tokenizer, chat template, generation config; and files that begin with LICENSE or NOTICE."""


class CheckpointWriter:
    """`add` tensors, then `finish`. At most one shard is held in memory. Make it with `new_checkpoint`."""

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        """`folder`: an empty one, not yet the checkpoint's."""
        self._folder, self._shard_bytes = folder, shard_bytes
        self._held: dict[str, torch.Tensor] = {}
        self._shards: list[list[str]] = []
        self._total = 0

    @property
    def total_bytes(self) -> int:
        """Of all tensors so far."""
        return self._total

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if self._held and self._held_bytes() + tensor.nbytes > self._shard_bytes:
                self._write_shard()
            self._held[name] = tensor.contiguous()
            self._total += tensor.nbytes

    def finish(self, config: Mapping[str, Any], source: Path) -> None:
        """The last shard, the index where there are several, config.json, and what goes with it from `source`."""
        if self._held:
            self._write_shard()
        with _disk_errors_explained():
            self._name_shards()
            (self._folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
            for file in sorted(source.iterdir()):
                if file.is_file() and _goes_along(file.name):
                    shutil.copyfile(file, self._folder / file.name)

    def add_file(self, name: str, tensors: Mapping[str, torch.Tensor]) -> str:
        """Tensors that are not weights, in a file of their own. Its SHA-256."""
        path, data = self._folder / name, save(dict(tensors))
        with _disk_errors_explained():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def _held_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._held.values())

    def _write_shard(self) -> None:
        with _disk_errors_explained():
            save_file(self._held, self._folder / _unnamed(len(self._shards)), metadata={"format": "pt"})
        self._shards.append(list(self._held))
        self._held = {}

    def _name_shards(self) -> None:
        count = len(self._shards)
        names = [SINGLE] if count == 1 else [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
        for number, name in enumerate(names):
            (self._folder / _unnamed(number)).rename(self._folder / name)
        if count > 1:
            where = {tensor: name for name, tensors in zip(names, self._shards, strict=True) for tensor in tensors}
            index = {"metadata": {"total_size": self._total}, "weight_map": where}
            (self._folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


@contextmanager
def new_checkpoint(output: Path, needed_bytes: int, shard_bytes: int = SHARD_BYTES) -> Iterator[CheckpointWriter]:
    """A writer whose folder becomes `output` when the block ends well, and is gone when it does not.

    ValueError when `output` is taken, cannot be written, or its disk has less than `needed_bytes`.
    """
    check_output(output, needed_bytes)
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise ValueError(f"{output.parent} cannot be written: {error.strerror}. Choose another folder") from None
    try:
        yield CheckpointWriter(staging, shard_bytes)
        with _disk_errors_explained():
            _publish(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_output(output: Path, needed_bytes: int) -> None:
    """ValueError as `new_checkpoint`'s, before any work is done."""
    if output.is_mount() or output == Path.cwd():
        what = "a whole disk" if output.is_mount() else "the folder this runs in"
        raise ValueError(f"{output} is {what}, which no finished folder can be put in the place of. Name one in it")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists already and is not an empty folder. Choose another --output, or remove it")
    if not output.parent.is_dir():
        raise ValueError(
            f"{output.parent}, where {output.name} should go, is no folder. Make it, or choose another --output"
        )
    free = shutil.disk_usage(output.parent).free
    if free < needed_bytes:
        raise ValueError(
            f"the quantized model takes about {needed_bytes / 1e9:.1f} GB, but {output.parent} has {free / 1e9:.1f} GB "
            "free. Free some, or choose another folder"
        )


def _publish(staging: Path, output: Path) -> None:
    for path in staging.rglob("*"):
        if path.is_file():
            _sync(path)
    staging.chmod(0o755)
    _sync(staging)
    staging.rename(output)  # replaces an empty folder
    _sync(output.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _disk_errors_explained() -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ValueError(f"the checkpoint could not be written, and nothing is left of it: {error}") from error


def _goes_along(name: str) -> bool:
    if name.startswith(("LICENSE", "NOTICE")):
        return True
    return name.endswith(COPIED_ENDINGS) and name != "config.json" and not name.endswith(".index.json")


def _unnamed(number: int) -> str:
    return f"shard-{number}.safetensors"
