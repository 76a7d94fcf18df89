"""One compiled call gives the bits of the decoder layer by layer: logits, keys and values."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex.engine.attention.backend import CacheShape
from loraplex.engine.attention.cpu import CpuAttention
from loraplex.engine.batch import Batch
from loraplex.engine.model.config import ModelConfig, linear_shapes
from loraplex.engine.model.decoder import Decoder
from loraplex.engine.model.decoder_loader import DecoderLoader
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.startup.kv_cache_size import attention_layers
from loraplex.lora.apply.batch import RANKS_PER_PAGE, LoraBatch, PageTable
from loraplex.quant.linears.coded import CodedLinear, coded_form
from loraplex.quant.linears.scaled_input import ScaledInputLinear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.linears.stored_float import StoredFloatLinear
from loraplex.quant.linears.torch_linear import TorchLinear
from loraplex.quant.schemes.selector import SchemeSelector
from loraplex.quant.weights.online import OnlineQuantization
from tests.checkpoints import make_checkpoint
from tests.lora.signatures import KINDS, LINEARS, row_shapes

SLOTS, PAGES = 3, 2
NOT_QUANTIZED = OnlineQuantization()
FITTING: list[tuple[str, torch.dtype, dict[str, Any]]] = [
    ("llama", torch.float32, {"head_dim": 32}),
    ("mistral", torch.float32, {"head_dim": 32, "sliding_window": 7}),
    ("qwen2", torch.float16, {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 448}),
    ("qwen3", torch.bfloat16, {"head_dim": 64, "num_attention_heads": 7, "num_key_value_heads": 1}),
]


def load(
    folder: Path,
    stored: torch.dtype,
    scheme: Any = StoredFloatLinear,
    cache: torch.dtype | None = None,
    online: OnlineQuantization = NOT_QUANTIZED,
) -> tuple[Decoder, CpuAttention]:
    config = ModelConfig.from_folder(folder)

    def create(inputs: int, outputs: tuple[int, ...]) -> LinearMethod:
        made: LinearMethod = scheme(inputs, outputs, stored)
        return made

    def create_coded(_form: Hashable, inputs: int, outputs: tuple[int, ...]) -> LinearMethod:
        return CodedLinear(inputs, outputs)

    choice = SchemeSelector(create, torch.float32, "for a test", create_coded=create_coded, form=coded_form)
    decoder = DecoderLoader(config, Checkpoint(folder), choice, stored, online).load(128)
    layers = attention_layers(config)
    shape = CacheShape(layers=layers, num_blocks=16, block_size=16, cache_dtype=cache or stored)
    return decoder, CpuAttention(shape)


def page_table(folder: Path, dtype: torch.dtype) -> PageTable:
    """Random adapters of ranks 16, 8 and 3 in slots 0, 1 and 2, the first and the last with vectors on some linears."""
    config = ModelConfig.from_folder(folder)
    shapes, layers = linear_shapes(config.spec.layers[0]), config.num_layers
    sizes = {kind: layers * RANKS_PER_PAGE * sum(shapes[kind]) for kind in LINEARS}
    offset, used = torch.zeros(SLOTS, len(KINDS), PAGES, dtype=torch.int64), 0
    for slot in range(SLOTS):
        for index, kind in enumerate(LINEARS):
            for page in range(PAGES):
                offset[slot, index, page], used = used, used + sizes[kind]
    rank = torch.tensor([16, 8, 3], dtype=torch.int32)[:, None, None].repeat(1, len(KINDS), layers)
    rank[2, ::2] = 0
    vector_pages = [(slot, index) for slot in (0, 2) for index in range(1, len(LINEARS), 2)]
    widths = [layers * 2 * shapes[LINEARS[index]][1] for _, index in vector_pages]
    ranks, vectors = (torch.randn(used) * 0.1).to(dtype), torch.rand(sum(widths))
    arena = torch.cat([ranks, vectors.view(dtype)])
    table = PageTable(arena, offset, rank, torch.rand(SLOTS, len(KINDS), layers), row_shapes(shapes))
    starts = [
        (len(arena) - len(vectors.view(dtype))) * arena.itemsize // 4 + sum(widths[:i]) for i in range(len(widths))
    ]
    for (slot, index), start in zip(vector_pages, starts, strict=True):
        table.vectors[slot, index] = start
    return table


def batch(counts: list[int], lengths: list[int], table: PageTable | None, slots: list[int]) -> Batch:
    """Sequences in blocks of their own, each with `counts` new tokens at the end of `lengths`."""
    spans = [torch.arange(length - count, length) for count, length in zip(counts, lengths, strict=True)]
    owners = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    blocks = torch.arange(len(counts) * 4, dtype=torch.int32).view(len(counts), 4)
    positions = torch.cat(spans)
    lora = table and LoraBatch.build(table, torch.tensor(slots, dtype=torch.int32)[owners], torch.ones(len(owners)))
    return Batch(
        token_ids=torch.randint(3, 300, positions.shape),
        positions=positions,
        slot_mapping=blocks[owners, positions // 16].long() * 16 + positions % 16,
        query_starts=torch.tensor([0, *counts]).cumsum(0).to(torch.int32),
        context_lengths=torch.tensor(lengths, dtype=torch.int32),
        block_tables=blocks,
        sample_rows=torch.tensor([0, sum(counts) - 1]),
        lora=lora,
    )


@pytest.mark.parametrize(("family", "stored", "overrides"), FITTING)
def test_same_bits(tmp_path: Path, family: str, stored: torch.dtype, overrides: dict[str, Any]) -> None:
    compare_steps(tmp_path, family, stored, overrides, stored)


def test_same_bits_with_everything_quantized(tmp_path: Path) -> None:
    """Linears of 4 bits, some with scaled inputs, a head of 8 bits, keys and values of 8 bits."""
    compare_steps(tmp_path, *FITTING[0], torch.float8_e4m3fn, OnlineQuantization("int4", "int8"))


def compare_steps(
    tmp_path: Path,
    family: str,
    stored: torch.dtype,
    overrides: dict[str, Any],
    cache_dtype: torch.dtype,
    online: OnlineQuantization = NOT_QUANTIZED,
) -> None:
    torch.manual_seed(0)
    folder = make_checkpoint(tmp_path, family, **overrides)
    table = page_table(folder, stored)
    steps = [
        batch([40, 30, 2], [40, 30, 2], table, [0, 2, -1]),
        batch([20, 9, 5], [20, 9, 5], None, [0, 0, 0]),
        batch([1, 13, 1], [21, 22, 6], table, [0, -1, 2]),
        batch([1, 1, 1], [22, 23, 7], table, [1, 0, -1]),
        batch([1], [23], None, [0]),
    ]
    outputs = []
    for fused in (False, True):
        decoder, cache = load(folder, stored, cache=cache_dtype, online=online)
        for layer in decoder.layers if online != NOT_QUANTIZED else []:
            output = layer.mixer.linears()[1]
            output.method = ScaledInputLinear(output.method, torch.linspace(0.5, 2, output.method.in_features))
        if fused:
            decoder.fuse(cache)
            assert decoder.fused is not None
        with torch.inference_mode():
            logits = [decoder.forward(step, cache) for step in steps]
        outputs.append((torch.cat(logits), cache.arguments(steps[-1]).key.copy(), cache.arguments(steps[-1]).value))
    for apart, together in zip(*outputs, strict=True):
        assert (apart == together).all()


def test_what_does_not_fit_keeps_to_its_layers(tmp_path: Path) -> None:
    narrow = make_checkpoint(tmp_path / "narrow", "llama", head_dim=16)
    other = make_checkpoint(tmp_path / "other", "llama", head_dim=32)
    for folder, scheme in ((narrow, StoredFloatLinear), (other, TorchLinear)):
        decoder, cache = load(folder, torch.float32, scheme)
        decoder.fuse(cache)
        assert decoder.fused is None
