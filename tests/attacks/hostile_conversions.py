"""AdaLoRA, LoHa, LoKr and VeRA made to be multiplied for ever, to take memory, or to be served as what they are not."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.lora.adapters import encode, frame
from tests.lora.test_convert_refusals import PREFIX, SHAPES, Tensors, make, tensors_of

Case = tuple[str, str, bytes, bytes]
"""Name, a part of the one message that must refuse it, configuration and weights."""

FACTORS = {"ADALORA": "lora_B", "LOHA": "hada_w2_a", "LOKR": "lokr_w2_b", "VERA": "vera_lambda_b"}
"""kind -> one of its parts"""
POISON = {"nan": np.nan, "infinity": np.inf, "minus-infinity": -np.inf, "largest": 3e38}
HUGE = 1 << 40
LAST = PREFIX.format(1)


def case(name: str, reason: str, kind: str, tensors: Tensors | None = None, **settings: Any) -> Case:
    config, good = make(kind)
    name = f"{kind.lower()}-{name}"
    return name, reason, json.dumps(config | settings).encode(), encode(good if tensors is None else tensors)


def hostile_conversions() -> Iterator[Case]:
    for kind in SHAPES:
        yield from damaged_parts(kind)
        yield from damaged_settings(kind)
        yield from claimed_sizes(kind)
    yield from products()


def damaged_parts(kind: str) -> Iterator[Case]:
    """In the last module, so that whoever multiplied the others first would have done it for nothing."""
    part = LAST + FACTORS[kind]
    for name, value in POISON.items():
        tensors = make(kind)[1]
        tensors[part].flat[-1] = value
        yield case(name, f"NaN, infinite or above 65504 in '{part}'", kind, tensors)
    good = make(kind)[1][part]
    for tensor in (good.T.copy(), tensors_of(1), tensors_of(1, 1, 1)):
        if tensor.shape != good.shape:
            shape = "x".join(map(str, tensor.shape))
            yield case(f"shape-{shape}", "q_proj of layer 1 ", kind, make(kind)[1] | {part: tensor})
    absent = make(kind)[1]
    del absent[part]
    yield case("half", f"q_proj of layer 1 has no {FACTORS[kind]}", kind, absent)
    for name in (LAST + "weight", LAST + FACTORS[kind] + ".default", LAST + "../" + FACTORS[kind]):
        reason = "tensor names contain letters" if ".." in name else "not "
        yield case(f"stranger-{name[len(LAST) :]}", reason, kind, make(kind)[1] | {name: tensors_of(3, 3)})
    nothing = {name: tensor * 0 if name.endswith(FACTORS[kind]) else tensor for name, tensor in make(kind)[1].items()}
    yield case("zeros", "the adapter has no effect", kind, nothing)


def damaged_settings(kind: str) -> Iterator[Case]:
    rank = "init_r" if kind == "ADALORA" else "r"
    for value in (0, -1, 513, 10**9, 1e9, "4", True, None, [4]):
        yield case(f"rank-{value!a}", f"r is {value!r}", kind, **{rank: value})
    for pattern in (".*", "(a+)+$", "q_proj|v_proj"):
        yield case(f"targets-{pattern}", "target_modules ", kind, target_modules=pattern)
    yield case("code", "cannot import code", kind, auto_mapping={"base_model_class": "system", "parent_library": "os"})
    yield case("unknown", "'use_more' is [1]", kind, use_more=[1])
    yield case("saved", "modules_to_save is", kind, modules_to_save=["lm_head"])


def claimed_sizes(kind: str) -> Iterator[Case]:
    """Headers alone: what they announce is not there, or is there without a module that it fits."""
    config = json.dumps(make(kind)[0]).encode()
    part = PREFIX.format(0) + FACTORS[kind]

    def claim(shape: list[int], end: int, dtype: str = "F32") -> dict[str, Any]:
        return {part: {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}

    many = {f"{part}{n}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n in range(20_000)}
    headers = {
        "not-there": ("it is cut off", claim([HUGE], 4 * HUGE)),
        "overflow": ("needs 73786976294838206464 bytes", claim([1 << 32, 1 << 32], 0)),
        "pickle": ("has dtype 'PICKLE'", claim([1], 4, "PICKLE")),
        "many": ("bytes; at most", many),
    }
    for name, (reason, header) in headers.items():
        data = bytes(80_000) if name == "many" else b""
        yield f"{kind.lower()}-claims-{name}", reason, config, frame(json.dumps(header).encode(), data)
    yield f"{kind.lower()}-bomb", "its header claims 18,446,744,073,709,551,615 bytes", config, b"\xff" * 64
    yield f"{kind.lower()}-pickled", "it is a Python pickle", config, b"\x80\x04\x95cos\nsystem\n(S'touch owned'\ntR."


def products() -> Iterator[Case]:
    """What single tensors do not show, or show only together."""
    yield case("square", "is a LoHa of rank 300, a LoRA of 90000", "LOHA", r=300)
    yield case("kron", "makes [240, 160]", "LOKR", make("LOKR")[1] | {LAST + "lokr_w1": tensors_of(40, 40)})
    yield case("both", "beside lokr_w1, lokr_w2", "LOKR", make("LOKR")[1] | {LAST + "lokr_w2": tensors_of(6, 4)})
    yield case("growing", "has rank 3, adapter_config.json begins with init_r 2", "ADALORA", init_r=2)
    scalar = make("ADALORA")[1] | {LAST + "lora_E": np.float32(1.0).reshape(())}
    yield case("no-rank", "has the shape [], which is not a list", "ADALORA", scalar)
    yield case("not-saved", "vera_A and vera_B were not saved", "VERA", save_projection=False)
    for value in ("true", 1, [True]):
        yield case(f"saved-{value!a}", "vera_A and vera_B were not saved", "VERA", save_projection=value)
    unsaved = {name: tensor for name, tensor in make("VERA")[1].items() if "vera_A" not in name}
    for key in (0, -1, 10**30, "seed"):
        yield case(f"key-{key!a}", "vera_A and vera_B were not saved", "VERA", unsaved, projection_prng_key=key)
    wide: Tensors = {"base_model.vera_A": np.zeros((3, 1 << 20), np.float32)}
    yield case("wide", "wider than any linear of the base", "VERA", make("VERA")[1] | wide)
    for kind in ("LOHA", "LOKR"):
        large = {name: np.full_like(tensor, 6e4) for name, tensor in make(kind)[1].items()}
        yield case("absurd", "makes a LoRA with values above 65504", kind, large)
    apart = {name: tensor.copy() for name, tensor in make("LOHA")[1].items()}
    for name, tensor in apart.items():
        if name.endswith("w1_a"):
            tensor[::2] = 0
        if name.endswith("w2_a"):
            tensor[1::2] = 0
    yield case("cancels", "the adapter has no effect", "LOHA", apart)
