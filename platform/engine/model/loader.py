"""Checkpoint: the tensors of a model folder, read from safetensors one at a time. Nothing is ever unpickled."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from .config import ModelConfig

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
DERIVED: Final = "rotary_emb.inv_freq"
"""Old checkpoints store this buffer; it follows from the configuration."""


class Checkpoint:
    """Opened safetensors files. `verify` once, then `tensor` by name; pages of the files are read when touched."""

    def __init__(self, folder: Path) -> None:
        """ValueError when the folder has no safetensors or one of them is broken."""
        self.folder = folder
        self._files: dict[str, Any] = {}
        for name in _weight_files(folder):
            handle = _open(folder / name)
            self._files |= dict.fromkeys(handle.keys(), handle)

    def __iter__(self) -> Iterator[str]:
        """Names of all tensors."""
        return iter(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    @property
    def head_name(self) -> str:
        """A tied checkpoint that brings a head all the same is taken at its word, as transformers does."""
        return "lm_head.weight" if "lm_head.weight" in self else "model.embed_tokens.weight"

    def tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())

    def verify(self, config: ModelConfig) -> None:
        """ValueError naming every tensor that is missing, unexpected or of another shape than `config` says."""
        expected = expected_tensors(config)
        optional = {"lm_head.weight"} if config.tie_word_embeddings else set()
        present = {name for name in self if not name.endswith(DERIVED)}
        problems = [
            _listed("missing", expected.keys() - present - optional),
            _listed("unexpected", present - expected.keys()),
            _listed("mis-shaped", self._misshaped(expected)),
        ]
        if any(problems):
            raise ValueError(
                f"the weights in {self.folder} do not fit its config.json ({config.architecture}): "
                + "; ".join(filter(None, problems))
            )

    def _misshaped(self, expected: dict[str, tuple[int, ...]]) -> list[str]:
        names = [name for name in expected if name in self and self.shape(name) != expected[name]]
        return [f"{name} is {list(self.shape(name))} instead of {list(expected[name])}" for name in names]


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint of this configuration."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(config.num_layers):
        shapes |= _layer_tensors(config, layer)
    return shapes


def linear_name(layer: int, kind: str) -> str:
    """Prefix of a linear's tensors in the checkpoint."""
    return f"model.layers.{layer}.{'self_attn' if kind[0] in 'qkvo' else 'mlp'}.{kind}"


def _layer_tensors(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    prefix = f"model.layers.{layer}."
    norms = ("input_layernorm", "post_attention_layernorm")
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}{norm}.weight": (config.hidden_size,) for norm in norms}
    for kind, (in_features, out_features) in config.linear_shapes().items():
        name = linear_name(layer, kind)
        shapes[f"{name}.weight"] = (out_features, in_features)
        if config.has_bias(kind):
            shapes[f"{name}.bias"] = (out_features,)
    if config.qk_norm:
        shapes |= {f"{prefix}self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
    return shapes


def _weight_files(folder: Path) -> list[str]:
    if (folder / INDEX).is_file():
        index = json.loads((folder / INDEX).read_text("utf-8"))
        names = sorted(set(index["weight_map"].values()))
        for name in names:
            if Path(name).name != name or not (folder / name).is_file():
                raise ValueError(f"{INDEX} in {folder} names {name}, which is not a file of that folder")
        return names
    if (folder / SINGLE).is_file():
        return [SINGLE]
    raise ValueError(f"{folder} has neither {SINGLE} nor {INDEX}; only safetensors weights are loaded, never pickles")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:
        raise ValueError(f"{path} is not a valid safetensors file: {error}") from error


def _listed(problem: str, names: Iterable[str], most: int = 8) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return f"{problem}: {', '.join(ordered[:most])}{more}" if ordered else ""
