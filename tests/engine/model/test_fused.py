"""One compiled call gives the bits of the decoder layer by layer: logits, hidden states, keys and values."""

import json
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Glm4Config,
    Glm4MoeConfig,
    GlmConfig,
    GPT2Config,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    Ministral3Config,
    MinistralConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoeConfig,
    OPTConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)
from transformers.models.gemma4_unified import Gemma4UnifiedTextConfig

from loraplex.engine.attention.backend import AttentionBackend, CacheShape, Rotary
from loraplex.engine.attention.bidirectional import EncoderAttention
from loraplex.engine.attention.cpu import CpuAttention, cpu_attention
from loraplex.engine.batch import Batch, StateSlots
from loraplex.engine.delta_net.cpu import CpuDeltaNet
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.decoder import Decoder, TokenInputs
from loraplex.engine.model.decoder_loader import DecoderLoader
from loraplex.engine.model.description.spec import Activation
from loraplex.engine.model.families.find import architectures
from loraplex.engine.model.fused.decoder import fuse
from loraplex.engine.model.layers import Attention, DeltaNet, TokenInput
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.startup.kv_cache_size import attention_layers, state_layers
from loraplex.lora.apply.batch import RANKS_PER_PAGE, Extras, LoraBatch, PageTable, ordinals_of
from loraplex.lora.files.manifest import EMBEDDING
from loraplex.quant.linears.coded import CodedLinear, coded_form
from loraplex.quant.linears.scaled_input import ScaledInputLinear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.linears.stored_float import StoredFloatLinear
from loraplex.quant.linears.torch_linear import TorchLinear
from loraplex.quant.schemes.selector import SchemeSelector
from loraplex.quant.weights.online import OnlineQuantization
from tests.checkpoints import SMALL, make_checkpoint
from tests.engine.model.families.parity import make_base

SLOTS, PAGES = 3, 2
NOT_QUANTIZED = OnlineQuantization()
TINY = {"vocab_size": 320, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
GROUPED: dict[str, Any] = {"num_attention_heads": 7, "num_key_value_heads": 1}
HEADS: dict[str, Any] = SMALL | {"head_dim": 32}
LLAMA = LlamaConfig(**HEADS)
OPT: dict[str, Any] = TINY | {
    "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "word_embed_proj_dim": 64,
    "max_position_embeddings": 64,
}  # fmt: skip
LOCAL: dict[str, Any] = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "original_max_position_embeddings": 16}
LONGROPE: dict[str, Any] = {
    "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.2] * 8, "long_factor": [1.0, 3.0] * 8},
    "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": 30,
}
GRANITE = {
    "embedding_multiplier": 0.6, "attention_multiplier": 0.11, "residual_multiplier": 0.9, "logits_scaling": 2.5,
}  # fmt: skip
GRANITE_4: dict[str, Any] = {
    "num_local_experts": 0, "shared_intermediate_size": 96, "layer_types": ["attention"] * 2, "mamba_n_heads": 4,
}  # fmt: skip
RECURRENT: dict[str, Any] = SMALL | {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3, "head_dim": 128,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 48,
}  # fmt: skip
FITTING: list[tuple[str, PretrainedConfig, torch.dtype]] = [
    ("Llama", LLAMA, torch.float32),
    ("SmolLM3", SmolLM3Config(**HEADS, no_rope_layer_interval=2), torch.float32),
    ("Mistral", MistralConfig(**HEADS, sliding_window=7), torch.float32),
    ("Ministral", MinistralConfig(**HEADS, **LOCAL), torch.float32),
    ("Ministral3", Ministral3Config(**HEADS, rope_parameters=YARN | {"llama_4_scaling_beta": 0.4}), torch.float32),
    ("Qwen2", Qwen2Config(**(SMALL | GROUPED | {"hidden_size": 448})), torch.float16),
    ("Qwen3", Qwen3Config(**(SMALL | GROUPED | {"head_dim": 64})), torch.bfloat16),
    ("Phi3", Phi3Config(**(SMALL | {"num_attention_heads": 2, "sliding_window": 9})), torch.float32),
    ("Phi3", Phi3Config(**(SMALL | {"hidden_size": 128, "num_attention_heads": 2}), **LONGROPE), torch.float32),
    ("Granite", GraniteConfig(**(SMALL | GRANITE | {"num_attention_heads": 2}), mlp_bias=True), torch.float32),
    (
        "GraniteMoeHybrid",
        GraniteMoeHybridConfig(**(SMALL | GRANITE | GRANITE_4), position_embedding_type="nope"),
        torch.bfloat16,
    ),
    ("Olmo2", Olmo2Config(**(SMALL | {"num_attention_heads": 2}), attention_bias=True), torch.float32),
    (
        "Olmo3",
        Olmo3Config(**(SMALL | LOCAL | {"num_attention_heads": 2}), rope_scaling=YARN | {"attention_factor": 1.2}),
        torch.float32,
    ),
    ("Glm", GlmConfig(**HEADS), torch.float32),
    ("Glm4", Glm4Config(**HEADS, attention_bias=True), torch.bfloat16),
    ("Gemma2", Gemma2Config(**HEADS, **LOCAL, attn_logit_softcapping=5.0, final_logit_softcapping=3.0), torch.float32),
    ("Gemma3", Gemma3TextConfig(**HEADS, **LOCAL, rope_parameters=ROPES), torch.float32),
    ("Qwen3_5", Qwen3_5TextConfig(**RECURRENT), torch.float32),
    ("OPT", OPTConfig(**OPT), torch.float32),
    ("OPT", OPTConfig(**OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 32}), torch.float32),
    ("GPT2", GPT2Config(**TINY, n_embd=64, n_layer=2, n_head=2, n_positions=64), torch.float32),
]
"""A row or more for each name of a family that the compiled step takes."""
SIZES: dict[str, Any] = HEADS | LOCAL
LEFT: dict[str, PretrainedConfig] = {
    "Gemma4": Gemma4TextConfig(**SIZES, global_head_dim=64, num_kv_shared_layers=0),
    "Gemma4Unified": Gemma4UnifiedTextConfig(**SIZES, global_head_dim=32, attention_k_eq_v=True),
    "Mixtral": MixtralConfig(**HEADS, num_local_experts=4),
    "Qwen2Moe": Qwen2MoeConfig(**HEADS, num_experts=4, decoder_sparse_step=2),
    "Qwen3Moe": Qwen3MoeConfig(**HEADS, num_experts=4, num_experts_per_tok=2),
    "Glm4Moe": Glm4MoeConfig(**HEADS, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1),
    "GptOss": GptOssConfig(**HEADS, num_local_experts=4),
    "Olmoe": OlmoeConfig(**SMALL, num_experts=4, num_experts_per_tok=2),
    "Qwen3_5Moe": Qwen3_5MoeTextConfig(**RECURRENT, num_experts=4, num_experts_per_tok=2),
}
"""Families that keep to their layers: heads of two sizes and inputs of each layer, values that are keys, experts."""
ENCODERS = {"Bert", "Roberta", "XLMRoberta", "Camembert", "ModernBert"}
"""They have no cache that the step could be compiled over."""
Prepare = Callable[[Decoder], None]


