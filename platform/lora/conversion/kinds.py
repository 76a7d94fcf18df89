"""Which kinds of adapters are converted, and what their configuration says in the words of LoRA's."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ..files.config_file import LoraSettings, read_settings
from ..files.manifest import BaseSignature
from ..files.report import Report, quote
from ..files.strict_json import parse_json
from .shared_outer import may_be_shared

MAX_SOURCE_CONFIG: Final = 1 << 20
"""Bytes. AdaLoRA writes a line for each rank of each module."""
KINDS: Final = {"ADALORA": "AdaLoRA", "LOHA": "LoHa", "LOKR": "LoKr", "VERA": "VeRA"}
"""peft_type -> the name people know it by."""
SMALLER: Final = "train with a smaller r, or convert it with peft.save_as_lora and upload the result"
"""The remedy for an adapter that cannot be converted here."""

PARAMETERS: Final = "target_parameters"
_LYCORIS: Final = {"alpha", "init_weights", "module_dropout", "rank_dropout", "use_effective_conv2d"}
_OWN: Final = {
    "ADALORA": {
        "init_r", "target_r", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight", "total_step",
        "rank_pattern", "alpha_pattern", "use_rslora",
    },
    "LOHA": _LYCORIS,
    "LOKR": _LYCORIS | {"decompose_both", "decompose_factor", "rank_dropout_scale"},
    "VERA": {"d_initial", "init_weights", "projection_prng_key", "save_projection", "vera_dropout"},
}  # fmt: skip
"""Keys that only the kind knows, or that it ignores."""
_WEIGHTS_ONLY: Final = {
    "modules_to_save", "trainable_token_indices", "use_dora", "lora_bias", "target_parameters", "layer_replication",
    "alora_invocation_tokens", "use_rslora", "bias",
}  # fmt: skip
"""What would ask for more than a change of linears' weights."""
_OFF: Final[tuple[object, ...]] = (None, False, "none", [], {})


def is_converted(config: bytes, weights: Path, base: BaseSignature) -> bool:
    """Whether such adapters are. False for what cannot be read. OSError where the weights cannot."""
    try:
        raw = parse_json(config, max_depth=6) if len(config) <= MAX_SOURCE_CONFIG else {}
    except ValueError:
        return False
    kind = raw.get("peft_type")
    return isinstance(kind, str) and (
        kind in KINDS or has_stacked(raw) or (kind == "LORA" and may_be_shared(weights, base))
    )


def has_stacked(raw: Mapping[str, Any]) -> bool:
    """A LoRA on parameters that hold all experts of a layer."""
    return raw.get("peft_type") == "LORA" and bool(raw.get(PARAMETERS))


def read_source_settings(config: bytes, report: Report) -> LoraSettings | None:
    """Rank, alpha, targets and layers by the rules of a LoRA configuration; `raw` is the file as it was.

    `config` is one that `is_converted`.
    """
    raw = parse_json(config, max_depth=6)
    own = _OWN[raw["peft_type"]]
    for key in _WEIGHTS_ONLY - own:
        if raw.get(key) not in _OFF:
            what = f"{key} is {quote(raw[key])}: only changes to the weights of linear layers can be converted to LoRA"
            report.fail("features", what, f"train without {key}")
    as_lora = {key: value for key, value in raw.items() if key not in own | _WEIGHTS_ONLY} | _as_lora_settings(raw)
    settings = read_settings(json.dumps(as_lora).encode(), report)
    return None if settings is None or report.failed else replace(settings, raw=raw)


def _as_lora_settings(raw: dict[str, Any]) -> dict[str, Any]:
    match raw["peft_type"]:
        case "ADALORA":
            return {"peft_type": "LORA", "r": raw.get("init_r")}
        case "VERA":
            return {"peft_type": "LORA", "lora_alpha": 1}
        case _:
            return {"peft_type": "LORA", "lora_alpha": raw.get("alpha")}
