"""Static scales in the whole engine: those of a checkpoint are used, refused by name, counted for, and part of the keys
of cached prefixes."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from loraplex import LLM, SamplingParams
from loraplex.engine.attention.backend import AttentionBackend
from loraplex.engine.attention.reference import ReferenceAttention
from loraplex.engine.batch import Batch
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.decoder import Decoder
from loraplex.engine.model.decoder_loader import DecoderLoader
from loraplex.engine.model.description.spec import AttentionSpec
from loraplex.engine.model.folder import FOLDED_SCALES
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.startup.kv_cache_size import choose_cache_dtype
from loraplex.engine.startup.scales_file import ScalesFile, read_scales_file, write_scales_file
from loraplex.engine.startup.static_scales import OF_FOLDED, OWN_WORDS, CacheScales, choose_scales, read_scales
from loraplex.engine.status import Clipping
from loraplex.quant.linears.torch_linear import TorchLinear
from loraplex.quant.schemes.selector import SchemeSelector
from tests.checkpoints import make_adapter, make_checkpoint

from ..attention.shapes import alike
from ..test_kv_cache_dtypes import prefix_root

SHAPE: dict[str, Any] = {"head_dim": 32}
PROMPT = [7 + place * 13 % 300 for place in range(50)]
ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
VALUES_PER_TOKEN = 2 * 2 * 2 * 32
LIMITS = [[2.5, 1.5], [3.5, 1.0]]
"""Of keys and of values in each layer: within what they are, so that taking no notice of them would show."""
LARGEST = {"fp8_e4m3": 448.0, "int8": 127.0}
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}


def scale_tensors(kind: str = "fp8_e4m3", heads: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    return {
        f"model.layers.{layer}.self_attn.{part}_scale": torch.full(heads, limit / LARGEST[kind])
        for layer, limits in enumerate(LIMITS)
        for part, limit in zip("kv", limits, strict=True)
    }


def with_scales(folder: Path, tensors: dict[str, torch.Tensor], scheme: dict[str, Any] | None = None) -> Path:
    """The same random model, said to be of compressed-tensors with weights as floats."""
    make_checkpoint(folder, **SHAPE)
    path = folder / "config.json"
    quantization = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}}
    config = json.loads(path.read_text()) | {"quantization_config": quantization | {"kv_cache_scheme": scheme}}
    path.write_text(json.dumps(config))
    save_file(load_file(folder / "model.safetensors") | tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def open_llm(base: Path, kv_cache_dtype: str = "fp8_e4m3", **settings: Any) -> LLM:
    return LLM(
        base, settings.pop("adapters", None), kv_cache_dtype=kv_cache_dtype, kv_cache_memory=1 << 20,
        adapter_memory=8 << 20, num_threads=1, **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_scales(tmp_path_factory.mktemp("scaled"), scale_tensors(), SCHEME)


def choose(base: Path, dtype: str = "fp8_e4m3", asked: str = "auto", file: Path | str = "") -> CacheScales:
    """As the engine does when it starts."""
    model, config = (
        ModelConfig.from_folder(base),
        EngineConfig(model=str(base), kv_cache_scales=asked, kv_scales_file=str(file)),
    )
    cache_dtype = choose_cache_dtype(dtype, torch.float32)
    return choose_scales(config, model, cache_dtype, Checkpoint(base), base_signature(base).fingerprint)


def prompt_logprobs(llm: LLM) -> torch.Tensor:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    [output] = llm.generate(PROMPT, params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    return torch.tensor([next(iter(entry.values())).logprob for entry in output.prompt_logprobs[1:] if entry])


def reference_logprobs(base: Path, static: torch.Tensor | None) -> torch.Tensor:
    """Attention in float64 over keys and values that were stored by these scales and multiplied out again."""
    config, tokens = ModelConfig.from_folder(base), torch.tensor(PROMPT)
    choice = SchemeSelector(
        lambda inputs, outputs: TorchLinear(inputs, outputs, torch.float32), torch.float32, "for a test"
    )
    decoder = DecoderLoader(config, Checkpoint(base), choice, torch.float32).load(64)
    shape = alike((4, 2), 32, [None, None], num_blocks=4, cache_dtype=torch.float8_e4m3fn, static_scales=static)
    cache = ReferenceAttention(shape)
    places, count = torch.arange(len(tokens)), torch.tensor([len(tokens)], dtype=torch.int32)
    starts, table = torch.tensor([0, len(tokens)], dtype=torch.int32), torch.arange(4, dtype=torch.int32)[None]
    with torch.inference_mode():
        logits = decoder.forward(Batch(tokens, places, places, starts, count, table, places), cache)
    return logits[:-1].log_softmax(dim=-1).gather(1, tokens[1:, None])[:, 0]


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).square().mean().sqrt())


def test_scales_of_a_checkpoint_are_used(scaled: Path) -> None:
    static = torch.tensor(LIMITS)[:, :, None].expand(2, 2, 2) / LARGEST["fp8_e4m3"]
    expected, own = reference_logprobs(scaled, static), reference_logprobs(scaled, None)
    with open_llm(scaled) as llm:
        assert llm.info.kv_cache_scales == "static scales of the checkpoint"
        actual, root, blocks = prompt_logprobs(llm), prefix_root(llm), llm.info.num_blocks
        clipping = llm.status().base_clipping
    assert relative(actual, expected) < 0.01 < 0.1 < relative(own, expected)
    assert clipping is not None and clipping.tokens == len(PROMPT)
    assert 0 < clipping.clipped_values < len(PROMPT) * VALUES_PER_TOKEN / 2
    with open_llm(scaled, kv_cache_scales="dynamic") as llm:
        assert llm.info.kv_cache_scales == OWN_WORDS
        assert relative(prompt_logprobs(llm), own) < 0.01
        assert llm.status().base_clipping is None, "nothing can be clipped"
        assert prefix_root(llm) != root, "other numbers would be found"
        assert blocks / llm.info.num_blocks == pytest.approx((32 + 2) / 32, rel=0.02)


def test_other_scales_make_other_prefixes(scaled: Path, tmp_path: Path) -> None:
    """Also where the tensors lie in a file beside the checkpoint, which has the same fingerprint then."""
    roots = set()
    for factor in (1.0, 2.0):
        file = tmp_path / f"{factor}.safetensors"
        tensors = {name: (tensor * factor).expand(2).contiguous() for name, tensor in scale_tensors().items()}
        write_scales_file(file, ScalesFile(tensors, base_signature(scaled).fingerprint, "fp8_e4m3", ("a" * 64,)))
        with open_llm(scaled, kv_scales_file=str(file)) as llm:
            roots.add(prefix_root(llm))
            assert llm.info.kv_cache_scales == f"static scales of {file.name} (calibrated on the base and 1 adapter)"
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            assert llm.info.kv_cache_files == f"fp8_e4m3, scales {digest[:16]}"
    assert len(roots) == 2


@pytest.mark.parametrize(
    ("scheme", "dtype", "words"),
    [
        (SCHEME, "int8", f"{OWN_WORDS}; those of the checkpoint are for fp8_e4m3"),
        (SCHEME, "fp8_e5m2", f"{OWN_WORDS}; those of the checkpoint are for fp8_e4m3"),
        (SCHEME | {"type": "int"}, "fp8_e4m3", f"{OWN_WORDS}; those of the checkpoint are for int8"),
        (SCHEME | {"type": "int"}, "int8", "static scales of the checkpoint"),
        (None, "fp8_e4m3", "static scales of the checkpoint"),
        (SCHEME, "auto", ""),
    ],
)
def test_scales_serve_the_dtype_that_they_were_made_for(
    tmp_path: Path, scheme: dict[str, Any] | None, dtype: str, words: str
) -> None:
    base = with_scales(tmp_path / "base", scale_tensors(heads=(2, 1, 1)), scheme)
    found = choose(base, dtype)
    assert found.words == words and (found.static is not None) == words.startswith("static")
    assert choose(base, dtype, "dynamic").static is None
    if found.static is None:
        with pytest.raises(ValueError, match=r"kv_cache_scales is static, and "):
            choose(base, dtype, "static")
    else:
        assert torch.equal(
            torch.stack(found.static), torch.tensor(LIMITS)[:, :, None].expand(2, 2, 2) / LARGEST["fp8_e4m3"]
        )


NAME = "model.layers.1.self_attn.k_scale"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({NAME: torch.tensor(float("nan"))}, f"{NAME} is [nan], which is no scale"),
        ({NAME: torch.tensor([0.0])}, f"{NAME} is [0.0], which is no scale"),
        ({NAME: torch.tensor(-0.5)}, f"{NAME} is [-0.5], which is no scale"),
        ({NAME: torch.tensor(float("inf"))}, f"{NAME} is [inf], which is no scale"),
        ({NAME: torch.tensor(3e38)}, "a number from 1.2e-38 to 5.9e+33 was expected"),
        ({NAME: torch.tensor([0.5, 1e-39])}, "a number from 1.2e-38 to 5.9e+33 was expected"),
        ({NAME: torch.tensor(1e300, dtype=torch.float64)}, f"{NAME} is [1e+300], which is no scale"),
        ({NAME: torch.tensor(0.5 + 0.5j)}, f"{NAME} is complex64, and a scale is a floating-point number above zero"),
        ({NAME: torch.tensor(True)}, f"{NAME} is bool, and a scale is a floating-point number"),
        ({NAME: torch.tensor([1, 2])}, f"{NAME} is int64, and a scale is a floating-point number"),
        ({NAME: torch.ones(3)}, f"{NAME} is [3] instead of one number or 2, one a KV head"),
        ({NAME: None}, f"{NAME} is missing"),
        ({NAME.replace("scale", "zero_point"): torch.tensor([1.0])}, "k_zero_point is not zero"),
    ],
)
def test_what_cannot_be_a_scale_is_refused_by_name(
    tmp_path: Path, change: dict[str, torch.Tensor | None], words: str
) -> None:
    tensors = {name: value for name, value in (scale_tensors() | change).items() if value is not None}
    base = with_scales(tmp_path / "base", tensors, SCHEME)
    with pytest.raises(ValueError, match=re.escape(words)):
        choose(base)
    assert choose(base, asked="dynamic").words == OWN_WORDS


@pytest.mark.parametrize(
    "names",
    [["kv_scale"], ["k_proj.k_scale", "v_proj.v_scale"], ["k_proj.output_scale", "v_proj.output_scale"]],
    ids=str,
)
def test_other_names_are_read(names: list[str], tmp_path: Path) -> None:
    """One scale for both keys and values, or on the linears that they come from."""
    scale = torch.tensor([0.25], dtype=torch.bfloat16)
    tensors = {f"model.layers.{layer}.self_attn.{name}": scale for layer in range(3) for name in names}
    found = read_scales(tensors, three_layers(tmp_path))
    assert found is not None and torch.equal(torch.stack(found), torch.full((3, 2, 2), 0.25))


def three_layers(folder: Path) -> ModelConfig:
    return ModelConfig.from_folder(make_checkpoint(folder, **SHAPE | {"num_hidden_layers": 3}))


def test_scales_of_layers_that_differ_and_share(tmp_path: Path) -> None:
    """The second layer has other heads, and the third reads the keys of the first."""
    model = three_layers(tmp_path)
    layers, changes = list(model.spec.layers), {1: {"num_kv_heads": 1}, 2: {"keys_of": 0}}
    for number, change in changes.items():
        mixer = layers[number].mixer
        assert isinstance(mixer, AttentionSpec)
        layers[number] = replace(layers[number], mixer=replace(mixer, **change))
    model = replace(model, spec=replace(model.spec, layers=tuple(layers)))
    tensors = {
        "model.layers.0.self_attn.k_scale": torch.tensor([1.0, 2.0]),
        "model.layers.0.self_attn.v_scale": torch.tensor(3.0),
        "model.layers.1.self_attn.k_scale": torch.tensor([4.0]),
        "model.layers.1.self_attn.v_scale": torch.tensor(5.0),
    }
    found = read_scales(tensors, model)
    first = [[1.0, 2.0], [3.0, 3.0]]
    assert found is not None and [scales.tolist() for scales in found] == [first, [[4.0], [5.0]], first]
    del tensors["model.layers.1.self_attn.v_scale"]
    with pytest.raises(ValueError, match=r"model\.layers\.1\.self_attn\.v_scale is missing"):
        read_scales(tensors, model)


def test_scales_of_values_that_awq_folded_are_not_used(tmp_path: Path) -> None:
    base = with_scales(tmp_path / "base", scale_tensors(), SCHEME)
    (base / FOLDED_SCALES).parent.mkdir()
    (base / FOLDED_SCALES).touch()
    found = choose(base)
    assert (found.static, found.words) == (None, f"{OWN_WORDS}; those of the checkpoint are for {OF_FOLDED}")
    with pytest.raises(ValueError, match=r"values that AWQ scaled, .* Make some with: loraplex calibrate-kv"):
        choose(base, asked="static")
    file = tmp_path / "kv_scales.safetensors"
    write_scales_file(file, ScalesFile(scale_tensors(), base_signature(base).fingerprint, "fp8_e4m3", ()))
    assert choose(base, file=file).static is not None


def test_static_without_any_and_unknown_words_are_refused(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", **SHAPE)
    with pytest.raises(ValueError, match=r"neither the checkpoint nor the data folder has any.*calibrate-kv"):
        choose(base, asked="static")
    with pytest.raises(ValueError, match="kv_cache_scales 'fixed' is not supported; use auto, static, dynamic"):
        choose(base, asked="fixed")


def test_a_file_of_another_base_and_a_broken_one_are_refused(tmp_path: Path, scaled: Path) -> None:
    file = tmp_path / "kv_scales.safetensors"
    write_scales_file(file, ScalesFile(scale_tensors(), "f" * 64, "fp8_e4m3", ()))
    assert read_scales_file(file, "f" * 64).adapters == ()
    for remedy in ("were made for another base model", "is not a valid safetensors file", "holds no KV-cache scales"):
        with pytest.raises(ValueError, match=f"{remedy}.*delete it, or use --kv-cache-scales dynamic"):
            choose(scaled, file=file)
        if remedy.startswith("were"):
            file.write_bytes(b"no header")
        else:
            save_file(scale_tensors(), file)
    assert choose(scaled, "auto", file=file).words == "", "nobody reads it"


@pytest.mark.parametrize("parent", ["nowhere", "a file"])
def test_a_file_that_cannot_be_written_is_told_in_words(tmp_path: Path, parent: str) -> None:
    (tmp_path / "a file").touch()
    path = tmp_path / parent / "kv_scales.safetensors"
    with pytest.raises(ValueError, match=r"cannot be written: .*os error"):
        write_scales_file(path, ScalesFile(scale_tensors(), "f" * 64, "fp8_e4m3", ()))


def test_each_adapter_is_counted_by_itself(scaled: Path, tmp_path: Path) -> None:
    """What a mixed batch counts for each is what it counts alone; a sum counts for both."""
    kinds: dict[str, float] = {"weak": 1, "strong": 64}
    adapters = {
        name: make_adapter(
            tmp_path / name, scaled_floats(scaled, tmp_path), rank=4, kinds=("k_proj", "v_proj"), alpha=alpha
        )
        for name, alpha in kinds.items()
    }
    prompts = [PROMPT, PROMPT[:20], PROMPT[5:40], PROMPT[3:20]]
    ways: list[Any] = [None, "weak", "strong", {"weak": 1.0, "strong": 1.0}]
    alone = []
    for prompt, way in zip(prompts, ways, strict=True):
        with open_llm(scaled, adapters=adapters) as llm:
            llm.generate(prompt, ONE_TOKEN, adapter=way, use_tqdm=False)
            alone.append(counts(llm))
    with open_llm(scaled, adapters=adapters) as llm:
        llm.generate(prompts, ONE_TOKEN, adapter=ways, use_tqdm=False)
        steps, together = llm.status().steps, counts(llm)
    assert steps < len(prompts), "they shared one"
    both = alone[3]
    assert both[1] == both[2] and both[0] is None
    assert together[0] == alone[0][0]
    for place in (1, 2):
        parts = [alone[place][place], both[place]]
        assert together[place] == tuple(map(sum, zip(*parts, strict=True)))
    weak, strong = alone[1][1], alone[2][2]
    assert weak[0] == 20 and strong[0] == 35 and strong[2] / 35 > 2 * weak[2] / 20


def scaled_floats(scaled: Path, scratch: Path) -> Path:
    """Its weights without scales, which PEFT opens."""
    folder = scratch / "floats"
    return folder if folder.is_dir() else make_checkpoint(folder, **SHAPE)


def counts(llm: LLM) -> list[Any]:
    """(tokens, clipped tokens, clipped values) of the base and of each adapter; None where it wrote nothing."""
    status = llm.status()
    found: list[Clipping | None] = [status.base_clipping, *(adapter.clipping for adapter in status.adapters)]
    return [one and (one.tokens, one.clipped_tokens, one.clipped_values) for one in found]


def test_layer_by_layer_counts_as_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a token whose keys are normed twice, with the base's weights and then with its adapter's own."""
    floats = make_checkpoint(tmp_path / "floats", "qwen3", **SHAPE)
    adapter = make_adapter(
        tmp_path / "adapter", floats, rank=4, kinds=("q_proj",), modules_to_save=["k_norm", "q_norm"]
    )
    file = tmp_path / "scales.safetensors"
    write_scales_file(file, ScalesFile(scale_tensors(), base_signature(floats).fingerprint, "fp8_e4m3", ()))
    found, decoders, fuse = [], list[Decoder](), Decoder.fuse
    for fused in (True, False):

        def fuse_or_not(decoder: Decoder, cache: AttentionBackend, fused: bool = fused) -> None:
            decoders.append(decoder)
            if fused:
                fuse(decoder, cache)

        monkeypatch.setattr(Decoder, "fuse", fuse_or_not)
        with open_llm(floats, kv_scales_file=str(file), adapters={"normed": adapter}) as llm:
            assert (decoders[-1].fused is not None) == fused
            llm.generate([PROMPT, PROMPT[:9]], SamplingParams(temperature=0.0, max_tokens=3), adapter=["normed", None])
            found.append(counts(llm))
    assert found[0] == found[1] and found[0][1][2] > 0 and found[0][0][2] > 0