def load(
    folder: Path,
    stored: torch.dtype,
    scheme: Any = StoredFloatLinear,
    cache: torch.dtype | None = None,
    online: OnlineQuantization = NOT_QUANTIZED,
) -> tuple[Decoder, AttentionBackend]:
    config = ModelConfig.from_folder(folder)

    def create(inputs: int, outputs: tuple[int, ...]) -> LinearMethod:
        made: LinearMethod = scheme(inputs, outputs, stored)
        return made

    def create_coded(_form: Hashable, inputs: int, outputs: tuple[int, ...]) -> LinearMethod:
        return CodedLinear(inputs, outputs)

    choice = SchemeSelector(create, torch.float32, "for a test", create_coded=create_coded, form=coded_form)
    decoder = DecoderLoader(config, Checkpoint(folder, config.spec), choice, stored, online).load(64)
    layers = attention_layers(config)
    shape = CacheShape(layers=layers, num_blocks=16, block_size=16, cache_dtype=cache or stored)
    recurrent = state_layers(config)
    decoder.attach_states(CpuDeltaNet(recurrent[0], len(recurrent), SLOTS + 1) if recurrent else None)
    return decoder, cpu_attention(shape)


def page_table(folder: Path, dtype: torch.dtype) -> PageTable:
    """Random adapters of ranks 16, 8 and 3 in slots 0, 1 and 2: the first and the last with vectors on some linears and
    norms of their own, the second with embeddings of its own."""
    base = base_signature(folder)
    shapes, modules, layers = base.shapes(), base.modules, base.num_layers
    linears = [kind for kind in base.linears if modules[kind].layers is not None]
    norms = [kind for kind, module in modules.items() if module.role == "norm"]
    offset, used = torch.zeros(SLOTS, len(shapes), PAGES, dtype=torch.int64), 0
    rank = torch.zeros(SLOTS, len(shapes), layers, dtype=torch.int32)
    rows = {kind: row for row, kind in enumerate(shapes)}
    for slot in range(SLOTS):
        for kind in linears:
            rank[slot, rows[kind]] = (16, 8, 0 if linears.index(kind) % 2 == 0 else 3)[slot]
            for page in range(PAGES):
                offset[slot, rows[kind], page] = used
                used += layers * RANKS_PER_PAGE * sum(shapes[kind])
    pages = [(slot, kind) for slot in (0, 2) for kind in linears[1::2]]
    pages += [*((0, kind) for kind in norms), *((2, kind) for kind in norms[::2]), (1, EMBEDDING)]
    widths = [modules[kind].count * 2 * shapes[kind][1] for _, kind in pages]
    ranks, vectors = (torch.randn(used) * 0.1).to(dtype), torch.rand(sum(widths))
    table = PageTable(
        torch.cat([ranks, vectors.view(dtype)]),
        offset,
        rank,
        torch.rand(SLOTS, len(shapes), layers),
        shapes,
        ordinals_of(base),
    )
    first = len(ranks) * ranks.itemsize // 4
    for (slot, kind), width in zip(pages, widths, strict=True):
        table.vectors[slot, rows[kind]], first = first, first + width
    for slot, kinds in enumerate((norms, [EMBEDDING], norms[::2])):
        table.extras[slot] = Extras(frozenset(kinds), {}, base.vocab_size, has_vectors=slot != 1)
    return table


