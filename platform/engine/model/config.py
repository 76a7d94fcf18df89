"""ModelConfig: a supported checkpoint, read from its config.json without torch or transformers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from loraplex.lora.files.manifest import BaseSignature, HeadLinear
from loraplex.quant.config.config import QuantizationConfig, parse_quantization

from .description.config_fields import positive, stored_dtype
from .description.modules import body_prefix, fixed_modules, module_table, stacked_linears
from .description.spec import AttentionSpec, LayerSpec, ModelSpec
from .families.family import Task
from .families.find import find_family
from .folder import FOLDED_DIGEST, stores_head
from .identity.fingerprint import fingerprint_weights

SENTENCE_CONFIG: Final = "sentence_bert_config.json"
MODULES: Final = "modules.json"
"""Of sentence-transformers: the model makes embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    architecture: str
    """Of the family's model that generates text, whatever is made of it."""
    spec: ModelSpec
    dtype: str
    """What the weights are stored in: bfloat16, float16 or float32."""
    max_position_embeddings: int
    usual_length: int | None = None
    """Tokens that it is used with, where it was made for more."""
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    quantization: QuantizationConfig | None = None
    """None for weights stored as floats."""
    task: Task = "generate"
    labels: tuple[str, ...] = ()
    """Of a model that classifies prompts or tokens: the class of each row of its head."""
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
        head = config.spec.head
        if not config.spec.keeps_keys:
            config = replace(config, usual_length=_usual_length(Path(folder), config.max_position_embeddings))
        may_lack_head = config.task == "generate" and head is not None and not head.is_tied
        headless = may_lack_head and (Path(folder) / MODULES).is_file() and not stores_head(Path(folder))
        return replace(config, task="embed") if headless else config

    @property
    def num_layers(self) -> int:
        return len(self.spec.layers)

    @property
    def vocab_size(self) -> int:
        return self.spec.embedding.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.spec.hidden_size

    @property
    def attention(self) -> AttentionSpec:
        """Of the first layer that attends."""
        return self.spec.attention_layers()[0][1]

    def length(self, asked: int | None) -> int:
        """Tokens of prompt plus output; None: all that the model was made for, with longrope its original length, for
        longer sequences change what it answers to short ones. ValueError beyond what it was made for."""
        longest = self.max_position_embeddings
        if asked is not None and not 2 <= asked <= longest:
            raise ValueError(f"max_model_len must be between 2 and {longest}, the model's own, got {asked}")
        return min(self.usual_length or longest, self.rope_border or longest) if asked is None else asked

    @property
    def rope_border(self) -> int | None:
        """Of longrope: the `length` up to which short factors turn all sequences, and beyond which long ones do. None:
        the model has no such border."""
        ropes = [mixer.rope for _, mixer in self.spec.attention_layers() if mixer.rope is not None]
        return min((rope.original_length for rope in ropes if rope.original_length is not None), default=None)

    @property
    def classifies(self) -> bool:
        """Whether the checkpoint has a head for it."""
        return self.task in CLASSIFYING

    @property
    def why_silent(self) -> str:
        """Why it generates no text; empty: it does."""
        return WHY_SILENT.get(self.task, "")

    def input_widths(self) -> set[int]:
        """Inputs of the layers' linears."""
        return {linear.inputs for layer in self.spec.layers for linear in (*layer.linears(), *layer.expert_linears())}


def base_signature(folder: str | Path) -> BaseSignature:
    """What an adapter may target in the checkpoint at `folder`, and which checkpoint that is."""
    config = ModelConfig.from_folder(folder)
    spec, prefix = config.spec, body_prefix(config.spec)
    modules = module_table(spec).modules
    shapes = sorted((kind, (at.inputs, at.outputs)) for kind, at in modules.items() if at.role == "linear")
    identity = (config.architecture, config.vocab_size, config.num_layers, config.attention.num_heads, shapes)
    quantization = "" if config.quantization is None else config.quantization.identity
    return BaseSignature(
        fingerprint_weights(Path(folder), repr(identity) + quantization),
        config.num_layers,
        modules,
        own_head=_own_head(spec, config.hidden_size),
        fixed=fixed_modules(spec),
        stacked=stacked_linears(spec),
        head_path=spec.classifier.owned,
        classifies_tokens=config.task == "classify_tokens",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        tied=spec.head is not None and spec.head.is_tied,
        knows_tokens_by_layer=spec.token_inputs is not None,
        prefix=prefix,
        layers_path=spec.layers_path.removeprefix(prefix),
        name_prefixes=("", *(start for start, ours in spec.renamed.items() if ours == prefix)),
    )


def _own_head(spec: ModelSpec, hidden_size: int) -> tuple[HeadLinear, ...]:
    """What adapters that classify bring."""
    return tuple(
        HeadLinear(linear.path, linear.inputs or hidden_size, linear.outputs, linear.has_bias)
        for linear in spec.classifier.linears
        if spec.classifier.owns(f"{linear.path}.weight")
    )


def linear_shapes(layer: LayerSpec) -> dict[str, tuple[int, int]]:
    """kind -> (in_features, out_features) of each linear of a layer."""
    return {linear.kind: (linear.inputs, linear.outputs) for linear in layer.linears()}


