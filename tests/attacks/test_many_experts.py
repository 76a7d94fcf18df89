"""A LoRA on every expert of a large base has tens of thousands of tensors: read in bounded time and memory, as are
files that only claim to be one."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loraplex.lora.files.manifest import ModuleKind
from loraplex.lora.files.report import Report
from loraplex.lora.files.safetensors_header import ACCEPTED, read_header
from tests.lora.adapters import Tensors, frame, make_config, write_adapter
from tests.lora.signatures import llama_signature

from .hostile_headers import entry
from .test_hostile_adapters import check_harmless, judge

LAYERS, EXPERTS = 36, 128
LINEARS = {"gate_proj": (6, 4), "up_proj": (6, 4), "down_proj": (4, 6)}


def modules() -> Iterator[tuple[str, ModuleKind]]:
    for expert in range(EXPERTS):
        for name, shape in LINEARS.items():
            path = f"mlp.experts.{expert}.{name}"
            yield path, ModuleKind(path, "linear", *shape, tuple(range(LAYERS)))


DENSE = llama_signature("experts", LAYERS, {}, name="acme/tiny", vocab_size=320, hidden_size=6)
BASE = replace(DENSE, modules=DENSE.modules | dict(modules()))
TENSORS = LAYERS * EXPERTS * len(LINEARS) * 2


def tensors() -> Tensors:
    random, found = np.random.default_rng(0), Tensors()
    for layer in range(LAYERS):
        for path, module in modules():
            name = f"base_model.model.model.layers.{layer}.{path}"
            found[f"{name}.lora_A.weight"] = random.normal(size=(4, module.inputs)).astype(np.float16)
            found[f"{name}.lora_B.weight"] = random.normal(size=(module.outputs, 4)).astype(np.float16)
    return found


CONFIG = make_config(target_modules=list(LINEARS))


def test_every_expert_is_served(tmp_path: Path) -> None:
    assert TENSORS > 27_000
    folder = write_adapter(tmp_path, CONFIG, tensors())
    (verdict,) = judge([folder], BASE)
    assert verdict["served"], verdict["failures"]
    assert verdict["memory"] <= 256 << 20
    with (folder / "adapter_model.safetensors").open("rb", buffering=0) as file:
        size = file.seek(0, 2)
        file.seek(0)
        assert len(read_header(file, size, Report(), ACCEPTED)) == TENSORS


def test_one_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    found = tensors()
    del found["base_model.model.model.layers.7.mlp.experts.99.up_proj.lora_B.weight"]
    (verdict,) = judge([write_adapter(tmp_path, CONFIG, found)], BASE)
    assert verdict["failures"] == ["mlp.experts.99.up_proj of layer 7 has lora_A but no lora_B"]


def listed(count: int, made: Any) -> bytes:
    return ("{" + ",".join(f'"{index:x}":{made}' for index in range(count)) + "}").encode()


MOST = 3 * sum(module.count for module in BASE.modules.values())
ROOM = 200 * MOST
"""Bytes of a header for this base."""


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b'{"a":"' + b" " * ROOM + b'"}', "its header has"),
        (b'{"a":[' + b"[]," * (ROOM // 3 - 100) + b"[]]}", f"it holds more than {MOST} tensors"),
        (listed(ROOM // 12, "{}"), f"it holds more than {MOST} tensors"),
        (listed(MOST + 1, json.dumps(entry())), f"it holds {MOST + 1} tensors; at most {MOST}"),
        (listed(ROOM // 14, '"aa"'), f"tensors; at most {MOST}"),
        (listed(MOST, "1"), "is not described by exactly"),
        (b'{"a":[' + b"257," * (ROOM // 4 - 100) + b"1]}", "is not described by exactly"),
    ],
    ids=["long", "lists", "objects", "many", "texts", "numbers", "list of numbers"],
)
def test_no_header_takes_more_than_its_base_has_modules(header: bytes, words: str, tmp_path: Path) -> None:
    (verdict,) = judge([write_adapter(tmp_path, CONFIG, frame(header, bytes(1000)))], BASE)
    assert words in verdict["failures"][0]
    check_harmless(verdict)
