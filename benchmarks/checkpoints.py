"""Random checkpoints and adapters of given dimensions, made once with fixed seeds under benchmarks/.cache."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CACHE = Path(__file__).resolve().parent / ".cache"


@dataclass(frozen=True)
class Dimensions:
    """A Qwen2-style decoder with tied embeddings."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def linears(self) -> dict[str, tuple[int, int]]:
        """Module path inside a layer -> (out, in)."""
        kv = self.kv_heads * self.head_dim
        return {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }


HALF_BILLION = Dimensions("random-0.5b", 896, 4864, 24, 14, 2, 151936)
SMALL = Dimensions("random-25m", 512, 1408, 8, 8, 4, 4096)


def base_checkpoint(dimensions: Dimensions) -> Path:
    """Folder with a bf16 checkpoint in Hugging Face layout."""
    folder = CACHE / dimensions.name
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write_config(dimensions, folder)
        write_tokenizer(dimensions.vocab, folder)
        save_file(_base_tensors(dimensions), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def adapter(dimensions: Dimensions, rank: int, seed: int) -> Path:
    """Folder with a PEFT adapter of this rank on all seven linears; B is not zero."""
    folder = CACHE / f"{dimensions.name}-adapters" / f"r{rank}-{seed}"
    if not (folder / "adapter_model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": dimensions.name,
            "r": rank,
            "lora_alpha": rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": [path.rsplit(".", 1)[1] for path in dimensions.linears()],
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        save_file(_adapter_tensors(dimensions, rank, seed), folder / "adapter_model.safetensors")
    return folder


def adapter_like(source: Path, number: int) -> Path:
    """Another adapter with the weights of `source`, by a link to their file; its lora_alpha and digest are its own."""
    folder = source.with_name(f"{source.name}-like-{number}")
    if not (folder / "adapter_config.json").exists():
        folder.mkdir(exist_ok=True)
        (folder / "adapter_model.safetensors").unlink(missing_ok=True)
        os.link(source / "adapter_model.safetensors", folder / "adapter_model.safetensors")
        config = json.loads((source / "adapter_config.json").read_text())
        config["lora_alpha"] *= 1 + (number + 1) / 4096
        (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def _write_config(dimensions: Dimensions, folder: Path) -> None:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": dimensions.hidden,
        "intermediate_size": dimensions.intermediate,
        "num_hidden_layers": dimensions.layers,
        "num_attention_heads": dimensions.heads,
        "num_key_value_heads": dimensions.kv_heads,
        "vocab_size": dimensions.vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1}))


def write_tokenizer(size: int, folder: Path) -> None:
    """A byte-level tokenizer of `size` tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", "</s>", *alphabet])}
    vocabulary |= {f"Ġw{index}": index for index in range(len(vocabulary), size)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _base_tensors(dimensions: Dimensions) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {"model.embed_tokens.weight": _normal(generator, dimensions.vocab, dimensions.hidden)}
    tensors["model.norm.weight"] = torch.ones(dimensions.hidden, dtype=torch.bfloat16)
    for layer in range(dimensions.layers):
        prefix = f"model.layers.{layer}"
        for path, (rows, columns) in dimensions.linears().items():
            tensors[f"{prefix}.{path}.weight"] = _normal(generator, rows, columns)
            if path.endswith(("q_proj", "k_proj", "v_proj")):
                tensors[f"{prefix}.{path}.bias"] = torch.zeros(rows, dtype=torch.bfloat16)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = torch.ones(dimensions.hidden, dtype=torch.bfloat16)
    return tensors


def _adapter_tensors(dimensions: Dimensions, rank: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(dimensions.layers):
        for path, (rows, columns) in dimensions.linears().items():
            prefix = f"base_model.model.model.layers.{layer}.{path}"
            tensors[f"{prefix}.lora_A.weight"] = _normal(generator, rank, columns)
            tensors[f"{prefix}.lora_B.weight"] = _normal(generator, rows, rank)
    return tensors


def _normal(generator: torch.Generator, rows: int, columns: int) -> torch.Tensor:
    return (torch.randn(rows, columns, generator=generator) * 0.02).to(torch.bfloat16)
