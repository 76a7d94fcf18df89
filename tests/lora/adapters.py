"""Small adapters in PEFT's file layout, made without PEFT or torch, so that every byte can be chosen."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loraplex.lora.files.manifest import AdapterManifest, BaseSignature
from loraplex.lora.inspection.inspection import inspect_adapter
from tests.lora.signatures import llama_signature, module_path

BASE = llama_signature(
    fingerprint="tiny",
    num_layers=2,
    kinds={
        "q_proj": (16, 24),
        "k_proj": (16, 12),
        "v_proj": (16, 12),
        "o_proj": (24, 16),
        "gate_proj": (16, 40),
        "up_proj": (16, 40),
        "down_proj": (40, 16),
    },
    name="acme/tiny",
    vocab_size=320,
    hidden_size=16,
    normed_head_size=6,
)
DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16"}
"""numpy has no bfloat16; its bit patterns stand for it."""

Tensors = dict[str, NDArray[Any]]


def make_config(**changes: Any) -> dict[str, Any]:
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "acme/tiny",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "down_proj"],
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
    }
    return config | changes


def make_tensors(
    rank: int = 4, kinds: Sequence[str] = ("q_proj", "down_proj"), base: BaseSignature = BASE, seed: int = 0
) -> Tensors:
    random = np.random.default_rng(seed)
    tensors: Tensors = {}
    for layer in range(base.num_layers):
        for kind in kinds:
            inputs, outputs = base.linears[kind]
            tensors[tensor_name(layer, kind, "A")] = random.normal(size=(rank, inputs)).astype(np.float32)
            tensors[tensor_name(layer, kind, "B")] = random.normal(size=(outputs, rank)).astype(np.float32)
    return tensors


def tensor_name(layer: int, kind: str, side: str) -> str:
    return f"base_model.model.{module_path(layer, kind)}.lora_{side}.weight"


def encode(tensors: Mapping[str, NDArray[Any]], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file of the tensors in the given order."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    position = 0
    for name, tensor in tensors.items():
        offsets = [position, position + tensor.nbytes]
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        position += tensor.nbytes
    return frame(json.dumps(header).encode(), b"".join(tensor.tobytes() for tensor in tensors.values()))


def frame(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def write_adapter(folder: Path, config: Mapping[str, Any] | bytes, weights: Tensors | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    (folder / "adapter_config.json").write_bytes(text)
    (folder / "adapter_model.safetensors").write_bytes(weights if isinstance(weights, bytes) else encode(weights))
    return folder


def make_adapter(folder: Path, rank: int = 4, seed: int = 0, **changes: Any) -> tuple[str, Path]:
    """Digest and folder of a good adapter."""
    kinds = changes.pop("kinds", ["q_proj", "down_proj"])
    config = make_config(r=rank, target_modules=list(kinds), **changes)
    write_adapter(folder, config, make_tensors(rank, kinds, seed=seed))
    return read_manifest(folder).digest, folder


def read_manifest(folder: Path, base: BaseSignature = BASE) -> AdapterManifest:
    config = (folder / "adapter_config.json").read_bytes()
    inspection = inspect_adapter(config, folder / "adapter_model.safetensors", base)
    assert inspection.manifest is not None, inspection.failures()
    return inspection.manifest
