"""Random encoders and their adapters, in Hugging Face and PEFT layout."""

from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    ModernBertConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

from tests.checkpoints import CORPUS

SMALL: Final[dict[str, Any]] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
    "pad_token_id": 2,
}
ROBERTA: Final[dict[str, Any]] = {"max_position_embeddings": 163, "type_vocab_size": 1}
FAMILIES: Final[dict[str, tuple[type[PretrainedConfig], dict[str, Any]]]] = {
    "bert": (BertConfig, {}),
    "roberta": (RobertaConfig, ROBERTA),
    "xlm-roberta": (XLMRobertaConfig, ROBERTA),
    "modernbert": (
        ModernBertConfig,
        {"num_hidden_layers": 5, "local_attention": 16, "bos_token_id": 0, "eos_token_id": 1}
        | {"cls_token_id": 0, "sep_token_id": 1},
    ),
}
TARGETS: Final[dict[str, list[str]]] = {
    "bert": ["query", "value", "attention.output.dense", "intermediate.dense", "output.dense"],
    "roberta": ["query", "key", "output.dense"],
    "xlm-roberta": ["value", "intermediate.dense"],
    "modernbert": ["Wqkv", "Wi", "mlp.Wo"],
}
AUTO: Final[dict[str, Any]] = {
    "embed": AutoModel,
    "classify": AutoModelForSequenceClassification,
    "masked": AutoModelForMaskedLM,
    "tokens": AutoModelForTokenClassification,
}


def make_encoder(folder: Path, family: str, task: str = "embed", seed: int = 0, **overrides: Any) -> Path:
    """`task`: what the checkpoint was made for."""
    kind, own = FAMILIES[family]
    model = AUTO[task].from_config(kind(**(SMALL | own | overrides)))
    _spread(model, seed)
    model.save_pretrained(folder)
    make_pair_tokenizer(folder, segments=family == "bert")
    return folder


def make_encoder_adapter(
    folder: Path, base: Path, family: str, classes: int | None = None, seed: int = 1, **settings: Any
) -> Path:
    """As PEFT trains it on the encoder alone, or for `classes` classes with a head of its own."""
    model = load(base, classes)
    task = "FEATURE_EXTRACTION" if classes is None else "SEQ_CLS"
    config = LoraConfig(**({"r": 4, "target_modules": TARGETS[family], "task_type": task} | settings))
    adapted = get_peft_model(model, config)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.3))
            elif "lora_" in name or "modules_to_save" in name or (name.endswith("bias") and parameter.requires_grad):
                parameter.normal_(std=0.3)
    adapted.save_pretrained(folder)
    return folder


def load(base: Path, classes: int | None = None) -> Any:
    if classes is None:
        return AutoModel.from_pretrained(base, dtype=torch.float32).eval()
    return AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=classes, dtype=torch.float32, ignore_mismatched_sizes=True
    ).eval()


def hidden_of(base: Path, prompts: list[list[int]], adapter: Path | None = None) -> list[torch.Tensor]:
    """[tokens, C] of transformers and PEFT for each prompt."""
    model = load(base)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        return [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]


def scores_of(base: Path, inputs: list[dict[str, Any]], classes: int, adapter: Path | None = None) -> torch.Tensor:
    """[prompts, classes] of transformers and PEFT, without an activation. `inputs`: of a tokenizer."""
    model = load(base, classes)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        return torch.cat([model(**{name: torch.tensor([ids]) for name, ids in one.items()}).logits for one in inputs])


def make_pair_tokenizer(folder: Path, segments: bool) -> None:
    """Words of lower-case letters between <s> and </s>. `segments`: it tells the texts of a pair apart."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<pad>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    other = ":1" if segments else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=f"<s> $A </s> $B{other} </s>{other}", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_input_names=names,
    ).save_pretrained(folder)


def _spread(model: Any, seed: int) -> None:
    """Random biases and norms, and weights large enough that tokens matter."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
            elif "norm" in name.lower():
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.3 if "embed" in name else 1.2 / parameter.shape[1] ** 0.5)
