"""Checkpoint: the tensors of a model folder, read from safetensors one at a time. Nothing is ever unpickled."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from loraplex.quant.formats.read import read_weight
from loraplex.quant.formats.specification import Linear
from loraplex.quant.weights.weights import Weight

from .config import ModelConfig
from .description.spec import ModelSpec
from .expected import expected_tensors, head_linear, layout_of, linear_tensors
from .experts.stacked import StoredTensor, split_stacked

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
OLD_CONFIGS: Final = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files of quantizing tools, and their methods, from before config.json said it."""
DERIVED: Final = "rotary_emb.inv_freq"
"""Old checkpoints store this buffer; it follows from the configuration."""


class Checkpoint:
    """Opened safetensors files. `verify` once, then `tensor` by name; pages of the files are read when touched."""

    def __init__(self, folder: Path, spec: ModelSpec | None = None) -> None:
        """`spec`: how its tensors are called; None: as they are. ValueError when the folder has no safetensors or one
        of them is broken."""
        self.folder = folder
        self._files: dict[str, StoredTensor] = {}
        """By our name of a tensor."""
        self._others: dict[str, Any] = {}
        """By its name in its file: the file of a tensor that is not served."""
        for name in _weight_files(folder):
            handle = _open(folder / name)
            self._files |= {stored: StoredTensor(handle, stored) for stored in handle.keys()}  # noqa: SIM118
        self.left_out: dict[str, int] = {}
        """What of a larger model is not served -> how many tensors it has."""
        if spec is not None:
            self._rename(spec)
        self._suffixes: dict[str, list[str]] = {}
        for name in self._files:
            prefix, _, suffix = name.rpartition(".")
            self._suffixes.setdefault(prefix, []).append(suffix)

    @property
    def left_out_words(self) -> str:
        """For the log, behind what was loaded; empty: nothing was left out."""
        parts = [f"{what} ({count:,} tensors)" for what, count in self.left_out.items()]
        return f"; without {', '.join(parts)}, which are not served" if parts else ""

    def _rename(self, spec: ModelSpec) -> None:
        """To the names of the text model, without what else there is."""
        named: dict[str, StoredTensor] = {}
        for name, place in self._files.items():
            if name.endswith((DERIVED, *spec.derived)):
                continue
            ours = _renamed(name, spec)
            other = next(
                (what for start, what in spec.left_out.items() if name.startswith(start) or ours.startswith(start)),
                None,
            )
            if other is None:
                named[ours] = place
            else:
                self.left_out[other] = self.left_out.get(other, 0) + 1
                self._others[place.name] = place.file
        body, _, embedding = spec.embedding.path.partition(".")
        if f"{spec.embedding.path}.weight" not in named and f"{embedding}.weight" in named:
            # A model that was saved without a head has no prefix that sets them apart.
            heads = (spec.classifier.owned, *([] if spec.head is None else [spec.head.path]))
            named = {name if name.startswith(heads) else f"{body}.{name}": place for name, place in named.items()}
        split_stacked(spec, named)
        self._files = named

    def __iter__(self) -> Iterator[str]:
        """Names of all tensors."""
        return iter(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def stored_name(self, name: str) -> str:
        """In its file."""
        return self._files[name].name

    @property
    def is_stacked(self) -> bool:
        """Whether tensors hold all experts of a layer."""
        return any(stored.part is not None for stored in self._files.values())

    def left_out_from(self, start: str) -> bool:
        """Whether there is anything that is not served, and whose name begins so."""
        return any(name.startswith(start) for name in self._others)

    def others(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What of a larger model is not served, by the names in its files."""
        for name, file in self._others.items():
            yield name, file.get_tensor(name)

    def suffixes(self, prefix: str) -> frozenset[str]:
        """Names without `prefix` and a dot of the tensors right under it."""
        return frozenset(self._suffixes.get(prefix, ()))

    def tensor(self, name: str) -> torch.Tensor:
        return self._files[name].read()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._files[name].shape()

    def dtype(self, name: str) -> str:
        """As safetensors calls it."""
        return self._files[name].dtype()

    def weight(self, config: ModelConfig, linear: Linear) -> Weight:
        """Of `linear`: a tensor as it is stored, or what its quantized tensors stand for. ValueError for values that no
        weight can hold."""
        layout = layout_of(config, self, linear.name)
        if layout is None:
            return self.tensor(f"{linear.name}.weight")
        specs, present = linear_tensors(config, self, linear), self.suffixes(linear.name)
        read = [suffix for suffix, spec in specs.items() if spec.forms and suffix in present]
        return read_weight(layout, linear, {suffix: self.tensor(f"{linear.name}.{suffix}") for suffix in read})

    def head(self, config: ModelConfig) -> Weight:
        """A tied checkpoint that brings a head all the same is taken at its word, as transformers does."""
        assert config.spec.head is not None
        if self.suffixes(config.spec.head.path):
            return self.weight(config, head_linear(config.spec))
        return self.tensor(f"{config.spec.embedding.path}.weight")

    def classifier(self, config: ModelConfig) -> dict[str, NDArray[np.float32]]:
        """What there is of the tensors that score classes, by name."""
        return {name: self.tensor(name).float().numpy() for name in config.spec.classifier.tensors() if name in self}

    def token_head(self, config: ModelConfig, true_token: int, false_token: int | None) -> NDArray[np.float32]:
        """[1, hidden size]: how much larger the logit of the one token is than that of the other, if there is one."""
        weight = self.head(config)
        rows = weight if isinstance(weight, torch.Tensor) else weight.dequantized()
        score = rows[true_token].float()
        return np.array((score if false_token is None else score - rows[false_token].float()).numpy()[None])

    def verify(self, config: ModelConfig) -> None:
        """ValueError naming every tensor that is missing, unexpected or something else than `config` says."""
        expected = expected_tensors(config, self)
        present = {name for name in self if not name.endswith(DERIVED)}
        required = {name for name, spec in expected.items() if spec.required}
        found = {name: (expected[name], self.shape(name)) for name in expected.keys() & present}
        misshaped = {name: spec.misshaped(shape) for name, (spec, shape) in found.items()}
        mistyped = {name: spec.mistyped(self.dtype(name), shape) for name, (spec, shape) in found.items()}
        problems = [
            _listed("missing", required - present),
            _listed("unexpected", present - expected.keys()),
            _listed("mis-shaped", [f"{name} is {words}" for name, words in misshaped.items() if words]),
            _listed("mis-typed", [f"{name} is {words}" for name, words in mistyped.items() if words]),
        ]
        if any(problems):
            quantized = "" if config.quantization is None else f", {config.quantization.words}"
            raise ValueError(
                f"the weights in {self.folder} do not fit its config.json ({config.architecture}{quantized}): "
                + "; ".join(filter(None, problems))
                + (self._hint(config) or "; download it again; if it is whole, its config.json is another model's")
            )

    def _hint(self, config: ModelConfig) -> str:
        """Where an old tool has said how the weights are quantized; servers read it differently, so nobody guesses."""
        file = next((name for name in OLD_CONFIGS if (self.folder / name).is_file()), None)
        if config.quantization is not None or file is None:
            return ""
        return (
            f"; {file} lies beside it: if the weights are quantized, config.json must say so (quantization_config, "
            f"with what {file} has and a quant_method, {OLD_CONFIGS[file]})"
        )


def _renamed(name: str, spec: ModelSpec) -> str:
    end = next((end for end in spec.renamed_ends if name.endswith(end)), None)
    name = name if end is None else name.removesuffix(end) + spec.renamed_ends[end]
    start = max((start for start in spec.renamed if name.startswith(start)), key=len, default="")
    return spec.renamed[start] + name.removeprefix(start) if start else name


def _weight_files(folder: Path) -> list[str]:
    """As transformers chooses: an index that another tool has left beside a whole file is not looked at."""
    is_whole = (folder / SINGLE).is_file()
    if not is_whole and not (folder / INDEX).is_file():
        raise ValueError(
            f"{folder} has neither {SINGLE} nor {INDEX}; only safetensors weights are loaded, never pickles"
        )
    names = sorted(set(_weight_map(folder / INDEX).values())) if (folder / INDEX).is_file() else [SINGLE]
    if is_whole and SINGLE not in names:
        return [SINGLE]
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise ValueError(f"{INDEX} in {folder} names {name}, which is not a file of that folder")
    return names


def _weight_map(path: Path) -> dict[str, str]:
    """Of each tensor, the file it is in."""
    try:
        index = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise ValueError(f"{path} must have a weight_map, an object of tensors and the files they are in")
    return where


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:
        raise ValueError(f"{path} is not a valid safetensors file: {error}") from error


def _listed(problem: str, names: Iterable[str], most: int = 8) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return f"{problem}: {', '.join(ordered[:most])}{more}" if ordered else ""
