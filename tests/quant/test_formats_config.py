"""What quantization_config says: which linear is stored how, and what is refused by name."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from loraplex.quant.config.compressed_groups import KvCacheScheme
from loraplex.quant.config.config import parse_quantization
from loraplex.quant.config.layouts import AwqLayout, Float8Layout, GptqLayout, IntegerLayout
from loraplex.quant.config.module_names import ModuleList
from tests.quant.made_checkpoints import DYNAMIC, STATIC, groups, scheme

Q = "model.layers.1.self_attn.q_proj"
UP = "model.layers.11.mlp.up_proj"


def parse(said: dict[str, Any], key: str = "quantization_config") -> Any:
    return parse_quantization({key: said})


def test_floats_have_no_config() -> None:
    assert parse_quantization({}) is None
    assert parse_quantization({"quantization_config": None}) is None


def test_awq() -> None:
    config = parse({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "GEMM", "zero_point": True})
    assert config.layout_of(Q) == AwqLayout(group_size=64, has_zeros=True)
    assert config.layout_of("lm_head") is None
    assert config.words == "awq, int4 in groups of 64"
    older = parse({"quant_method": "awq", "w_bit": 4, "q_group_size": -1, "zero_point": False})
    assert older.layout_of(Q) == AwqLayout(group_size=None, has_zeros=False)
    assert older.words == "awq, int4 per channel"


def test_gptq() -> None:
    config = parse({"quant_method": "gptq", "bits": 8, "desc_act": True, "sym": False, "checkpoint_format": "gptq_v2"})
    expected = GptqLayout(bits=8, group_size=128, symmetric=False, ordered=True, zero_offset=0)
    assert config.layout_of(Q) == expected and config.layout_of("lm_head") is None
    with_head = parse({"quant_method": "gptq", "bits": 4, "group_size": -1, "lm_head": True, "dynamic": {}})
    expected = GptqLayout(bits=4, group_size=None, symmetric=True, ordered=False, zero_offset=1)
    assert with_head.layout_of("lm_head") == with_head.layout_of(Q) == expected


def test_rules_of_gptq_for_single_modules() -> None:
    """The first that matches from the name's start decides, in the order of the config; the rest is the config's."""
    rules = {
        r"-:.*layers\.1\.": {},
        r"+:.*\.(q|k)_proj": {"bits": 8, "group_size": -1, "damp_percent": 0.1},
        r".*self_attn": {"sym": False, "desc_act": True},
        r"mlp": {"bits": 8},
        r"lm_head": {"bits": 8},
    }
    config = parse(
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2", "dynamic": rules}
    )
    common = GptqLayout(bits=4, group_size=32, symmetric=True, ordered=False, zero_offset=0)
    assert config.layout_of(UP) == common and config.layout_of(Q) is None and config.layout_of("lm_head") is None
    assert config.layout_of(Q.replace(".1.", ".0.")) == replace(common, bits=8, group_size=None)
    assert config.layout_of("model.layers.0.self_attn.o_proj") == replace(common, symmetric=False, ordered=True)
    assert config.words == "gptq, int4 in groups of 32 and int8 per channel and int8 in groups of 32"
    with_head = parse({"quant_method": "gptq", "bits": 4, "lm_head": True, "dynamic": rules})
    assert with_head.layout_of("lm_head").bits == 8


def test_fp8() -> None:
    blocks = parse({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]})
    assert blocks.layout_of(Q).block == (128, 128) and blocks.layout_of(Q).scale_names[0] == "weight_scale_inv"
    assert blocks.layout_of("lm_head") is None
    assert blocks.words == "fp8, fp8 in blocks of 128x128"
    tensor = parse({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["re:.*1.self_attn.*"]})
    assert tensor.layout_of(Q) is None
    names = ("weight_scale", "weight_scale_inv")
    assert tensor.layout_of(UP) == Float8Layout(block=(None, None), scale_names=names, activations="static")
    assert tensor.casts_activations and not blocks.casts_activations
    assert parse({"quant_method": "fp8"}).layout_of(Q).activations == "by token"


def test_lists_of_names_cover_modules_whole_and_what_is_in_them() -> None:
    names = ModuleList(["layers.1", "mlp.up", "lm_head", "re:model.layers.2[0-9].mlp"])
    assert names.covers(Q) and names.covers("lm_head") and names.covers("model.layers.23.mlp.down_proj")
    assert not names.covers(UP) and not names.covers("model.layers.23.self_attn.q_proj")


def packed(bits: int, size: int | None, symmetric: bool = True, ordered: bool = False) -> IntegerLayout:
    return IntegerLayout(bits=bits, group_size=size, one_scale=False, symmetric=symmetric, ordered=ordered, packed=True)


def test_compressed_tensors_by_class_by_pattern_and_by_name() -> None:
    config = parse(
        groups(
            "pack-quantized",
            scheme("int", 4, "group", group_size=32),
            scheme("int", 8, "channel", ["re:.*self_attn.*"], symmetric=False),
            scheme("int", 4, "group", [Q], group_size=16, actorder="group"),
            {"targets": ["re:.*down_proj"], "weights": None},
            ignore=("lm_head", "re:.*layers.3.*", UP),
        )
    )
    assert config.layout_of("model.layers.0.mlp.up_proj") == packed(4, 32)
    assert config.layout_of("model.layers.0.self_attn.k_proj") == packed(8, None, symmetric=False)
    assert config.layout_of(Q) == packed(4, 16, ordered=True)
    unquantized = ("lm_head", "model.layers.3.mlp.up_proj", UP, "model.layers.0.mlp.down_proj")
    assert all(config.layout_of(name) is None for name in unquantized)
    assert config.words == "compressed-tensors, int4 in groups of 16 and int8 per channel and int4 in groups of 32"


@pytest.mark.parametrize(
    ("stored", "said", "layout"),
    [
        ("pack-quantized", {"strategy": None, "group_size": 64, "actorder": "weight"}, packed(4, 64)),
        ("pack-quantized", {"strategy": "channel", "group_size": None, "actorder": False}, packed(4, None)),
        ("float-quantized", {"type": "float", "num_bits": 8, "strategy": "tensor"}, (None, None)),
        ("float-quantized", {"type": "FLOAT", "num_bits": 8, "strategy": "channel"}, (1, None)),
        ("naive-quantized", {"type": "float", "num_bits": 8, "strategy": "group", "group_size": 128}, (1, 128)),
        (
            "float-quantized",
            {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 64]},
            (128, 64),
        ),
        (
            "float-quantized",
            {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": "128x128"},
            (128, 128),
        ),
    ],
)
def test_schemes_of_compressed_tensors(stored: str, said: dict[str, Any], layout: Any) -> None:
    weights = {"type": "int", "num_bits": 4, "symmetric": True, "dynamic": False} | said
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    found = parse(groups(stored, group)).layout_of(Q)
    assert found == (
        layout if isinstance(layout, IntegerLayout) else Float8Layout(block=layout, scale_names=("weight_scale",))
    )


@pytest.mark.parametrize(
    ("strategy", "said", "activations"),
    [
        ("tensor", STATIC, "static"),
        ("channel", STATIC, "static"),
        ("channel", {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True}, "by token"),
        ("channel", {"type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": True}, "by token"),
        ("channel", {"type": "float", "num_bits": 8, "strategy": "group", "dynamic": True}, "as they are"),
        ("channel", {"type": "float", "num_bits": 4, "strategy": "token", "dynamic": True}, "as they are"),
        ("channel", STATIC | {"symmetric": False}, "as they are"),
        ("channel", STATIC | {"dynamic": "local"}, "as they are"),
        ("channel", DYNAMIC, "as they are"),
        ("channel", None, "as they are"),
        ("block", STATIC, "as they are"),
    ],
)
def test_how_float8_linears_of_compressed_tensors_read_their_inputs(strategy: str, said: Any, activations: str) -> None:
    config = parse(groups("float-quantized", scheme("float", 8, strategy, inputs=said, block_structure=[32, 32])))
    assert config.layout_of(Q).activations == activations
    assert config.casts_activations == (activations != "as they are")


def test_integer_activations_are_left_as_they_are() -> None:
    assert not parse(groups("int-quantized", scheme("int", 8, "channel", inputs=DYNAMIC))).casts_activations


def test_bytes_of_compressed_tensors_and_the_format_of_each_group() -> None:
    int8 = scheme("int", 8, "tensor", ["re:.*up_proj"], format="int-quantized", inputs=DYNAMIC)
    float8 = scheme("float", 8, "channel", format="float-quantized")
    config = parse(groups("mixed-precision", int8, float8, ignore=()), "compression_config")
    assert (config.layout_of(UP).packed, config.layout_of(UP).one_scale) == (False, True)
    assert config.layout_of("lm_head").block == (1, None)


def test_the_scheme_of_the_cache_is_kept_for_later() -> None:
    config = parse(groups("pack-quantized", scheme("int", 4, "channel"), kv_cache_scheme=STATIC))
    assert config.kv_cache == KvCacheScheme("float", 8, "tensor", dynamic=False)
    assert parse(groups("pack-quantized", scheme("int", 4, "channel"))).kv_cache is None
    alone = groups("dense", kv_cache_scheme=STATIC)
    assert parse(alone).words == parse(alone | {"config_groups": None}).words == "compressed-tensors, weights as floats"


def test_anything_that_is_said_tells_configs_apart() -> None:
    one, other = ({"quant_method": "awq", "group_size": 16} | more for more in ({}, {"modules_to_not_convert": ["x"]}))
    assert parse(one).identity == parse(dict(reversed(one.items()))).identity != parse(other).identity


@pytest.mark.parametrize(
    "method",
    [
        "bitsandbytes",
        "hqq",
        "aqlm",
        "exl2",
        "marlin",
        "torchao",
        "quark",
        "modelopt",
        "fbgemm_fp8",
        "auto-round",
    ],
)
def test_other_methods_are_refused_by_name_with_what_is_accepted(method: str) -> None:
    words = (
        f"not accepted: quant_method '{method}'.*Accepted: awq .*gptq .*compressed-tensors .*fp8 .*Take a checkpoint"
    )
    with pytest.raises(ValueError, match=words):
        parse({"quant_method": method})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"bits": 4}, "quant_method 'unknown'"),
        ({"quant_method": "awq", "version": "gemv"}, "awq version 'gemv'"),
        ({"quant_method": "awq", "backend": "llm-awq"}, "awq version 'llm-awq'"),
        ({"quant_method": "awq", "bits": 3}, "awq with 3 bits"),
        ({"quant_method": "awq", "bits": "4"}, "bits of the quantization in config.json must be an integer, got '4'"),
        ({"quant_method": "awq", "group_size": 0}, "group_size .* must be positive or -1, got 0"),
        ({"quant_method": "awq", "modules_to_not_convert": "lm_head"}, "must be a list of names, got 'lm_head'"),
        ({"quant_method": "gptq", "bits": 3}, "gptq with 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {".*down.*": {"bits": 3}}}, "gptq with 3 bits"),
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "dynamic": {"+:.*up.*": {"adapter": {}, "bits": 8, "pack_dtype": "int8"}},
            },
            r"gptq with adapter, pack_dtype for single modules \(dynamic, '\+:\.\*up\.\*'\)",
        ),
        ({"quant_method": "gptq", "bits": 4, "dynamic": ["-:.*down.*"]}, "dynamic .* must be an object"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {".*down.*": 8}}, "must be an object, got 8"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(a+)+b": {}}}, "repeats a group"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "gptq in the marlin format"),
        ({"quant_method": "gptq", "bits": 4, "pack_dtype": "int16"}, "pack_dtype 'int16'"),
        ({"quant_method": "gptq", "bits": 4, "sym": "yes"}, "sym .* must be true or false, got 'yes'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 with fmt 'e5m2'"),
        ({"quant_method": "fp8", "activation_scheme": "group"}, "fp8 with activation_scheme 'group'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"two positive integers, got \[128\]"),
        ({"quant_method": "fp8", "modules_to_convert": ["embed"]}, "fp8 with modules_to_convert"),
        ([4], "must be an object, got list"),
        ({"config_groups": ["W4A16"]}, "config_groups .* must be an object of schemes"),
        (
            groups("int-quantized", {"targets": ["Linear"], "weights": "int8"}),
            "weights .* must be an object, got 'int8'",
        ),
        (groups("int-quantized", sparsity_config="2:4"), "sparsity_config .* must be an object, got '2:4'"),
        (groups("int-quantized", transform_config=["u"]), r"transform_config .* must be an object, got \['u'\]"),
        (groups("marlin-24", scheme("int", 4, "channel")), "compressed-tensors format 'marlin-24'"),
        (groups("nvfp4-pack-quantized", scheme("float", 4, "tensor_group")), "format 'nvfp4-pack-quantized'"),
        (groups("mxfp4-pack-quantized", scheme("float", 4, "group")), "format 'mxfp4-pack-quantized'"),
        (groups("mixed-precision", scheme("int", 4, "channel")), r"format 'mixed-precision' \(group_0\)"),
        (groups("pack-quantized", scheme("int", 2, "channel")), "pack-quantized with int2 weights"),
        (groups("pack-quantized", scheme("float", 8, "channel")), "pack-quantized with float8 weights"),
        (groups("float-quantized", scheme("int", 8, "channel")), "float-quantized with int8 weights"),
        (groups("int-quantized", scheme("int", 8, "block")), "int8 weights .* by block"),
        (groups("float-quantized", scheme("float", 8, "token")), "float8 weights .* by token"),
        (groups("pack-quantized", scheme("int", 4, "channel", dynamic=True)), "and dynamic scales"),
        (groups("pack-quantized", scheme("int", 4, "channel", actorder="random")), "and actorder 'random'"),
        (groups("pack-quantized", scheme("int", 4, "group")), "strategy group .* needs a positive group_size, got 0"),
        (groups("float-quantized", scheme("float", 8, "channel", symmetric=False)), "and zero points"),
        (groups("float-quantized", scheme("float", 8, "block")), "block_structure .* two positive integers, got None"),
        (groups("pack-quantized", sparsity_config={"format": "sparse-24-bitmask"}), "sparsity 'sparse-24-bitmask'"),
        (groups("pack-quantized", transform_config={"config_groups": {"u": {}}}), "with transforms"),
        *(
            (groups("pack-quantized", scheme("int", 4, "channel", targets=["Linear", it])), "quantized embeddings")
            for it in ("Embedding", "model.embed_tokens", "re:.*embed.*")
        ),
        (groups("pack-quantized", kv_cache_scheme="fp8"), "kv_cache_scheme .* must be an object, got 'fp8'"),
        (groups("pack-quantized", ignore=("re:(a+)+b",)), "repeats a group or has more than 6 repetitions"),
        (groups("pack-quantized", ignore=("re:" + ".*x" * 7,)), "repeats a group or has more than 6 repetitions"),
        (groups("pack-quantized", ignore=("re:[",)), r"'re:\[' .* is no pattern"),
        (groups("pack-quantized", ignore=("x" * 600,)), "is longer than 512"),
        (groups("pack-quantized", ignore=("x",) * 17_000), "lists 17000 names"),
    ],
)
def test_what_is_not_accepted_is_named(said: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(said)


def test_embeddings_that_are_ignored_are_no_objection() -> None:
    both = scheme("int", 4, "channel", targets=["Linear", "Embedding"])
    for ignored in ("Embedding", "model.embed_tokens", "re:.*embed.*"):
        assert parse(groups("pack-quantized", both, ignore=(ignored,))).layout_of(Q) == packed(4, None)


def test_empty_sections_that_tools_write_are_no_objection() -> None:
    said = groups("pack-quantized", scheme("int", 4, "channel"), sparsity_config={}, transform_config={})
    assert parse(said).layout_of(Q) == packed(4, None)
    dense = groups("pack-quantized", scheme("int", 4, "channel"), sparsity_config={"format": "dense"})
    assert parse(dense).layout_of(Q) == packed(4, None)


def test_configs_are_read_without_torch() -> None:
    program = (
        "import sys, loraplex.quant.config.config, loraplex.engine.model.config; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
