"""Well-formed files of tensors that do not belong on the base, or that would poison or pretend an answer."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.lora.adapters import BASE, Tensors, make_tensors, tensor_name
from tests.lora.signatures import with_linears

from .hostile_headers import Q_A, Q_B

Case = tuple[str, str, Tensors]
"""Name, a part of the one message that must refuse it, and the tensors."""

ABSENT = {
    "mlp-of-attention": (Q_A.replace("self_attn", "mlp"), "the base has no such module"),
    "attention-of-mlp": (tensor_name(0, "up_proj", "A").replace("mlp", "self_attn"), "the base has no such module"),
    "fused-qkv": (Q_A.replace("q_proj", "qkv_proj"), "the base has no such module"),
    "gpt2": ("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight", "not adapter tensors for a linear layer"),
    "mistral-original": (Q_A.replace("self_attn.q_proj", "attention.wq"), "the base has no such module"),
    "vision-tower": (Q_A.replace("model.layers", "vision_tower.layers"), "not adapter tensors for a linear layer"),
    "kohya": ("lora_unet_down_blocks_0_attentions_0.lora_down.weight", "not adapter tensors for a linear layer"),
    "whole-weight": ("model.layers.0.self_attn.q_proj.weight", "not adapter tensors for a linear layer"),
    "whole-linear": (Q_A.replace("lora_A.", ""), "whole linear layers are not supported"),
    "prompt": ("prompt_embeddings", "not adapter tensors for a linear layer"),
    "optimizer": ("optimizer.state.0.exp_avg", "not adapter tensors for a linear layer"),
    "other-adapter": (Q_A.replace(".weight", ".evil.weight"), "not adapter tensors for a linear layer"),
    "small-letter": (Q_A.replace("lora_A", "lora_a"), "not adapter tensors for a linear layer"),
    "third-side": (Q_A.replace("lora_A", "lora_C"), "not adapter tensors for a linear layer"),
    "weight-twice": (Q_A + ".weight", "not adapter tensors for a linear layer"),
    "dunder": ("__class__.__init__.__globals__", "not adapter tensors for a linear layer"),
    "layer-padded": (Q_A.replace(".0.", ".00."), "not adapter tensors for a linear layer"),
    "layer-negative": (Q_A.replace(".0.", ".-1."), "not adapter tensors for a linear layer"),
    "layer-of-30-digits": (Q_A.replace(".0.", f".{10**29}."), "not adapter tensors for a linear layer"),
    "layer-too-high": (tensor_name(2, "q_proj", "A"), "the base has 2 layers"),
    "layer-99999": (tensor_name(99_999, "q_proj", "A"), "the base has 2 layers"),
    "without-head-too": (Q_A.replace("model.model.model", "model.model"), "has two tensors for lora_A"),
    "expert": (Q_A.replace("self_attn.q_proj", "mlp.experts.0.w1"), "not the weights of an expert of the base"),
}
"""name -> (a tensor too many, why it lands nowhere)."""


def hostile_tensors() -> Iterator[Case]:
    yield from unusable_values()
    yield from no_effect()
    yield from incomplete()
    yield from wrong_shapes()
    for name, (tensor, reason) in ABSENT.items():
        yield name, reason, make_tensors() | {tensor: np.ones((4, 16), np.float32)}


def unusable_values() -> Iterator[Case]:
    reason = "NaN, infinite or above"
    limits = {"nan": np.nan, "infinity": np.inf, "minus-infinity": -np.inf, "largest": np.finfo(np.float32).max}
    for name, value in (limits | {"above-half": 65536.0, "below-half": -65536.0}).items():
        yield f"one-{name}", reason, with_value(value)
    for name, value in (("nan", np.nan), ("infinity", np.inf)):
        yield f"all-{name}", reason, each(lambda _, tensor, value=value: np.full_like(tensor, value))
    signalling = make_tensors()
    signalling[Q_A].view(np.uint32)[0, 0] = 0x7F800001
    yield "signalling-nan", reason, signalling
    half = each(lambda _, tensor: tensor.astype(np.float16))
    for name, value in (("nan", np.nan), ("infinity", np.inf)):
        yield f"half-{name}", reason, half | {Q_A: np.full((4, 16), value, np.float16)}
    brain = each(lambda _, tensor: to_bfloat16(tensor))
    for name, bits in (("nan", 0x7FC0), ("infinity", 0xFF80), ("largest", 0x7F7F)):
        yield f"bfloat16-{name}", reason, brain | {Q_A: np.full((4, 16), bits, np.uint16)}


def no_effect() -> Iterator[Case]:
    reason = "the adapter has no effect"
    changes: dict[str, Callable[[str, Any], Any]] = {
        "zero-b": lambda name, tensor: tensor * (".lora_B." not in name),
        "zero-a": lambda name, tensor: tensor * np.float32(".lora_A." not in name),
        "minus-zero": lambda _, tensor: tensor * np.float32(-0.0),
        "zero-half": lambda _, tensor: np.zeros_like(tensor, np.float16),
        "zero-bfloat16": lambda _, tensor: np.zeros_like(tensor, np.uint16),
        "zero-a-or-b": lambda name, tensor: tensor * ((".lora_B." in name) == (".layers.0." in name)),
        "subnormal": lambda _, tensor: np.full_like(tensor, 1e-40),
        "subnormal-b": lambda name, tensor: np.full_like(tensor, 1e-45) if ".lora_B." in name else tensor,
        "subnormal-bfloat16": lambda _, tensor: np.full_like(tensor, 0x007F, np.uint16),
        "tiny-product": lambda _, tensor: tensor * np.float32(1e-10),
    }
    for name, change in changes.items():
        yield name, reason, each(change)
    for name, dtype in (("", np.float32), ("-half", np.float16)):
        yield (
            f"cancels-out{name}",
            "the products of B and A cancel out",
            each(lambda name, tensor, dtype=dtype: cancelling(name, tensor).astype(dtype)),
        )
    yield (
        "cancels-out-bfloat16",
        "the products of B and A cancel out",
        each(lambda name, tensor: to_bfloat16(cancelling(name, tensor))),
    )


def incomplete() -> Iterator[Case]:
    yield "missing-b", "has lora_A but no lora_B", keep(lambda name: name != Q_B)
    yield "missing-a", "has lora_B but no lora_A", keep(lambda name: name != Q_A)
    yield "missing-every-b", "has lora_A but no lora_B", keep(lambda name: ".lora_A." in name)
    yield "missing-every-a", "has lora_B but no lora_A", keep(lambda name: ".lora_B." in name)
    yield "missing-layer", "names modules without tensors: down_proj of layer 1", keep(lambda name: ".0." in name)
    yield "missing-kind", "names modules without tensors: down_proj", keep(lambda name: "q_proj" in name)
    yield "untargeted", "target_modules does not name: up_proj", make_tensors(kinds=("q_proj", "down_proj", "up_proj"))
    ones = np.ones((4, 16), np.float32)
    twice = make_tensors() | {Q_A.replace(".weight", ".default.weight"): ones}
    yield "both-spellings", "has two tensors for lora_A", twice


def wrong_shapes() -> Iterator[Case]:
    wide = with_linears(BASE, {kind: (2 * inputs, outputs) for kind, (inputs, outputs) in BASE.linears.items()})
    tall = with_linears(BASE, {kind: (inputs, 2 * outputs) for kind, (inputs, outputs) in BASE.linears.items()})
    yield "base-of-other-width", "but the base has 16 inputs", make_tensors(base=wide)
    yield "base-of-other-height", "but the base has 24 outputs", make_tensors(base=tall)
    yield "base-of-more-layers", "the base has 2 layers", make_tensors(base=with_linears(BASE, BASE.linears, 64))
    for name, tensor, shape, reason in SHAPES:
        yield name, reason, make_tensors() | {tensor: np.ones(shape, np.float32)}
    square = each(lambda name, tensor: np.ones((16, 16), np.float32) if name == Q_A else tensor)
    yield "rank-of-a", "A has rank 16, B has rank 4", square
    yield "rank-not-r", "has rank 8, adapter_config.json says 4", make_tensors(rank=8)
    yield "rank-of-one-layer", "has rank 5, adapter_config.json says 4", make_tensors() | {
        Q_A: np.ones((5, 16), np.float32), Q_B: np.ones((24, 5), np.float32)}  # fmt: skip
    yield "rank-513", "has rank 513; supported ranks are 1 to 512", make_tensors(rank=513)


SHAPES = [
    ("outputs-of-another", Q_B, (512, 4), "but the base has 24 outputs"),
    ("one-output-short", Q_B, (23, 4), "but the base has 24 outputs"),
    ("inputs-of-another", Q_A, (4, 32), "but the base has 16 inputs"),
    ("vector-a", Q_A, (64,), "both must be matrices"),
    ("vector-b", Q_B, (96,), "both must be matrices"),
    ("three-dimensions", Q_A, (1, 4, 16), "both must be matrices"),
    ("convolution", Q_A, (4, 16, 1, 1), "both must be matrices"),
    ("ranks-disagree", Q_B, (24, 8), "A has rank 4, B has rank 8"),
    ("one-rank-more", Q_A, (5, 16), "A has rank 5, B has rank 4"),
]
"""(name, tensor, its shape, part of the message)"""


def each(change: Callable[[str, Any], Any]) -> Tensors:
    return {name: np.asarray(change(name, tensor)) for name, tensor in make_tensors().items()}


def keep(wanted: Callable[[str], bool]) -> Tensors:
    return {name: tensor for name, tensor in make_tensors().items() if wanted(name)}


def with_value(value: float) -> Tensors:
    """As the last of one tensor."""
    tensors = make_tensors()
    tensors[Q_B][-1, -1] = value
    return tensors


def cancelling(name: str, tensor: Any) -> Any:
    """Every row of A twice, and every column of B with both signs."""
    if ".lora_A." in name:
        return np.concatenate([tensor[:2], tensor[:2]])
    return np.concatenate([tensor[:, :2], -tensor[:, :2]], axis=1)


def to_bfloat16(tensor: Any) -> Any:
    return (tensor.view(np.uint32) >> 16).astype(np.uint16)