def batch(counts: list[int], lengths: list[int], table: PageTable | None, slots: list[int]) -> Batch:
    """Sequences in blocks of their own, each with `counts` new tokens at the end of `lengths`. The last one's state
    after its first new token is kept in the slot SLOTS."""
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
        states=StateSlots(
            slots=torch.arange(len(counts), dtype=torch.int32),
            kept_starts=torch.tensor([0] * len(counts) + [1], dtype=torch.int32),
            kept_tokens=torch.tensor([sum(counts[:-1])], dtype=torch.int32),
            kept_slots=torch.tensor([SLOTS], dtype=torch.int32),
        ),
    )


@pytest.mark.parametrize(("name", "config", "stored"), FITTING, ids=[name for name, _, _ in FITTING])
def test_same_bits(tmp_path: Path, name: str, config: PretrainedConfig, stored: torch.dtype) -> None:
    compare_steps(tmp_path, config, stored, stored)
    assert architectures()[ModelConfig.from_folder(tmp_path).architecture].name == name


@pytest.mark.parametrize("name", LEFT)
def test_families_that_keep_to_their_layers(tmp_path: Path, name: str) -> None:
    decoder, cache = load(make_base(tmp_path, LEFT[name]), torch.float32)
    decoder.fuse(cache)
    assert decoder.fused is None
    assert architectures()[ModelConfig.from_folder(tmp_path).architecture].name == name


def test_every_family_is_said_to_fit_or_not() -> None:
    assert {found.name for found in architectures().values()} == {name for name, _, _ in FITTING} | set(LEFT) | ENCODERS


@pytest.mark.parametrize("config", [LLAMA, Qwen3_5TextConfig(**RECURRENT)], ids=["dense", "recurrent"])
def test_same_bits_with_everything_quantized(tmp_path: Path, config: PretrainedConfig) -> None:
    """Linears of 4 bits, some with scaled inputs, a head of 8 bits, keys and values of 8 bits."""
    online = OnlineQuantization("int4", "int8")
    compare_steps(tmp_path, config, torch.float32, torch.float8_e4m3fn, online, scale_inputs)


def test_same_bits_of_what_a_description_can_say(tmp_path: Path) -> None:
    """Layers that differ, and all that a layer, an embedding and a head may have."""
    compare_steps(tmp_path, Qwen3Config(**(SMALL | {"head_dim": 32})), torch.float32, torch.float32, prepare=vary)


def test_same_bits_without_a_head(tmp_path: Path) -> None:
    """As of a decoder that makes embeddings."""
    config = Gemma3TextConfig(**HEADS, **LOCAL, rope_parameters=ROPES)
    compare_steps(tmp_path, config, torch.float32, torch.float32, prepare=leave_out_head)


def test_a_decoder_that_looks_ahead_keeps_to_its_layers(tmp_path: Path) -> None:
    """EmbeddingGemma, which has no cache."""
    folder = make_base(tmp_path, Gemma3TextConfig(**HEADS, **LOCAL, use_bidirectional_attention=True))
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"architectures": ["Gemma3TextModel"]}))
    decoder, _ = load(folder, torch.float32)
    layers = attention_layers(ModelConfig.from_folder(folder))
    assert len(layers) == 2 and fuse(decoder, EncoderAttention(layers)) is None


def leave_out_head(decoder: Decoder) -> None:
    decoder.head = None


def scale_inputs(decoder: Decoder) -> None:
    for layer in decoder.layers:
        output = layer.mixer.linears()[1]
        output.method = ScaledInputLinear(output.method, torch.linspace(0.5, 2, output.method.in_features))


