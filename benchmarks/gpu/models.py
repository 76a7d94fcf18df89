"""Random checkpoints of given dimensions in Hugging Face layout, and PEFT adapters for them, made where they are read
fastest."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

MEMORY_FOLDER: Final = Path("/dev/shm")
SPARE_BYTES: Final = 8 << 30
"""That must stay free where a checkpoint is put."""
STD: Final = 0.02
EMBEDDED_STD: Final = 1.0
"""Of embeddings, where the head is another matrix; see `_std`."""
BRANCHES: Final = ("self_attn.o_proj", "mlp.down_proj")
"""Linears whose outputs are added up from layer to layer."""
LINEARS: Final = {
    "self_attn.q_proj": ("query", "hidden"),
    "self_attn.k_proj": ("kv", "hidden"),
    "self_attn.v_proj": ("kv", "hidden"),
    "self_attn.o_proj": ("hidden", "query"),
    "mlp.gate_proj": ("intermediate", "hidden"),
    "mlp.up_proj": ("intermediate", "hidden"),
    "mlp.down_proj": ("hidden", "intermediate"),
}
"""Module inside a layer -> its outputs and inputs."""


@dataclass(frozen=True)
class Model:
    """A Llama decoder."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

    def shape(self, linear: str) -> tuple[int, int]:
        sizes = {
            "hidden": self.hidden, "intermediate": self.intermediate, "query": self.heads * self.head_dim,
            "kv": self.kv_heads * self.head_dim,
        }  # fmt: skip
        outputs, inputs = LINEARS[linear]
        return sizes[outputs], sizes[inputs]

    @property
    def streamed(self) -> int:
        """Parameters that a decode step reads: of all linears and the head."""
        linears = sum(outputs * inputs for outputs, inputs in map(self.shape, LINEARS))
        return self.layers * linears + self.vocabulary * self.hidden

    def adapter_bytes(self, rank: int) -> int:
        """Of an adapter on all linears, in pages of 8 ranks."""
        return 2 * 8 * -(-rank // 8) * self.layers * sum(sum(self.shape(linear)) for linear in LINEARS)

    @property
    def kv_values(self) -> int:
        """Numbers in the keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def bytes(self) -> int:
        """Of the checkpoint."""
        return 2 * (self.streamed + (0 if self.tied else self.vocabulary * self.hidden))

    def make(self, device: torch.device, parent: Path) -> Path:
        return checkpoint(self, device, parent)


EIGHT_BILLION: Final = Model("8B", 4096, 14336, 32, 32, 8, 128, 128256, tied=False)
"""As Llama 3.1 8B has them."""
HALF_BILLION: Final = Model("0.5B", 896, 4864, 24, 14, 2, 64, 151936, tied=True)
"""As Qwen2.5 0.5B has them."""


@contextmanager
def workplaces() -> Iterator[tuple[Path, ...]]:
    """Two folders for checkpoints, in memory and on the disk, that are gone afterwards."""
    with ExitStack() as stack:
        yield tuple(Path(stack.enter_context(_temporary(parent))) for parent in _parents())


def use_workplaces(folders: tuple[Path, ...]) -> None:
    """Of a process that began this one and removes them: what another has made there before it was ended is there."""
    _WORKPLACES[:] = folders


def workplace(needed: int) -> Path:
    """A folder for a checkpoint of `needed` bytes and adapters for it, in memory where that holds it and some more."""
    if not _WORKPLACES:
        for parent in _parents():
            _KEPT.append(_temporary(parent))
            _WORKPLACES.append(Path(_KEPT[-1].name))
    found = [folder for place in _WORKPLACES if (folder := place / str(needed)).is_dir()]
    if not found:
        found = [place / str(needed) for place in _WORKPLACES if _has_room(place, needed)]
    if not found:
        raise OSError(f"a checkpoint needs {needed + SPARE_BYTES:,} free bytes in {MEMORY_FOLDER} or in TMPDIR")
    found[0].mkdir(exist_ok=True)
    return found[0]


_WORKPLACES: Final[list[Path]] = []
_KEPT: Final[list["tempfile.TemporaryDirectory[str]"]] = []


def _parents() -> list[Path]:
    return [place for place in (MEMORY_FOLDER, Path(tempfile.gettempdir())) if os.access(place, os.W_OK)]


def _temporary(parent: Path) -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="loraplex-benchmark-", dir=parent)


def _has_room(folder: Path, needed: int) -> bool:
    return shutil.disk_usage(folder).free > needed + SPARE_BYTES


def checkpoint(model: Model, device: torch.device, parent: Path) -> Path:
    """The folder of its checkpoint in bfloat16, a file for each layer; made on `device` the first time."""
    folder = parent / model.name
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device).manual_seed(0)
    places: dict[str, str] = {}
    for number, tensors in enumerate(_shards(model, generator)):
        name = f"model-{number:05d}.safetensors"
        _save(tensors, folder / name)
        places |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1}))
    (folder / "config.json").write_text(json.dumps(_config(model)))
    return folder


def adapters(model: Model, rank: int, count: int, device: torch.device, parent: Path) -> list[Path]:
    """Folders of `count` adapters on all linears: the weights of one file under lora_alphas, and so digests, of their
    own."""
    first = parent / f"{model.name}-r{rank}-0"
    folders = [parent / f"{model.name}-r{rank}-{number}" for number in range(count)]
    for number, folder in enumerate(folders):
        if (folder / "adapter_config.json").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        weights = folder / "adapter_model.safetensors"
        if number:
            weights.unlink(missing_ok=True)
            os.link(first / weights.name, weights)
        else:
            _save(_adapter_tensors(model, rank, device), weights)
        (folder / "adapter_config.json").write_text(json.dumps(_adapter_config(model, rank, number)))
    return folders


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    from safetensors.torch import save_file  # rows of kernels need no such package

    save_file(tensors, path, metadata={"format": "pt"})


def _shards(model: Model, generator: torch.Generator) -> Iterator[dict[str, torch.Tensor]]:
    std = STD if model.tied else EMBEDDED_STD
    ends = {"model.embed_tokens.weight": _normal(generator, model.vocabulary, model.hidden, std)}
    ends["model.norm.weight"] = _ones(model.hidden)
    if not model.tied:
        ends["lm_head.weight"] = _normal(generator, model.vocabulary, model.hidden)
    yield ends
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}"
        shard = {
            f"{prefix}.{linear}.weight": _normal(generator, *model.shape(linear), _std(model, linear))
            for linear in LINEARS
        }
        norms = ("input_layernorm", "post_attention_layernorm")
        yield shard | {f"{prefix}.{norm}.weight": _ones(model.hidden) for norm in norms}


def _adapter_tensors(model: Model, rank: int, device: torch.device) -> dict[str, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(rank)
    tensors = {}
    for layer in range(model.layers):
        for linear in LINEARS:
            outputs, inputs = model.shape(linear)
            prefix = f"base_model.model.model.layers.{layer}.{linear}"
            tensors[f"{prefix}.lora_A.weight"] = _normal(generator, rank, inputs)
            tensors[f"{prefix}.lora_B.weight"] = _normal(generator, outputs, rank)
    return tensors


def _std(model: Model, linear: str) -> float:
    """As GPT-2 begins: what all layers add together is about as large as what they are given. With 0.02 everywhere a
    random model of 32 wide layers makes so much of roundings that two right engines differ by what is allowed
    (benchmarks/NOTES.md). With tied ends such embeddings would make each token foretell itself."""
    return STD / math.sqrt(2 * model.layers) if linear in BRANCHES and not model.tied else STD


def _normal(generator: torch.Generator, rows: int, columns: int, std: float = STD) -> torch.Tensor:
    values = torch.randn(rows, columns, generator=generator, device=generator.device, dtype=torch.bfloat16)
    return values.mul_(std).cpu()


def _ones(size: int) -> torch.Tensor:
    return torch.ones(size, dtype=torch.bfloat16)


def _config(model: Model) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": model.tied,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def _adapter_config(model: Model, rank: int, number: int) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": rank,
        "lora_alpha": rank * (1 + number / 4096),
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [linear.rsplit(".", 1)[1] for linear in LINEARS],
    }
