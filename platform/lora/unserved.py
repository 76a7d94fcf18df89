"""What a LoRA configuration can ask for that is not served, each with its reason and its remedy."""

from typing import Final

from .report import quote

UNSERVED: Final[dict[str, tuple[str, str]]] = {
    "target_parameters": (
        "LoRA on bare parameters such as expert tensors is not served",
        "target linears by target_modules instead",
    ),
    "megatron_config": ("Megatron layers are not served", "export the adapter to Hugging Face layout first"),
    "layer_replication": ("the base is served with its own layers only", "train on the base as it is"),
    "fan_in_fan_out": ("the served bases store no transposed linears", "set fan_in_fan_out to false and train again"),
    "loftq_config": (
        "LoftQ trains against a changed base",
        "convert with save_pretrained(path_initial_model_for_weight_conversion=...)",
    ),
    "corda_config": (
        "CorDA trains against a changed base",
        "convert with save_pretrained(path_initial_model_for_weight_conversion=...) and remove corda_config",
    ),
    "lora_ga_config": (
        "LoRA-GA trains against a changed base",
        "convert with save_pretrained(path_initial_model_for_weight_conversion=...) and remove lora_ga_config",
    ),
    "kasa_config": ("KaSA changes the base weights and adds singular values", "train as a plain LoRA"),
    "monteclora_config": ("MonteCLoRA draws its weights at random", "train as a plain LoRA"),
    "use_qalora": ("QA-LoRA pools the input of lora_A", "train with use_qalora=False"),
    "use_bdlora": ("block-diagonal LoRA stores its weights another way", "train as a plain LoRA"),
    "arrow_config": ("Arrow routes between several adapters", "serve the adapters one by one"),
}
"""key -> (reason, remedy). Null, false and empty values are off."""

INERT: Final = frozenset(
    {
        "peft_version", "revision", "inference_mode", "lora_dropout", "megatron_core", "eva_config", "velora_config",
        "qalora_group_size", "runtime_config", "ensure_weight_tying", "init_ia3_weights",
    }
)  # fmt: skip
"""Keys that decide nothing once the adapter is trained."""

_HARMLESS_STARTS: Final = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
_CHANGING_STARTS: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")


def base_changing_start(value: object) -> tuple[str, str] | None:
    """Message and remedy when `init_lora_weights` says that the base was changed before training, else None."""
    if any(value is start or value == start for start in _HARMLESS_STARTS):
        return None
    if isinstance(value, str) and value.lower().startswith(_CHANGING_STARTS):
        remedy = (
            "convert: model.save_pretrained(folder, path_initial_model_for_weight_conversion=initial_adapter_folder)"
        )
        return f"init_lora_weights is {quote(value)}: it was trained against a changed base", remedy
    return f"init_lora_weights is {quote(value)}, which is not known", "set it to true if B began as zero"
