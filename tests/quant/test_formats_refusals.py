"""Checkpoints that cannot be right are refused as they load, with the tensor's name and what was expected."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.decoder import Decoder
from loraplex.engine.model.loader import Checkpoint
from loraplex.quant.formats.specification import Linear
from loraplex.quant.weights.weights import IntegerWeight
from tests.quant.made_checkpoints import CASES, FILE, STATIC, Case, compressed, groups, layers, make_quantized, scheme
from tests.quant.made_checkpoints import write_config as write
from tests.quant.test_formats_engine import TOLERANCE, error, expected, load, logits

LINEAR = "model.layers.1.mlp.down_proj"
INT4_BYTES = Case(
    groups("int-quantized", scheme("int", 4, "group", group_size=16)), layers(compressed(4, 16, packed=False))
)
Folders = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Quantized checkpoints by the names of CASES, made when they are first asked for."""
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            case = INT4_BYTES if name == "int4-bytes" else CASES[name]
            folders[name], _ = make_quantized(tmp_path_factory.mktemp("made"), case)
        return folders[name]

    return get


def spoiled(source: Path, folder: Path, suffix: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Path:
    """A copy of the checkpoint in which one tensor of LINEAR is another, or missing."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / FILE)
    tensor = change(tensors.pop(f"{LINEAR}.{suffix}"))
    if tensor is not None:
        tensors[f"{LINEAR}.{suffix}"] = tensor.contiguous()
    save_file(tensors, folder / FILE)
    return folder


def put(value: Any, *place: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[place] = value
        return tensor

    return change


def lost(tensor: torch.Tensor) -> None:
    return None


def float8_nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(torch.uint8)[3, 5] = 0xFF
    return tensor


@pytest.mark.parametrize(
    ("name", "suffix", "change", "words"),
    [
        ("awq", "scales", lost, r"missing: model\.layers\.1\.mlp\.down_proj\.scales; download it again"),
        ("awq", "qzeros", lost, r"missing: .*down_proj\.qzeros"),
        ("awq", "qweight", lambda words: words[:, :7], r"down_proj\.qweight is \[96, 7\] instead of \[96, 8\]"),
        ("awq", "qweight", lambda words: words.T, r"down_proj\.qweight is \[8, 96\] instead of \[96, 8\]"),
        ("awq", "scales", lambda scales: scales[:3], r"down_proj\.scales is \[3, 64\] instead of \[6, 64\]"),
        ("awq", "qzeros", lambda zeros: zeros.long(), r"mis-typed: .*down_proj\.qzeros is I64 instead of I32"),
        ("awq", "scales", put(float("nan"), 2, 9), r"down_proj\.scales has 1 of 384 scales that are not finite"),
        ("awq", "scales", put(float("inf"), 2), r"down_proj\.scales has 64 of 384 scales that are not finite"),
        (
            "awq",
            "scales",
            torch.zeros_like,
            r"down_proj\.scales has 384 scales of zero for \d+ weights that are not zero",
        ),
        ("gptq", "qweight", lost, r"missing: .*down_proj\.qweight"),
        ("gptq", "qzeros", put(0x77777767, 1, 2), r"down_proj\.qzeros must be .* zero point 8 stored as 7 or 8.* 6, 7"),
        ("gptq", "scales", put(float("nan"), 0, 0), r"down_proj\.scales has 1 of 192 scales that are not finite"),
        ("gptq-ordered-asymmetric", "g_idx", lost, r"missing: .*down_proj\.g_idx"),
        (
            "gptq-ordered-asymmetric",
            "g_idx",
            put(6, 4),
            r"down_proj\.g_idx names groups outside of 0 to 5, the first is 6",
        ),
        ("gptq-ordered-asymmetric", "g_idx", put(-7, 4), r"down_proj\.g_idx names groups outside .* the first is -7"),
        ("gptq-ordered-asymmetric", "g_idx", torch.zeros_like, r"down_proj\.g_idx gives group 0 96 inputs; .* 16 each"),
        ("gptq8-head", "bias", put(0.5, 3), r"down_proj\.bias is not zero, and a LlamaForCausalLM"),
        ("packed4", "weight_scale", lost, r"missing: .*down_proj\.weight_scale"),
        ("packed4", "weight_packed", lambda words: words[:, :11], r"weight_packed is \[64, 11\] instead of \[64, 12\]"),
        ("packed4", "weight_shape", put(95, 1), r"down_proj\.weight_shape says \[64, 95\], the model needs \[64, 96\]"),
        ("packed4", "weight_scale", put(float("-inf"), 0, 0), r"weight_scale has 1 of 384 scales that are not finite"),
        ("packed4-asymmetric", "weight_zero_point", lost, r"missing: .*down_proj\.weight_zero_point"),
        (
            "packed4-asymmetric",
            "weight_zero_point",
            lambda words: words[:7],
            r"weight_zero_point is \[7, 3\] instead of \[8, 3\] or \[64, 3\]",
        ),
        (
            "packed4-asymmetric",
            "weight_zero_point",
            lambda words: put(-9, 3, 1)(torch.zeros(64, 3, dtype=torch.int8)),
            r"weight_zero_point has 1 zero points outside of -8 to 7, the first is -9",
        ),
        ("packed4-ordered", "weight_g_idx", put(9, 0), r"weight_g_idx names groups outside of 0 to 2, the first is 9"),
        ("int8", "weight", lambda weight: weight.short(), r"mis-typed: .*down_proj\.weight is I16 instead of I8"),
        ("int8", "weight", lambda weight: weight.float(), r"mis-typed: .*down_proj\.weight is F32 instead of I8"),
        ("int4-bytes", "weight", put(8, 1, 1), r"down_proj\.weight has 1 values outside of -8 to 7 \(4 bits\)"),
        ("float8", "weight_scale", lost, r"missing: .*down_proj\.weight_scale; download it again"),
        (
            "int8",
            "weight_scale",
            put(float("nan"), 7, 0),
            r"down_proj\.weight_scale has 1 of 64 scales that are not finite",
        ),
        (
            "float8",
            "weight_scale",
            put(float("nan"), 0),
            r"down_proj\.weight_scale has 1 of 1 scales that are not finite",
        ),
        (
            "fp8-blocks",
            "weight_scale_inv",
            put(float("nan"), 1, 2),
            r"weight_scale_inv has 1 of 6 scales that are not finite",
        ),
        ("float8", "weight_scale", put(-1.0, 0), r"down_proj\.weight_scale has 1 of 1 scales below zero"),
        ("float8", "weight", float8_nan, r"down_proj\.weight has 1 of 6144 values that are not a number"),
        ("float8", "input_scale", lost, r"missing: .*down_proj\.input_scale; download it again"),
        (
            "float8",
            "input_scale",
            put(float("nan"), 0),
            r"down_proj\.input_scale has 1 of 1 scales that are not finite",
        ),
        ("fp8", "input_scale", put(0.0, 0), r"down_proj\.input_scale must be above zero, got 0"),
        ("fp8-of-transformers", "activation_scale", lost, r"missing: .*down_proj\.input_scale; download it again"),
        ("fp8-of-transformers", "activation_scale", put(-1.0, 0), r"down_proj\.activation_scale must be above zero"),
        ("fp8", "input_scale", lambda scale: scale.expand(2), r"down_proj\.input_scale is \[2\] instead of \[1\] or"),
        ("fp8", "weight", lambda weight: weight.view(torch.int8), r"down_proj\.weight is I8 instead of F8_E4M3"),
        ("fp8-blocks", "weight_scale_inv", lost, r"missing: .*down_proj\.weight_scale_inv"),
        (
            "fp8-blocks",
            "weight_scale_inv",
            lambda scales: scales[:, :2],
            r"weight_scale_inv is \[2, 2\] instead of \[2, 3\]",
        ),
        ("fp8-blocks", "weight_scale_inv", put(0.0, 1, 1), r"weight_scale_inv has 1 scales of zero for \d+ weights"),
    ],
)
def test_spoiled_tensors(
    made: Folders, tmp_path: Path, name: str, suffix: str, change: Callable[..., Any], words: str
) -> None:
    source = made(name)
    if suffix == "bias":
        source = with_tensors(source, tmp_path / "source", **{f"{LINEAR}.bias": torch.zeros(64)})
        load(source)
    with pytest.raises(ValueError, match=words):
        load(spoiled(source, tmp_path / "spoiled", suffix, change))


def with_tensors(source: Path, folder: Path, **changes: torch.Tensor) -> Path:
    shutil.copytree(source, folder)
    save_file(load_file(folder / FILE) | changes, folder / FILE)
    return folder


def with_config(source: Path, folder: Path, **changes: Any) -> Path:
    shutil.copytree(source, folder)
    said = json.loads((folder / "config.json").read_text())["quantization_config"]
    write(folder, quantization_config=said | changes)
    return folder


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        (
            "awq",
            {"group_size": 48},
            r"q_proj has 64 inputs, which groups of 48 \(group_size in config.json\) do not divide",
        ),
        ("gptq", {"group_size": 128}, "q_proj has 64 inputs, which groups of 128"),
        ("awq", {"group_size": 32}, r"mis-shaped: .*k_proj\.qzeros is \[4, 4\] instead of \[2, 4\]"),
        ("gptq", {"bits": 8}, r"mis-shaped: .*up_proj\.qweight is \[8, 96\] instead of \[16, 96\]"),
        (
            "awq",
            {"quant_method": "gptq", "bits": 4},
            r"gptq, int4 .*mis-shaped: .*down_proj\.qweight is \[96, 8\] instead",
        ),
        (
            "packed4",
            groups("pack-quantized", scheme("int", 4, "group", group_size=48)),
            "q_proj has 64 inputs, which groups of 48",
        ),
        ("float8-channels", groups("float-quantized", scheme("float", 8, "group", group_size=48)), "groups of 48"),
        (
            "float8-channels",
            groups("float-quantized", scheme("float", 8, "channel", inputs=STATIC)),
            r"missing: .*down_proj\.input_scale",
        ),
        (
            "packed4",
            {"ignore": []},
            r"missing: lm_head\.weight_packed, .*unexpected: lm_head\.weight; download it again",
        ),
    ],
)
def test_configs_that_do_not_fit_the_tensors(
    made: Folders, tmp_path: Path, name: str, changes: dict[str, Any], words: str
) -> None:
    folder = with_config(made(name), tmp_path / "other", **changes)
    with pytest.raises(ValueError, match=words):
        load(folder)


def test_zero_points_beyond_the_bits(made: Folders, tmp_path: Path) -> None:
    """A word of 15s: format gptq has none."""
    name = "gptq-ordered-asymmetric"
    folder = with_config(made(name), tmp_path / "gptq", checkpoint_format="gptq")
    load(folder)
    with pytest.raises(ValueError, match=r"down_proj\.qzeros has 1 words that end in 15, 15: a zero point of 0 was"):
        load(spoiled(folder, tmp_path / "spoiled", "qzeros", put(-1, 0, 0)))


def test_outputs_that_do_not_fill_words(tmp_path: Path) -> None:
    case = Case(CASES["awq"].config, lambda name: None, settings={"intermediate_size": 92})
    _, floats = make_quantized(tmp_path, case)
    tensors = load_file(floats / FILE)
    for layer in (0, 1):
        tensors[f"model.layers.{layer}.mlp.up_proj.qweight"] = tensors.pop(f"model.layers.{layer}.mlp.up_proj.weight")
    save_file(tensors, floats / FILE)
    write(floats, quantization_config=CASES["awq"].config)
    with pytest.raises(ValueError, match=r"up_proj has 92 values to pack into words of 8, which do not divide them"):
        load(floats)


def test_a_truncated_file(made: Folders, tmp_path: Path) -> None:
    shutil.copytree(made("awq"), tmp_path / "cut")
    path = tmp_path / "cut" / FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a valid safetensors file"):
        load(tmp_path / "cut")


def test_a_truncated_shard(made: Folders, tmp_path: Path) -> None:
    shutil.copytree(made("packed4"), tmp_path / "shards")
    path = tmp_path / "shards" / FILE
    tensors, second = load_file(path), tmp_path / "shards" / "model-2.safetensors"
    parts = {name: second.name if name.startswith(LINEAR) else FILE for name in tensors}
    for file in (path, second):
        save_file({name: tensor for name, tensor in tensors.items() if parts[name] == file.name}, file)
    (tmp_path / "shards" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    load(tmp_path / "shards")
    second.write_bytes(second.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"model-2\.safetensors is not a valid safetensors file"):
        load(tmp_path / "shards")


def test_zero_points_of_a_symmetric_scheme(made: Folders, tmp_path: Path) -> None:
    zeros = torch.zeros(64, 1, dtype=torch.int8)
    load(with_tensors(made("int8"), tmp_path / "zero", **{f"{LINEAR}.weight_zero_point": zeros}))
    folder = with_tensors(made("int8"), tmp_path / "one", **{f"{LINEAR}.weight_zero_point": put(1, 5, 0)(zeros)})
    with pytest.raises(ValueError, match=r"down_proj\.weight_zero_point must be zero everywhere, as the scheme"):
        load(folder)


@pytest.mark.parametrize("name", ["awq", "gptq", "fp8", "fp8-blocks"])
def test_linears_that_a_list_keeps_may_be_quantized_all_the_same(made: Folders, tmp_path: Path, name: str) -> None:
    """transformers reads "mlp" as names that begin or end with it: as none."""
    folder = with_config(made(name), tmp_path / "listed", modules_to_not_convert=["lm_head", "mlp"])
    assert torch.equal(logits(folder, load(folder)), logits(made(name), load(made(name))))


def test_a_shard_without_its_tensors(made: Folders, tmp_path: Path) -> None:
    shutil.copytree(made("awq"), tmp_path / "shards")
    tensors = load_file(tmp_path / "shards" / FILE)
    parts = {"model-1.safetensors": {}, "model-2.safetensors": {}}  # type: dict[str, dict[str, torch.Tensor]]
    for name, tensor in tensors.items():
        parts["model-2.safetensors" if name.endswith("scales") else "model-1.safetensors"][name] = tensor
    weight_map = {name: file for file, part in parts.items() for name in part}
    (tmp_path / "shards" / FILE).unlink()
    (tmp_path / "shards" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for file, part in parts.items():
        save_file(part, tmp_path / "shards" / file)
    load(tmp_path / "shards")
    save_file({"model.norm.weight": tensors["model.norm.weight"]}, tmp_path / "shards" / "model-2.safetensors")
    with pytest.raises(ValueError, match=r"missing: model\.layers\.0\.mlp\.down_proj\.scales, .* and 6 more"):
        load(tmp_path / "shards")


def test_linears_kept_as_floats_need_no_list_but_in_compressed_tensors(made: Folders, tmp_path: Path) -> None:
    """Lists of names are read in different ways by the tools; that a linear is of floats is seen in the file."""
    quantized, floats = make_quantized(tmp_path, CASES["awq-some"])
    folder = with_config(quantized, tmp_path / "unlisted", modules_to_not_convert=None)
    assert error(logits(folder, load(folder)), expected(floats)) < TOLERANCE
    weights = {name: tensor for name, tensor in load_file(made("packed4") / FILE).items() if LINEAR not in name}
    shutil.copytree(made("packed4"), tmp_path / "float")
    save_file(weights | {f"{LINEAR}.weight": torch.zeros(64, 96)}, tmp_path / "float" / FILE)
    with pytest.raises(ValueError, match=r"missing: .*down_proj\.weight_packed.*unexpected: .*down_proj\.weight"):
        load(tmp_path / "float")


@pytest.mark.parametrize("ignored", ["re:.*layers.1.*gate_up_proj$", "model.layers.1.mlp.gate_up_proj"])
def test_a_joined_name_in_the_list_of_compressed_tensors_leaves_it_to_the_file(
    made: Folders, tmp_path: Path, ignored: str
) -> None:
    """The file has floats, or it has codes; both are read as what they are."""
    folder = with_config(made("packed4"), tmp_path / "codes", ignore=["lm_head", ignored])
    assert torch.equal(logits(folder, load(folder)), logits(made("packed4"), load(made("packed4"))))
    parts = [f"model.layers.1.mlp.{kind}_proj" for kind in ("gate", "up")]
    tensors = {name: tensor for name, tensor in load_file(folder / FILE).items() if not name.startswith(tuple(parts))}
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint(folder)
    for part in parts:
        weight = checkpoint.weight(config, Linear(part, 96, 64))
        assert isinstance(weight, IntegerWeight)
        tensors[f"{part}.weight"] = weight.dequantized()
    floats = tmp_path / "floats"
    shutil.copytree(folder, floats)
    save_file(tensors, floats / FILE)
    assert error(logits(floats, load(floats)), logits(folder, load(folder))) < TOLERANCE
    other = with_config(floats, tmp_path / "other", ignore=["lm_head", "re:.*layers.0.*gate_up_proj$"])
    with pytest.raises(ValueError, match=r"missing: model\.layers\.1\.mlp\.gate_proj\.weight_packed"):
        load(other)


def test_quantized_tensors_without_a_config(made: Folders, tmp_path: Path) -> None:
    shutil.copytree(made("float8"), tmp_path / "unsaid")
    write(tmp_path / "unsaid", quantization_config=None)
    with pytest.raises(
        ValueError, match=r"unexpected: .*\.weight_scale.*mis-typed: .*weight is F8_E4M3 instead of F32"
    ):
        Checkpoint(tmp_path / "unsaid").verify(ModelConfig.from_folder(tmp_path / "unsaid"))


@pytest.mark.parametrize(("name", "file"), [("gptq", "quantize_config.json"), ("awq", "quant_config.json")])
def test_a_config_in_a_file_of_its_own_is_pointed_at(made: Folders, tmp_path: Path, name: str, file: str) -> None:
    shutil.copytree(made(name), tmp_path / "old")
    write(tmp_path / "old", quantization_config=None)
    (tmp_path / "old" / file).write_text("{}")
    with pytest.raises(ValueError, match=rf"missing: .*{file} lies beside it: .* quant_method, {name}\)$"):
        Checkpoint(tmp_path / "old").verify(ModelConfig.from_folder(tmp_path / "old"))


def test_a_right_one_loads_as_often_as_it_is_asked(made: Folders) -> None:
    """Reading changes nothing in the files' memory."""
    folder = made("int8")
    first, second = (load(folder) for _ in range(2))
    assert isinstance(first, Decoder) and torch.equal(logits(folder, first), logits(folder, second))
    assert "model.layers.0.self_attn.q_proj.weight_scale" in Checkpoint(folder)
