"""inspect_adapter: what PEFT writes is read as PEFT means it, and identity depends on nothing but the result."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest

from loraplex.lora.conversion.kinds import read_source_settings
from loraplex.lora.files.config_file import read_settings
from loraplex.lora.files.manifest import Finding
from loraplex.lora.files.report import Report
from loraplex.lora.files.tensor_names import ModuleLocation
from loraplex.lora.inspection.inspection import inspect_adapter

from ..adapters import BASE, encode, make_config, make_tensors, read_manifest, tensor_name, write_adapter

NATIVE: dict[str, Any] = {
    "LORA": peft.LoraConfig,
    "IA3": peft.IA3Config,
    "TRAINABLE_TOKENS": peft.TrainableTokensConfig,
}
CONVERTED: dict[str, Any] = {
    "ADALORA": peft.AdaLoraConfig,
    "LOHA": peft.LoHaConfig,
    "LOKR": peft.LoKrConfig,
    "VERA": peft.VeraConfig,
}


def findings(folder: Path) -> tuple[Finding, ...]:
    config = (folder / "adapter_config.json").read_bytes()
    return inspect_adapter(config, folder / "adapter_model.safetensors", BASE).findings


def scalings(folder: Path) -> dict[tuple[int, str], tuple[int, float]]:
    return {(module.layer, module.kind): (module.rank, module.scaling) for module in read_manifest(folder).modules}


def test_a_good_adapter_passes_every_check(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, make_config(), make_tensors())
    assert {finding.level for finding in findings(folder)} == {"pass"}
    manifest = read_manifest(folder)
    assert (manifest.rank, manifest.alpha, manifest.target_modules) == (4, 8.0, ("down_proj", "q_proj"))
    assert manifest.parameters == sum(tensor.size for tensor in make_tensors().values())
    assert manifest.size == (folder / "adapter_model.safetensors").stat().st_size


def test_scaling_per_module(tmp_path: Path) -> None:
    tensors = make_tensors()
    random = np.random.default_rng(1)
    for side, shape in (("A", (2, 16)), ("B", (24, 2))):
        tensors[tensor_name(1, "q_proj", side)] = random.normal(size=shape).astype(np.float32)
    patterns = {"rank_pattern": {"layers.1.self_attn.q_proj": 2}, "alpha_pattern": {"^model.layers.0.mlp.down_proj": 3}}
    plain = scalings(write_adapter(tmp_path / "plain", make_config(**patterns), tensors))
    assert plain == {
        (0, "q_proj"): (4, 2),
        (1, "q_proj"): (2, 4),
        (0, "down_proj"): (4, 0.75),
        (1, "down_proj"): (4, 2),
    }
    rooted = scalings(write_adapter(tmp_path / "rooted", make_config(**patterns, use_rslora=True), tensors))
    assert rooted[1, "q_proj"] == (2, 8 / math.sqrt(2))


def test_the_first_matching_pattern_wins(tmp_path: Path) -> None:
    pattern = {"down_proj": 2, "layers.0.mlp.down_proj": 6}
    folder = write_adapter(tmp_path, make_config(alpha_pattern=pattern), make_tensors())
    assert scalings(folder)[0, "down_proj"] == (4, 0.5)


@pytest.mark.parametrize(
    "key", ["q.proj", "self.attn.q_proj", "layers...self_attn.q_proj", "^model.layers.1.mlp.down.proj"]
)
@pytest.mark.parametrize("pattern", ["rank_pattern", "alpha_pattern"])
def test_a_key_that_means_more_to_peft_is_refused(tmp_path: Path, key: str, pattern: str) -> None:
    """Whose dot is any character there: alpha would be another than in training, and nobody would notice."""
    assert re.match(rf"(.*\.)?({key})$", "model.layers.1." + ("mlp.down_proj" if "down" in key else "self_attn.q_proj"))
    failed = [
        found.message
        for found in findings(write_adapter(tmp_path, make_config(**{pattern: {key: 4}}), make_tensors()))
        if found.level == "fail"
    ]
    assert failed == [f"to PEFT, dots in keys of patterns are any character: {key!r}"]


def test_keys_with_dots_that_are_names_are_served(tmp_path: Path) -> None:
    """Of this base and of others; and what PEFT does not match either."""
    keys = ["layers.1.self_attn.q_proj", "^model.layers.0.mlp.down_proj", "vision_tower.layers.0.q_proj", "^q.proj"]
    for index, key in enumerate([*keys, "1.self_attn.q_pro", "layers.12.mlp.down_proj", "lm.head.x"]):
        write_adapter(tmp_path / str(index), make_config(alpha_pattern={key: 3}), make_tensors())
        assert read_manifest(tmp_path / str(index))


def test_no_adapter_is_where_a_module_is_saved_as_a_whole(tmp_path: Path) -> None:
    """As PEFT has it, also where both lists name it; and the last word of a name is not enough."""
    settings = read_settings(
        json.dumps(
            make_config(target_modules=["q_proj", "norm", "lm_head"], modules_to_save=["lm_head", "mlp"])
        ).encode(),
        Report(),
    )
    assert settings is not None
    head, norm = (ModuleLocation(0, path, path, once=True) for path in ("lm_head", "model.norm"))
    saved, other = (
        ModuleLocation(0, "q_proj", f"model.layers.0.{parent}.q_proj", once=False) for parent in ("mlp", "self_attn")
    )
    assert not settings.targets(head, is_linear=False) and not settings.targets(saved, is_linear=True)
    assert settings.targets(other, is_linear=True) and settings.targets(norm, is_linear=False)


def test_keys_that_are_missing_are_what_peft_takes_them_for() -> None:
    config = make_config()
    del config["r"], config["lora_alpha"]
    settings = read_settings(json.dumps(config).encode(), Report())
    wanted = peft.LoraConfig()
    assert settings is not None and (settings.rank, settings.alpha) == (wanted.r, wanted.lora_alpha)


def test_who_is_of_no_kind_hears_of_all_kinds() -> None:
    report = Report()
    assert read_settings(b'{"peft_type": "MISS"}', report) is None
    (found,) = report.findings
    assert all(kind in found.message for kind in ("LORA", "IA3", "TRAINABLE_TOKENS", *CONVERTED))


@pytest.mark.parametrize(
    "targets",
    [
        {"target_modules": ["self_attn.q_proj", "layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"]},
        {"target_modules": "all-linear", "exclude_modules": ["k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"]},
        {"target_modules": ["q_proj", "down_proj", "c_attn"], "layers_to_transform": [0, 1]},
    ],
)
def test_literal_targets_as_peft_reads_them(tmp_path: Path, targets: dict[str, Any]) -> None:
    assert read_manifest(write_adapter(tmp_path, make_config(**targets), make_tensors()))


def test_layers_to_transform(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in make_tensors().items() if ".layers.1." in name}
    folder = write_adapter(tmp_path, make_config(layers_to_transform=1), tensors)
    assert {module.layer for module in read_manifest(folder).modules} == {1}
    failed = [
        finding for finding in findings(write_adapter(tmp_path, make_config(), tensors)) if finding.level == "fail"
    ]
    assert [finding.check for finding in failed] == ["targets"]


def test_identity_ignores_all_that_does_not_change_the_result(tmp_path: Path) -> None:
    tensors = make_tensors()
    digest = read_manifest(write_adapter(tmp_path / "a", make_config(), tensors)).digest
    shuffled = dict(sorted(tensors.items(), reverse=True))
    default = {name.replace(".weight", ".default.weight"): tensor for name, tensor in shuffled.items()}
    config = dict(reversed(make_config(lora_dropout=0.1, revision="x", peft_version="0.9", alpha_pattern={}).items()))
    written = write_adapter(tmp_path / "b", config, encode(default, metadata={"format": "pt"}))
    assert read_manifest(written).digest == digest
    same_scaling = make_config(lora_alpha=4, use_rslora=True)
    assert read_manifest(write_adapter(tmp_path / "c", same_scaling, tensors)).digest == digest, "8 / 4 is 4 / sqrt 4"


def test_identity_changes_with_the_result(tmp_path: Path) -> None:
    bits = make_tensors()
    bits[tensor_name(0, "q_proj", "A")].view(np.uint32)[0, 0] ^= 1
    swapped = make_tensors()
    first, second = tensor_name(0, "q_proj", "A"), tensor_name(1, "q_proj", "A")
    swapped[first], swapped[second] = swapped[second], swapped[first]
    half = {name: tensor.astype(np.float16) for name, tensor in make_tensors().items()}
    keys = make_tensors(kinds=["k_proj"])
    values = {name.replace("k_proj", "v_proj"): tensor for name, tensor in keys.items()}
    variants = [
        (make_config(), make_tensors()),
        (make_config(lora_alpha=9), make_tensors()),
        (make_config(alpha_pattern={"q_proj": 9}), make_tensors()),
        (make_config(), bits),
        (make_config(), swapped),
        (make_config(), half),
        *[(make_config(alora_invocation_tokens=tokens), make_tensors()) for tokens in ([1, 2], [12], [1], [2, 1])],
        (make_config(target_modules=["k_proj"]), keys),
        (make_config(target_modules=["v_proj"]), values),
    ]
    digests = {read_manifest(write_adapter(tmp_path / str(i), *variant)).digest for i, variant in enumerate(variants)}
    assert len(digests) == len(variants)


def test_invocation_tokens(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, make_config(alora_invocation_tokens=[319, 0, 319]), make_tensors())
    assert read_manifest(folder).invocation_tokens == (319, 0, 319)
    assert {finding.check: finding.message for finding in findings(folder)}["activation"] == (
        "it acts on a prompt from the last occurrence of [319, 0, 319]"
    )
    plain = read_manifest(write_adapter(tmp_path, make_config(alora_invocation_tokens=None), make_tensors()))
    assert (
        plain.invocation_tokens == ()
        and plain.digest == read_manifest(write_adapter(tmp_path, make_config(), make_tensors())).digest
    )


def test_all_failures_are_told_at_once(tmp_path: Path) -> None:
    tensors = make_tensors()
    tensors[tensor_name(0, "q_proj", "B")] = np.ones((25, 4), np.float32)
    del tensors[tensor_name(1, "q_proj", "B")]
    tensors[tensor_name(1, "down_proj", "A")][0, 0] = np.nan
    tensors["base_model.model.lm_head.lora_A.weight"] = np.ones((4, 16), np.float32)
    folder = write_adapter(tmp_path, make_config(use_qalora=True, lora_alpha=0), tensors)
    failed = [finding for finding in findings(folder) if finding.level == "fail"]
    assert {"config", "features", "modules", "shapes", "values"} == {finding.check for finding in failed}
    words = " ".join(finding.message for finding in failed)
    assert "B is [25, 4] but the base has 24 outputs" in words
    assert "q_proj of layer 1 has lora_A but no lora_B" in words


def test_what_was_not_judged_is_not_praised(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, make_config(peft_type="OFT"), make_tensors())
    assert not {finding.check for finding in findings(folder)} & {"values", "effect", "targets", "base"}


def test_the_report_stays_readable(tmp_path: Path) -> None:
    pattern = {f"layers.{index}.mlp.up_proj": 0 for index in range(1500)}
    folder = write_adapter(tmp_path, make_config(rank_pattern=pattern), make_tensors())
    assert len(findings(folder)) < 80


def test_warnings_do_not_refuse(tmp_path: Path) -> None:
    tensors = make_tensors()
    tensors[tensor_name(0, "q_proj", "B")][:] = 0
    config = make_config(base_model_name_or_path="acme/other", future_key=None, task_type="SEQ_2_SEQ_LM")
    folder = write_adapter(tmp_path, config, tensors)
    warned = {finding.check for finding in findings(folder) if finding.level == "warn"}
    assert warned == {"effect", "base", "features"}
    assert read_manifest(folder)


def test_every_key_of_peft_s_configurations_is_known(tmp_path: Path) -> None:
    """A PEFT with new keys fails here: what they do to the answers must be looked at."""
    known: dict[str, Any] = {
        "LORA": peft.LoraConfig,
        "IA3": peft.IA3Config,
        "TRAINABLE_TOKENS": peft.TrainableTokensConfig,
        **CONVERTED,
    }
    for kind, config in known.items():
        keys = dict.fromkeys(field.name for field in dataclasses.fields(config))
        report = Report()
        text = json.dumps(keys | {"peft_type": kind}).encode()
        (read_source_settings if kind in CONVERTED else read_settings)(text, report)
        assert not [found.message for found in report.findings if "unknown" in found.message], kind


@pytest.mark.parametrize("key", ["loftq_config", "corda_config", "lora_ga_config"])
def test_a_start_that_was_converted_leaves_its_settings_behind(tmp_path: Path, key: str) -> None:
    folder = write_adapter(tmp_path, make_config(**{key: {"a": 1}}), make_tensors())
    [warned] = [finding.message for finding in findings(folder) if finding.level == "warn"]
    assert warned.startswith(f"{key} is set but init_lora_weights is not: the adapter counts as converted")
    named = make_config(**{key: {"a": 1}}, init_lora_weights=key.removesuffix("_config"))
    folder = write_adapter(tmp_path, named, make_tensors())
    [failed] = [finding.message for finding in findings(folder) if finding.level == "fail"]
    assert "trained on a modified base" in failed


def test_a_local_path_to_the_same_base_is_no_other_base(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, make_config(base_model_name_or_path="/models/Tiny/"), make_tensors())
    assert {finding.level for finding in findings(folder)} == {"pass"}


def test_torch_is_not_imported(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, make_config(), make_tensors())
    code = f"""
import sys
from dataclasses import replace
from pathlib import Path
from loraplex.lora.inspection.inspection import inspect_adapter
from loraplex.lora.files.manifest import BaseSignature, ModuleKind
folder, base = Path({str(folder)!r}), BaseSignature("tiny", 2, {dict(BASE.modules)!r})
config = (folder / "adapter_config.json").read_bytes()
assert inspect_adapter(config, folder / "adapter_model.safetensors", base).manifest is not None
assert "torch" not in sys.modules and "peft" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_config_is_kept_for_display(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, make_config(), make_tensors())
    assert read_manifest(folder).config == json.loads(json.dumps(make_config()))