def vary(decoder: Decoder) -> None:
    (first, second), head = decoder.layers, decoder.head
    assert head is not None
    decoder.embedding.scale, head.scale, head.soft_cap = 8.5, 0.3, 5.0
    for layer, activation, eps in ((first, "gelu_tanh", 1e-3), (second, "relu", 1e-2)):
        assert isinstance(layer.mixer, Attention) and layer.mixer_norm and layer.feed_forward_norm
        layer.feed_forward.activation = cast("Activation", activation)
        layer.mixer_output_norm = replace(layer.mixer_norm, weight=torch.linspace(0.5, 2, 64), eps=eps)
        layer.feed_forward_output_norm = replace(layer.feed_forward_norm, bias=torch.linspace(-1, 1, 64))
        layer.residual_scale = eps * 100
    first.norms_follow_sum = True
    assert isinstance(first.mixer, Attention) and isinstance(second.mixer, Attention)
    rotary = second.mixer.rotary
    assert rotary.cos is not None and rotary.sin is not None
    partly = (table[:, :8].contiguous() for table in (rotary.cos, rotary.sin))
    first.mixer.rotary = replace(rotary, cos=None, sin=None, eps=1e-3, value_norm=True)
    second.mixer.rotary = Rotary(
        *partly, rotary.query_norm, rotary.key_norm, 1e-2, interleaved=True, query_scale=torch.linspace(0.5, 2, 64)
    )
    second.mixer_norm = None


def compare_steps(
    tmp_path: Path,
    config: PretrainedConfig,
    stored: torch.dtype,
    cache_dtype: torch.dtype,
    online: OnlineQuantization = NOT_QUANTIZED,
    prepare: Prepare = lambda decoder: None,
) -> None:
    torch.manual_seed(0)
    folder = make_base(tmp_path, config)
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
        assert isinstance(cache, CpuAttention)
        prepare(decoder)
        if fused:
            decoder.fuse(cache)
            assert decoder.fused is not None
        with torch.inference_mode():
            found = [run(decoder, step, cache) for step in steps]
        written = cache.arguments(steps[-1])
        outputs.append(
            (
                *(torch.cat(parts) for parts in zip(*found, strict=True)),
                written.key.copy(),
                written.value,
                *states(decoder),
            )
        )
    for apart, together in zip(*outputs, strict=True):
        assert (apart == together).all()


def states(decoder: Decoder) -> list[torch.Tensor]:
    """What recurrent layers keep, in all slots."""
    mixers = [layer.mixer for layer in decoder.layers if isinstance(layer.mixer, DeltaNet)]
    kept = [(mixer.states, mixer.place, slot) for mixer in mixers for slot in range(SLOTS + 1)]
    return [part for owner, place, slot in kept if isinstance(owner, CpuDeltaNet) for part in owner.state(place, slot)]


def run(decoder: Decoder, step: Batch, cache: CpuAttention) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the hidden states of all tokens."""
    logits, ends = decoder.forward_with_ends(step, cache)
    return logits, decoder.hidden(*ends, torch.arange(len(step.token_ids)), step)


def test_what_does_not_fit_keeps_to_its_layers(tmp_path: Path) -> None:
    narrow = make_checkpoint(tmp_path / "narrow", "llama", head_dim=16)
    other = make_checkpoint(tmp_path / "other", "llama", head_dim=32)
    for folder, scheme in ((narrow, StoredFloatLinear), (other, TorchLinear)):
        decoder, cache = load(folder, torch.float32, scheme)
        decoder.fuse(cache)
        assert decoder.fused is None
    heads = Qwen3_5TextConfig(**RECURRENT | {"linear_key_head_dim": 24})
    decoder, cache = load(make_base(tmp_path, heads), torch.float32)
    decoder.fuse(cache)
    assert decoder.fused is None


def test_what_the_kernels_lack_keeps_a_decoder_to_its_layers(tmp_path: Path) -> None:
    decoder, cache = load(make_checkpoint(tmp_path, "qwen3", head_dim=32), torch.float32)
    layer, norm = decoder.layers[0], decoder.norm
    attention = layer.mixer
    assert isinstance(attention, Attention) and norm is not None
    projection = attention.output
    lacking = [
        (attention, {"keys_that_are_values": 64}),
        (attention, {"sinks": torch.zeros(4)}),
        (attention, {"rotary": replace(attention.rotary, query_norm=None)}),
        (layer, {"scale": torch.ones(1)}),
        (layer, {"token_input": TokenInput(projection, projection, norm, decoder.operations, "relu")}),
        (layer.feed_forward, {"activation": "gelu"}),
        (decoder.embedding, {"dtype": torch.bfloat16}),
        (decoder, {"token_inputs": TokenInputs(norm.weight, 1.0, projection, 1.0, norm.weight, 1e-6, 1.0)}),
    ]
    for part, change in lacking:
        assert fuse(decoder, cache) is not None
        before = {name: getattr(part, name) for name in change}
        for name, value in change.items():
            setattr(part, name, value)
        assert fuse(decoder, cache) is None, change
        for name, value in before.items():
            setattr(part, name, value)