def parse_config(whole: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
    """The two JSON documents as a ModelConfig. ValueError says what is missing or unsupported."""
    family, name, task, parts = find_family(_architectures(whole), whole.get("model_type"))
    own = _text_config(whole) if parts else whole
    name = _text_name(whole, parts) if parts else name
    raw = dict(family.defaults.get(name, {})) | own
    spec = family.describe(raw, name)
    if raw.get("is_causal") is False and any(mixer.is_causal for _, mixer in spec.attention_layers()):
        raise ValueError(
            f"is_causal false is not supported for {name}: here each token sees those before it alone. The answers of "
            "a model that was trained to see those behind it too would be others"
        )
    if task == "generate" and not spec.keeps_keys:
        raise ValueError(
            f"{name} with use_bidirectional_attention is not supported as a model that generates text: its tokens see "
            "those behind them. Its architecture must be one of a model that makes embeddings"
        )
    if task == "classify_tokens":
        spec = _of_tokens(spec)
    return ModelConfig(
        architecture=f"{name}{'Model' if spec.head is None else 'ForCausalLM'}",
        spec=spec,
        dtype=stored_dtype(raw),
        max_position_embeddings=spec.length or positive(raw, family.length_field),
        eos_token_ids=_token_ids(generation.get("eos_token_id"), raw.get("eos_token_id")),
        bos_token_id=raw.get("bos_token_id"),
        quantization=parse_quantization(raw),
        task=task,
        labels=_labels(raw) if task in CLASSIFYING else (),
        label_activation=ACTIVATIONS.get(str(raw.get("problem_type")), "auto"),
        folded_digest=None if raw.get(FOLDED_DIGEST) is None else str(raw[FOLDED_DIGEST]),
    )


def _of_tokens(spec: ModelSpec) -> ModelSpec:
    """Where tokens are classified, without what only a prompt's vector goes through."""
    own = {linear.path for linear in spec.token_classifier.linears}
    before = [
        it.path for it in spec.classifier.linears if it.path not in own and not spec.classifier.owns(f"{it.path}.")
    ]
    unused = {f"{path}.": "a linear for classes of whole texts" for path in before}
    return replace(spec, classifier=spec.token_classifier, left_out={**spec.left_out, **unused})


CLASSIFYING: Final[tuple[Task, ...]] = ("classify", "classify_tokens")
WHY_SILENT: Final[Mapping[str, str]] = {
    "classify": "this model classifies and generates no text: its checkpoint has a score head instead of an lm_head",
    "classify_tokens": "this model classifies tokens and generates no text: its checkpoint has a head for their "
    "classes instead of an lm_head",
    "embed": "this model makes embeddings and generates no text: its checkpoint is one without an lm_head",
}
ACTIVATIONS: Final[Mapping[str, Literal["", "sigmoid"]]] = {"multi_label_classification": "sigmoid", "regression": ""}
"""By problem_type; any other: softmax over the classes, sigmoid of a single one."""
MOST_LABELS: Final = 1 << 16
OF_THE_HEAD: Final = ("tie_word_embeddings",)
"""The whole has the head, so its word counts."""
PARTS: Final = ("text_config", "vision_config", "audio_config")


def _architectures(raw: dict[str, Any]) -> list[str]:
    return list(map(str, raw.get("architectures") or [raw.get("model_type", "unknown")]))


def _text_config(whole: dict[str, Any]) -> dict[str, Any]:
    """What the whole says holds where the text part says nothing, or null."""
    part = whole.get("text_config")
    if not isinstance(part, dict):
        raise ValueError("config.json has no text_config, the description of its text model")
    said = {name: value for name, value in whole.items() if name not in PARTS}
    own = {name: value for name, value in part.items() if value is not None or name not in said}
    return said | own | {name: said[name] for name in OF_THE_HEAD if name in said}


def _text_name(whole: dict[str, Any], parts: Mapping[str, str]) -> str:
    """Which model the text part is, by the `model_type` that it has itself."""
    kind = whole["text_config"].get("model_type")
    if kind is None:
        return next(iter(parts.values()))
    if kind not in parts:
        raise ValueError(
            f"text_config has model_type {kind!r}, which is not supported as the text part of "
            f"{', '.join(_architectures(whole))}; supported: {', '.join(parts)}"
        )
    return parts[kind]


def _usual_length(folder: Path, longest: int) -> int | None:
    """As sentence-transformers cuts what it embeds."""
    path = folder / SENTENCE_CONFIG
    said = read_json(path).get("max_seq_length") if path.is_file() else None
    return min(said, longest) if type(said) is int and said > 1 else None


def _labels(raw: dict[str, Any]) -> tuple[str, ...]:
    """transformers has two classes where a file names none."""
    named = raw.get("id2label")
    count = len(named) if isinstance(named, dict) else int(raw.get("num_labels", 2))
    if not 1 <= count <= MOST_LABELS:
        raise ValueError(f"config.json has {count} labels; it may have 1 to {MOST_LABELS:,}")
    named = named if isinstance(named, dict) else {}
    return tuple(str(named.get(str(number), f"LABEL_{number}")) for number in range(count))


def _token_ids(*sources: int | list[int] | None) -> tuple[int, ...]:
    for source in sources:
        if source is not None:
            return (source,) if isinstance(source, int) else tuple(source)
    return ()


def read_json(path: Path) -> dict[str, Any]:
    """ValueError for a file that holds no JSON object."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content
