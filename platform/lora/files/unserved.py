"""What a LoRA configuration can ask for that is not served, each with its reason and its remedy."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from .report import Report, enumerate_some, quote

UNSERVED: Final[dict[str, tuple[str, str]]] = {
    "target_parameters": (
        "LoRA on bare parameters such as expert tensors is not supported",
        "target linear layers with target_modules instead",
    ),
    "megatron_config": ("Megatron layers are not supported", "export the adapter to Hugging Face layout first"),
    "layer_replication": ("replacing layers of the base is not supported", "train on the unchanged base"),
    "kasa_config": ("KaSA changes the base weights and adds singular values", "train as a plain LoRA"),
    "monteclora_config": ("MonteCLoRA draws its weights at random", "train as a plain LoRA"),
    "use_qalora": ("QA-LoRA pools the input of lora_A", "train with use_qalora=False"),
    "use_bdlora": ("block-diagonal LoRA stores its weights differently", "train as a plain LoRA"),
    "arrow_config": ("Arrow routes between several adapters", "serve the adapters one by one"),
}
"""key -> (reason, remedy). Null, false and empty values are off."""

STARTS: Final = ("loftq_config", "corda_config", "lora_ga_config")
"""How a changed base was made. PEFT keeps them beside an adapter that it saves converted, and looks at them only where
init_lora_weights names the start."""

INERT: Final = frozenset(
    {
        "peft_version", "revision", "inference_mode", "lora_dropout", "megatron_core", "eva_config", "velora_config",
        "qalora_group_size", "runtime_config", "fan_in_fan_out", "init_ia3_weights", "merge_weights",
        "lora_dtype", "lorap_lr_ratio", "lorap_emb_lr", *STARTS,
    }
)  # fmt: skip
"""Keys that decide nothing once the adapter is trained. Old PEFT wrote merge_weights, ms-swift writes lora_dtype and
those after it. fan_in_fan_out says how the base stores weights: PEFT corrects it by the base itself."""

CONVERT: Final = (
    "convert: model.save_pretrained(folder, path_initial_model_for_weight_conversion=initial_adapter_folder)"
)

_HARMLESS_STARTS: Final = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
_CHANGING_STARTS: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")


def base_changing_start(value: object) -> tuple[str, str] | None:
    """Message and remedy when `init_lora_weights` says that the base was changed before training, else None."""
    if any(value is start or value == start for start in _HARMLESS_STARTS):
        return None
    if isinstance(value, str) and value.lower().startswith(_CHANGING_STARTS):
        return f"init_lora_weights is {quote(value)}: it was trained on a modified base", CONVERT
    return f"init_lora_weights is {quote(value)}, which is not known", "set it to true if B started at zero"


def mention_starts(raw: Mapping[str, Any], report: Report) -> None:
    """For a harmless init_lora_weights: what was trained beside a changed base looks like what was converted."""
    starts = [key for key in STARTS if raw.get(key)]
    if starts:
        message = (
            f"{', '.join(starts)} is set but init_lora_weights is not: the adapter counts as converted to the base"
        )
        report.warn("features", message, f"if it was saved with a modified base, {CONVERT}")


def refuse_unknown(raw: Mapping[str, Any], known: Collection[str], report: Report) -> None:
    """A newer PEFT has features that change the answers. It writes every key it has: those that are off do nothing."""
    unknown = [key for key in raw if key not in known and key not in UNSERVED and key not in INERT]
    switched_on = [f"{quote(key)} is {quote(raw[key])}" for key in unknown if raw[key]]
    if switched_on:
        message = f"{enumerate_some(switched_on)}: unknown settings may change the answers"
        report.fail("features", message, "remove settings that only matter for training, and train without the rest")
    off = [quote(key) for key in unknown if not raw[key]]
    if off:
        report.warn("features", f"unknown keys that are off are ignored: {enumerate_some(off)}")
