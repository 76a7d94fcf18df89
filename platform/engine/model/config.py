"""ModelConfig: the shape of a supported checkpoint, read from its config.json without torch or transformers.

transformers 4 writes `rope_theta` and `rope_scaling`, transformers 5 writes `rope_parameters`; both are read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from loraplex.lora.files.manifest import BaseSignature
from loraplex.quant.config.config import QuantizationConfig, parse_quantization

from .folder import FOLDED_DIGEST, stores_head
from .identity.fingerprint import fingerprint_weights

DTYPES: Final = ("bfloat16", "float16", "float32")
MODULES: Final = "modules.json"
"""Of sentence-transformers: the model makes embeddings."""
Task = Literal["generate", "classify", "embed"]
"""What a checkpoint was made for. Embeddings can be made of any."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions become angles. `parameters` holds the numbers of the scaling kind, `theta` apart."""

    kind: str
    """default, linear, dynamic, llama3 or yarn."""
    theta: float
    parameters: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    architecture: str
    """Of the family's model that generates text, whatever is made of it."""
    dtype: str
    """What the weights are stored in: bfloat16, float16 or float32."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMS norm over each query and key head before rope (Qwen3)."""
    sliding_windows: tuple[int | None, ...]
    """Per layer: how many of the latest tokens it sees, None for all."""
    rope: RopeConfig
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    quantization: QuantizationConfig | None = None
    """None for weights stored as floats."""
    task: Task = "generate"
    labels: tuple[str, ...] = ()
    """Of a model that classifies: the class of each row of its head."""
    label_activation: Literal["", "auto", "sigmoid"] = ""
    """What makes probabilities of its scores: auto, sigmoid, or nothing."""
    folded_digest: str | None = None
    """SHA-256 of the file of AWQ's folded scales that belongs to it; None: no file is announced."""

    @staticmethod
    def from_folder(folder: str | Path) -> "ModelConfig":
        """Read config.json and generation_config.json. ValueError says what is missing or unsupported."""
        path = Path(folder) / "config.json"
        if not path.is_file():
            raise ValueError(f"{folder} has no config.json: give the folder of a Hugging Face checkpoint")
        generation = Path(folder) / "generation_config.json"
        config = parse_config(read_json(path), read_json(generation) if generation.is_file() else {})
        # Embedding models are often stored without their head, under the name of the model with one.
        may_lack_head = config.task == "generate" and not config.tie_word_embeddings
        headless = may_lack_head and (Path(folder) / MODULES).is_file() and not stores_head(Path(folder))
        return replace(config, task="embed") if headless else config

    def length(self, asked: int | None) -> int:
        """Tokens of prompt plus output; None: all that the model was made for. ValueError beyond that."""
        longest = self.max_position_embeddings
        if asked is not None and not 2 <= asked <= longest:
            raise ValueError(f"max_model_len must be between 2 and {longest}, the model's own, got {asked}")
        return longest if asked is None else asked

    @property
    def why_silent(self) -> str:
        """Why it generates no text; empty: it does."""
        return WHY_SILENT.get(self.task, "")

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """kind -> (in_features, out_features) of each linear of a layer."""
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden_size, query),
            "k_proj": (self.hidden_size, key),
            "v_proj": (self.hidden_size, key),
            "o_proj": (query, self.hidden_size),
            "gate_proj": (self.hidden_size, self.intermediate_size),
            "up_proj": (self.hidden_size, self.intermediate_size),
            "down_proj": (self.intermediate_size, self.hidden_size),
        }

    def has_bias(self, kind: str) -> bool:
        if kind in ("q_proj", "k_proj", "v_proj"):
            return self.qkv_bias
        return self.output_bias if kind == "o_proj" else self.mlp_bias


def base_signature(folder: str | Path) -> BaseSignature:
    """What an adapter may target in the checkpoint at `folder`, and which checkpoint that is."""
    config = ModelConfig.from_folder(folder)
    shapes = config.linear_shapes()
    identity = (config.architecture, config.vocab_size, config.num_layers, config.num_heads, sorted(shapes.items()))
    quantization = "" if config.quantization is None else config.quantization.identity
    return BaseSignature(
        fingerprint_weights(Path(folder), repr(identity) + quantization),
        config.num_layers,
        shapes,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        normed_head_size=config.head_dim if config.qk_norm else 0,
        tied=config.tie_word_embeddings,
    )


