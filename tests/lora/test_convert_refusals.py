"""Adapters of the converted kinds that are refused: each with its own reason, and none with an allocation to match."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loraplex.lora.conversion.convert import convert_adapter
from loraplex.lora.conversion.kinds import is_converted
from loraplex.lora.inspection.inspection import inspect_adapter

from .adapters import BASE, encode, frame

PREFIX = "base_model.model.model.layers.{}.self_attn.q_proj."
Tensors = dict[str, NDArray[Any]]
Config = dict[str, Any]

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "ADALORA": {"lora_A": (3, 16), "lora_B": (24, 3), "lora_E": (3, 1)},
    "LOHA": {"hada_w1_a": (24, 3), "hada_w1_b": (3, 16), "hada_w2_a": (24, 3), "hada_w2_b": (3, 16)},
    "LOKR": {"lokr_w1": (4, 4), "lokr_w2_a": (6, 3), "lokr_w2_b": (3, 4)},
    "VERA": {"vera_lambda_b": (24,), "vera_lambda_d": (3,)},
}
SETTINGS: dict[str, Config] = {
    "ADALORA": {"init_r": 3, "lora_alpha": 6},
    "LOHA": {"r": 3, "alpha": 6},
    "LOKR": {"r": 3, "alpha": 6},
    "VERA": {"r": 3, "save_projection": True},
}


def make(kind: str) -> tuple[Config, Tensors]:
    """A good adapter of q_proj."""
    config = {"peft_type": kind, "target_modules": ["q_proj"], "base_model_name_or_path": "acme/tiny"} | SETTINGS[kind]
    random = np.random.default_rng(0)
    tensors = {
        PREFIX.format(layer) + name: random.normal(size=shape).astype(np.float32)
        for layer in range(2)
        for name, shape in SHAPES[kind].items()
    }
    if kind == "VERA":
        tensors |= {"base_model.vera_A": tensors_of(3, 40), "base_model.vera_B": tensors_of(40, 3)}
    return config, tensors


def tensors_of(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def judge(folder: Path, config: Config, weights: bytes, largest: int = 1 << 30) -> tuple[list[str], list[str]]:
    """(messages of failures, others)."""
    (folder / "old").write_bytes(weights)
    files = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    found = convert_adapter(json.dumps(config).encode(), folder / "old", BASE, *files, largest)
    failed = [finding.message for finding in found if finding.level == "fail"]
    assert files[0].exists() != bool(failed)
    return failed, [finding.message for finding in found if finding.level != "fail"]


@pytest.mark.parametrize("kind", SHAPES)
def test_the_good_one_passes(kind: str, tmp_path: Path) -> None:
    config, tensors = make(kind)
    failed, said = judge(tmp_path, config, encode(tensors))
    assert not failed
    assert "exactly" in said[-1]


def without(part: str) -> Callable[[Config, Tensors], object]:
    return lambda config, tensors: [tensors.pop(name) for name in list(tensors) if name.endswith(part)]


def changed(**settings: Any) -> Callable[[Config, Tensors], object]:
    return lambda config, tensors: config.update(settings)


def with_tensor(name: str, *shape: int) -> Callable[[Config, Tensors], object]:
    return lambda config, tensors: tensors.update({name: tensors_of(*shape)})


def with_part(part: str, *shape: int) -> Callable[[Config, Tensors], object]:
    return with_tensor(PREFIX.format(0) + part, *shape)


def with_value(part: str, value: float) -> Callable[[Config, Tensors], object]:
    def change(config: Config, tensors: Tensors) -> None:
        next(tensor for name, tensor in tensors.items() if name.endswith(part)).flat[0] = value

    return change


VARIANTS: list[tuple[str, Callable[[Config, Tensors], object], str]] = [
    ("LOHA", changed(target_modules=r".*(a+)+q_proj"), "patterns are not supported"),
    ("LOHA", changed(target_modules=["q_proj|x"]), "not literal module names"),
    ("LOHA", changed(rank_pattern={"(a+)+$": 3}), "patterns are not supported"),
    ("LOHA", changed(r=0), "supported ranks are 1 to 512"),
    ("LOHA", changed(r=True), "supported ranks are 1 to 512"),
    ("LOHA", changed(r=4), "has hada_w1_a of shape [24, 3] instead of [24, 4]"),
    ("LOHA", changed(r=300), "is a LoHa of rank 300, a LoRA of 90000; up to 32 is read"),
    ("LOHA", changed(alpha=0), "a number other than 0"),
    ("LOHA", changed(alpha=1e30), "a number other than 0"),
    ("LOHA", changed(alpha=None), "a number other than 0"),
    ("LOHA", changed(alpha_pattern={"q_proj": "1"}), "a number other than 0"),
    ("LOHA", changed(alpha_pattern={"q.proj": 9}), "dots in keys of patterns are any character: 'q.proj'"),
    ("LOHA", changed(modules_to_save=["lm_head"]), "modules_to_save is ['lm_head']"),
    ("LOHA", changed(use_rslora=True), "use_rslora is True"),
    ("LOHA", changed(auto_mapping={"parent_library": "os"}), "cannot import code"),
    ("LOHA", changed(target_modules=["q_proj", "v_proj"]), "names modules without tensors: v_proj of layer 0"),
    ("LOHA", changed(layers_to_transform=[1]), "does not name modules with tensors: q_proj of layer 0"),
    ("LOHA", without("hada_w2_b"), "q_proj of layer 0 has no hada_w2_b"),
    ("LOHA", with_part("hada_t1", 3, 3, 1, 1), "they are for convolutions"),
    ("LOHA", with_part("lora_A", 3, 16), "not what this kind of adapter consists of"),
    ("LOHA", with_tensor("base_model.model.lm_head.hada_w1_a", 24, 3), "not tensors of a linear of the base's layers"),
    ("LOHA", with_tensor("base_model.vera_A", 3, 16), "not tensors of a linear of the base's layers"),
    ("LOHA", with_tensor(PREFIX.format(2) + "hada_w1_a", 24, 3), "the base has 2 layers"),
    ("LOHA", with_tensor(PREFIX.format("../0") + "hada_w1_a", 24, 3), "tensor names contain letters"),
    ("LOHA", with_value("hada_w1_a", float("nan")), "some values are NaN, infinite or above"),
    ("LOHA", with_value("hada_w2_b", float("-inf")), "some values are NaN, infinite or above"),
    ("LOHA", with_value("hada_w2_b", 1e30), "some values are NaN, infinite or above"),
    ("LOHA", changed(colour="blue"), "'colour' is 'blue': unknown settings may change the answers"),
    ("ADALORA", changed(init_r=2), "has rank 3, adapter_config.json begins with init_r 2"),
    ("ADALORA", changed(bias="all"), "bias is 'all'"),
    ("ADALORA", changed(init_lora_weights="pissa"), "trained on a modified base"),
    ("ADALORA", changed(megatron_config={"a": 1}), "Megatron layers are not supported"),
    ("ADALORA", without("lora_E"), "has no lora_E"),
    ("ADALORA", with_part("lora_E", 3), "has lora_E of shape [3] instead of [3, 1]"),
    ("LOKR", with_part("lokr_w2", 6, 4), "has lokr_w2_a, lokr_w2_b beside lokr_w1, lokr_w2"),
    ("LOKR", with_part("lokr_w1", 40, 40), "makes [240, 160]"),
    ("LOKR", with_part("lokr_w1", 16), "which is no matrix"),
    ("LOKR", changed(r=2), "has lokr_w2_a of shape [6, 3] instead of [6, 2]"),
    ("LOKR", without("lokr_w1"), "has no lokr_w1_a"),
    ("VERA", changed(save_projection=False), "vera_A and vera_B were not saved"),
    ("VERA", without("vera_B"), "vera_A and vera_B were not saved"),
    ("VERA", with_tensor("base_model.vera_A", 3, 15), "needs a vera_A and vera_B for [24, 16], not [40, 15]"),
    ("VERA", with_tensor("base_model.vera_A", 4, 40), "has vera_A of shape [4, 40] instead of [3, 40]"),
    ("VERA", with_part("vera_lambda_b", 23), "has vera_lambda_b of shape [23] instead of [24]"),
]


@pytest.mark.parametrize(("kind", "change", "words"), VARIANTS, ids=[words for _, _, words in VARIANTS])
def test_a_bad_one_is_refused_with_its_reason(
    kind: str, change: Callable[[Config, Tensors], object], words: str, tmp_path: Path
) -> None:
    config, tensors = make(kind)
    change(config, tensors)
    failed, _ = judge(tmp_path, config, encode(tensors))
    assert any(words in message for message in failed), failed


@pytest.mark.parametrize("kind", SHAPES)
def test_an_adapter_without_effect_is_refused(kind: str, tmp_path: Path) -> None:
    config, tensors = make(kind)
    failed, _ = judge(tmp_path, config, encode({name: np.zeros_like(tensor) for name, tensor in tensors.items()}))
    assert failed == ["the adapter has no effect: it changes no weight"]


def test_unknown_keys_that_are_off_are_mentioned(tmp_path: Path) -> None:
    config, tensors = make("LOHA")
    failed, said = judge(tmp_path, config | {"colour": None}, encode(tensors))
    assert (failed, said[0]) == ([], "unknown keys that are off are ignored: 'colour'")


def test_a_lora_that_would_be_too_large_is_refused(tmp_path: Path) -> None:
    config, tensors = make("LOHA")
    assert "more than 2,000 bytes" in judge(tmp_path, config, encode(tensors), largest=2000)[0][0]


@pytest.mark.parametrize(
    "weights",
    [b"\x80\x04\x95 a pickle", b"\xff" * 64, b"", frame(b"{}"), frame(b'{"a": {"dtype": "F32", "shape": [0, -1]}}')],
    ids=["pickle", "header bomb", "empty", "no tensors", "no offsets"],
)
def test_what_is_no_safetensors_file_is_refused(weights: bytes, tmp_path: Path) -> None:
    failed, _ = judge(tmp_path, make("ADALORA")[0], weights)
    assert failed


def test_a_large_claim_costs_nothing(tmp_path: Path) -> None:
    """Of a tensor of 1.6 GB nothing is read, as its shape fits no module."""
    name = PREFIX.format(0) + "lokr_w1"
    entry = {"dtype": "F32", "shape": [20_000, 20_000], "data_offsets": [0, 1_600_000_000]}
    header = json.dumps({name: entry}).encode()
    with (tmp_path / "old").open("wb") as file:
        file.write(frame(header))
        file.truncate(8 + len(header) + 1_600_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = json.dumps(make("LOKR")[0] | {"layers_to_transform": [0]}).encode()
    found = convert_adapter(config, tmp_path / "old", BASE, tmp_path / "config", tmp_path / "weights", 1 << 30)
    assert "has no lokr_w2_a" in found[0].message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_damaged_files_are_refused_or_served_whole(tmp_path: Path) -> None:
    """Bytes of the header and of the values are changed at random; nothing but words comes of it."""
    random = np.random.default_rng(7)
    for number in range(400):
        config, tensors = make(list(SHAPES)[number % len(SHAPES)])
        weights = np.frombuffer(bytearray(encode(tensors)), np.uint8)
        header = 8 + int.from_bytes(weights[:8].tobytes(), "little")
        start, end = (0, header) if number % 3 else (header, len(weights))
        weights[random.integers(start, end, 3)] = random.choice(
            np.frombuffer(b'0123456789"[]{},:_A\xff\x7f', np.uint8), 3
        )
        (folder := tmp_path / str(number)).mkdir()
        failed, _ = judge(folder, config, weights.tobytes())
        if not failed:
            converted = (folder / "adapter_config.json").read_bytes()
            inspection = inspect_adapter(converted, folder / "adapter_model.safetensors", BASE)
            assert inspection.manifest is not None or "values" in {finding.check for finding in inspection.failures()}


@pytest.mark.parametrize(
    "config", [b"{", b"[]", b"{}", b'{"peft_type": ["LOHA"]}', b'{"peft_type": "LORA"}', b"[" * 10**5, b" " * (1 << 21)]
)
def test_what_is_not_of_these_kinds_is_left_alone(config: bytes) -> None:
    assert not is_converted(config, Path("none"), BASE)
