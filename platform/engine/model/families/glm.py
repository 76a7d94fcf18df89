"""GLM-4, dense: half of each head is turned, in neighbouring pairs; newer ones (glm4) also norm what blocks give."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ..description.config_fields import Raw, flag, head_size, layers_alike, number, positive, rope
from ..description.spec import ModelSpec, NormSpec
from .family import Family, as_one, gated_mlp, pre_norm_layer, split_heads, text_model

DEFAULTS: Final[Mapping[str, Any]] = {
    "attention_bias": True,
    "head_dim": 128,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-07,
}
"""Where config.json does not say."""


def _describe(raw: Raw, name: str) -> ModelSpec:
    raw = dict(DEFAULTS) | dict(raw)
    hidden_size = positive(raw, "hidden_size")
    norm = NormSpec("model.norm", hidden_size, number(raw, "rms_norm_eps"))
    rotary = replace(rope(raw, head_size(raw), may_be_partial=True), is_interleaved=True)
    mixer = split_heads(raw, hidden_size, rotary=rotary, input_bias=flag(raw, "attention_bias"))
    feed_forward = gated_mlp(raw, hidden_size)
    fused = replace(feed_forward, inputs=as_one("mlp.gate_up_proj", feed_forward.inputs))
    layer = pre_norm_layer(mixer, fused, norm)
    if name == "Glm4":
        layer = replace(
            layer,
            mixer_output_norm=replace(norm, path="post_self_attn_layernorm"),
            feed_forward_output_norm=replace(norm, path="post_mlp_layernorm"),
        )
    return text_model(raw, [layer] * layers_alike(raw), norm)


FAMILY: Final = Family(
    names=("Glm", "Glm4"),
    describe=_describe,
    hub={"Glm": ("zai-org/glm-4-9b-chat-hf",), "Glm4": ("zai-org/GLM-4-9B-0414", "zai-org/GLM-4-32B-0414")},
)