def parse_config(raw: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
    """The two JSON documents as a ModelConfig. ValueError says what is missing or unsupported."""
    family, task = _family(raw)
    architecture = f"{family}ForCausalLM"
    _refuse_unsupported(raw)
    llama, qwen2, qwen3 = (architecture == f"{name}ForCausalLM" for name in ("Llama", "Qwen2", "Qwen3"))
    attention_bias = (llama or qwen3) and bool(raw.get("attention_bias", False))
    num_heads = _positive(raw, "num_attention_heads")
    num_kv_heads = _positive(raw, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    hidden_size = _positive(raw, "hidden_size")
    return ModelConfig(
        architecture=architecture,
        dtype=_dtype(raw),
        vocab_size=_positive(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_positive(raw, "intermediate_size"),
        num_layers=_positive(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(raw, hidden_size, num_heads, 128 if qwen3 else None),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_position_embeddings=_positive(raw, "max_position_embeddings"),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or qwen2,
        output_bias=attention_bias,
        mlp_bias=llama and bool(raw.get("mlp_bias", False)),
        qk_norm=qwen3,
        sliding_windows=_sliding_windows(architecture, raw),
        rope=_rope(raw),
        eos_token_ids=_token_ids(generation.get("eos_token_id"), raw.get("eos_token_id")),
        bos_token_id=raw.get("bos_token_id"),
        quantization=parse_quantization(raw),
        task=task,
        labels=_labels(raw) if task == "classify" else (),
        label_activation=ACTIVATIONS.get(str(raw.get("problem_type")), "auto"),
        folded_digest=None if raw.get(FOLDED_DIGEST) is None else str(raw[FOLDED_DIGEST]),
    )


FAMILIES: Final = ("Llama", "Mistral", "Ministral", "Qwen2", "Qwen3")
SUFFIXES: Final[Mapping[str, Task]] = {
    "ForCausalLM": "generate",
    "ForSequenceClassification": "classify",
    "Model": "embed",
}
"""What follows the family in an architecture's name."""
ARCHITECTURES: Final = {f"{family}{suffix}": (family, task) for suffix, task in SUFFIXES.items() for family in FAMILIES}
WHY_SILENT: Final[Mapping[str, str]] = {
    "classify": "this model classifies and generates no text: its checkpoint has a score head instead of an lm_head",
    "embed": "this model makes embeddings and generates no text: its checkpoint is one without an lm_head",
}
ACTIVATIONS: Final[Mapping[str, Literal["", "sigmoid"]]] = {"multi_label_classification": "sigmoid", "regression": ""}
"""By problem_type; any other: softmax over the classes, sigmoid of a single one."""
MOST_LABELS: Final = 1 << 16


def _family(raw: dict[str, Any]) -> tuple[str, Task]:
    names = raw.get("architectures") or [raw.get("model_type", "unknown")]
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    raise ValueError(
        f"the architecture {', '.join(map(str, names))} is not supported; supported: {', '.join(ARCHITECTURES)}"
    )


def _labels(raw: dict[str, Any]) -> tuple[str, ...]:
    """transformers has two classes where a file names none."""
    named = raw.get("id2label")
    count = len(named) if isinstance(named, dict) else int(raw.get("num_labels", 2))
    if not 1 <= count <= MOST_LABELS:
        raise ValueError(f"config.json has {count} labels; it may have 1 to {MOST_LABELS:,}")
    named = named if isinstance(named, dict) else {}
    return tuple(str(named.get(str(number), f"LABEL_{number}")) for number in range(count))


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {raw['hidden_act']!r} is not supported; supported: silu")


def _head_dim(raw: dict[str, Any], hidden_size: int, num_heads: int, default: int | None) -> int:
    head_dim = _positive(raw, "head_dim", default or hidden_size // num_heads)
    if head_dim % 2:
        raise ValueError(f"head_dim {head_dim} is odd; rotary positions need an even head_dim")
    return head_dim


def _dtype(raw: dict[str, Any]) -> str:
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"the checkpoint's dtype {name} is not supported; supported: {', '.join(DTYPES)}")
    return name


FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls a layer's attention."""


def _sliding_windows(architecture: str, raw: dict[str, Any]) -> tuple[int | None, ...]:
    num_layers = _positive(raw, "num_hidden_layers")
    if architecture == "LlamaForCausalLM":
        return (None,) * num_layers
    window = raw.get("sliding_window", 4096)
    first = 0
    if architecture not in ("MistralForCausalLM", "MinistralForCausalLM"):
        if not raw.get("use_sliding_window", False):
            return (None,) * num_layers
        first = raw.get("max_window_layers", 28)
    windows = {FULL: None, SLIDING: window}
    types = raw.get("layer_types") or [FULL] * first + [SLIDING] * max(0, num_layers - first)
    unknown = sorted({str(kind) for kind in types if kind not in windows})
    if unknown:
        raise ValueError(f"layer_types has {', '.join(unknown)}, which is not supported; supported: {FULL}, {SLIDING}")
    if len(types) < num_layers:
        raise ValueError(f"layer_types has {len(types)} entries for {num_layers} layers; it must name each layer's")
    return tuple(windows[kind] for kind in types[:num_layers])


ROPE_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""What each supported kind of rope scaling must say. Yarn has options besides."""

YARN_OPTIONS: Final = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")


def _rope(raw: dict[str, Any]) -> RopeConfig:
    said = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = said.get("rope_type") or said.get("type") or "default"
    if kind not in ROPE_PARAMETERS:
        raise ValueError(f"rope scaling {kind!r} is not supported; supported: {', '.join(ROPE_PARAMETERS)}")
    if said.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError("partial_rotary_factor is not supported; the whole head must be rotated")
    original = raw.get("original_max_position_embeddings", raw["max_position_embeddings"])
    said = {"original_max_position_embeddings": original} | said
    missing = [name for name in ROPE_PARAMETERS[kind] if said.get(name) is None]
    if missing:
        raise ValueError(f"rope scaling {kind!r} lacks {', '.join(missing)} in config.json")
    names = ROPE_PARAMETERS[kind] + (YARN_OPTIONS if kind == "yarn" else ())
    parameters = {name: float(said[name]) for name in names if said.get(name) is not None}
    return RopeConfig(kind, float(said.get("rope_theta", raw.get("rope_theta", 10_000.0))), parameters)


def _token_ids(*sources: int | list[int] | None) -> tuple[int, ...]:
    for source in sources:
        if source is not None:
            return (source,) if isinstance(source, int) else tuple(source)
    return ()


def _positive(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json must give {name} as a positive integer, got {value!r}")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """ValueError for a file that holds no JSON object."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content
