import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from loraplex.engine.attention.backend import CacheShape
from loraplex.engine.attention.reference import ReferenceAttention
from loraplex.engine.batch import Batch
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.decoder import Decoder
from loraplex.engine.model.decoder_loader import DecoderLoader
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.startup.kv_cache_size import attention_layers
from loraplex.quant.linears.torch_linear import TorchLinear
from loraplex.quant.schemes.selector import SchemeSelector
from tests.checkpoints import make_checkpoint, reference_model

LENGTH = 50
IDS = torch.arange(3, 3 + LENGTH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "qwen3")


@pytest.fixture(scope="module")
def expected(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = reference_model(folder)(input_ids=IDS[None]).logits[0]
    return logits


def load(folder: Path, stored: torch.dtype, compute: torch.dtype) -> Decoder:
    scheme = SchemeSelector(lambda inputs, outputs: TorchLinear(inputs, outputs, compute), compute, "for a test")
    return DecoderLoader(ModelConfig.from_folder(folder), Checkpoint(folder), scheme, stored).load(64)


def attention(folder: Path) -> ReferenceAttention:
    config = ModelConfig.from_folder(folder)
    layers = attention_layers(config)
    shape = CacheShape(layers=layers, num_blocks=4, block_size=16, cache_dtype=torch.float32)
    return ReferenceAttention(shape)


def batch(rows: list[int]) -> Batch:
    index = torch.arange(LENGTH)
    starts, length = torch.tensor([0, LENGTH], dtype=torch.int32), torch.tensor([LENGTH], dtype=torch.int32)
    blocks = torch.arange(4, dtype=torch.int32)[None]
    return Batch(IDS, index, index, starts, length, blocks, torch.tensor(rows, dtype=torch.int64))


def run(folder: Path, rows: list[int], stored: torch.dtype, compute: torch.dtype) -> torch.Tensor:
    with torch.inference_mode():
        return load(folder, stored, compute).forward(batch(rows), attention(folder))


def test_logits_are_those_of_the_rows_asked_for(folder: Path, expected: torch.Tensor) -> None:
    logits = run(folder, [7, 49, 0], torch.float32, torch.float32)
    assert (logits - expected[[7, 49, 0]]).abs().max() < 1e-4
    assert run(folder, [], torch.float32, torch.float32).shape == (0, expected.shape[1])


def test_a_step_that_draws_all_its_tokens_takes_them_where_they_are(folder: Path, expected: torch.Tensor) -> None:
    decoder, every = load(folder, torch.float32, torch.float32), batch(list(range(LENGTH)))
    with torch.inference_mode():
        logits, (_, residual) = decoder.forward_with_ends(every, attention(folder))
        kept = residual.clone()
        again, (_, residual) = decoder.forward_with_ends(replace(every, draws_all=True), attention(folder))
    assert torch.equal(logits, again) and (logits - expected).abs().max() < 1e-4
    assert not torch.equal(residual, kept), "the last norm has worked in place"


def test_rounding_the_weights_is_all_that_a_short_stored_dtype_does(folder: Path) -> None:
    model = reference_model(folder).to(torch.bfloat16).to(torch.float32)
    model.model.rotary_emb = reference_model(folder).model.rotary_emb
    with torch.inference_mode():
        rounded = model(input_ids=IDS[None]).logits[0]
    assert (run(folder, list(range(LENGTH)), torch.bfloat16, torch.float32) - rounded).abs().max() < 1e-4


def test_short_arithmetic_is_close_and_logits_are_float32(folder: Path, expected: torch.Tensor) -> None:
    logits = run(folder, list(range(LENGTH)), torch.bfloat16, torch.bfloat16)
    assert logits.dtype == torch.float32
    error = (logits - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()
    assert 1e-4 < error < 0.03


def test_the_bytes_are_those_of_the_weights(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    names = [name for name in checkpoint if "norm" not in name]
    assert load(folder, torch.float32, torch.float32).weight_bytes() == sum(checkpoint.tensor(n).nbytes for n in names)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.0.self_attn.k_norm.weight",
        "model.layers.1.self_attn.v_proj.weight",
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 7e4])
def test_values_that_make_every_answer_none_are_refused(folder: Path, tmp_path: Path, name: str, value: float) -> None:
    shutil.copytree(folder, tmp_path / "spoiled")
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[5] = value
    save_file(tensors, tmp_path / "spoiled" / "model.safetensors")
    if value == 7e4:
        load(tmp_path / "spoiled", torch.bfloat16, torch.float32)
        words = f"^{name} holds numbers up to 70000, and float16 ends at 65504; choose the dtype bfloat16$"
    else:
        words = rf"^{name} holds NaN or infinity in 1 of {tensors[name].numel()} places; repair the checkpoint$"
    with pytest.raises(ValueError, match=words):
        load(tmp_path / "spoiled", torch.float16, torch.float32)
