from pathlib import Path

import pytest
import torch

from loraplex.engine.config import EngineConfig
from loraplex.engine.device.device import free_memory
from loraplex.engine.model.config import ModelConfig, parse_config
from loraplex.engine.startup.kv_cache_size import (
    EIGHT_BITS,
    MOST_BYTES,
    KvCachePlan,
    block_bytes,
    blocks_of,
    cache_dtype_name,
    choose_cache_dtype,
    plan_kv_cache,
)

RAW = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
MODEL: ModelConfig = parse_config(RAW, {})
PER_BLOCK = 2 * 3 * 16 * 2 * 16 * 2
GIB = 1 << 30


def plan(free: int = 64 * GIB, max_model_len: int = 128, **settings: int) -> int:
    return plan_kv_cache(EngineConfig(model="m", **settings), MODEL, max_model_len, torch.bfloat16, free).num_blocks  # type: ignore[arg-type]


def test_a_block_holds_keys_and_values_of_its_tokens_in_every_layer() -> None:
    assert block_bytes(MODEL, 16, torch.bfloat16) == PER_BLOCK
    assert [blocks_of(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_number_of_blocks_wins_over_a_budget() -> None:
    assert plan(num_kv_blocks=7, kv_cache_memory=1 << 30) == 7
    assert plan(kv_cache_memory=10 * PER_BLOCK + 1) == 10


def test_without_a_budget_it_takes_a_share_capped_by_use_and_by_size() -> None:
    assert plan(max_num_seqs=4) == 4 * 128 // 16 + 1
    assert plan(free=100 * PER_BLOCK) == 50
    assert plan(max_model_len=1 << 30) == MOST_BYTES // PER_BLOCK


def test_a_budget_without_room_for_two_blocks_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=rf"2 blocks of 16 tokens, {PER_BLOCK:,} bytes each, and has room for 1"):
        plan(kv_cache_memory=2 * PER_BLOCK - 1)


HYBRID = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "max_position_embeddings": 128,
}
SLOT = 6 * 4 * (4 * 16 * 32 + 3 * (2 * 2 * 16 + 4 * 32))
"""Bytes of six layers' states: [4, 16, 32], and three inputs of 192 channels."""


def plan_hybrid(free: int = 64 * GIB, **settings: int) -> KvCachePlan:
    config = EngineConfig(model="m", **settings)  # type: ignore[arg-type]
    return plan_kv_cache(config, parse_config(HYBRID, {}), 128, torch.bfloat16, free)


def test_states_and_blocks_share_one_budget() -> None:
    per_block = 2 * 2 * 16 * 2 * 16 * 2
    plenty = plan_hybrid(max_num_seqs=4)
    assert (plenty.num_slots, plenty.num_states, plenty.state_bytes) == (9, 8, 9 * SLOT)
    assert plenty.num_blocks == 4 * 128 // 16 + 1
    scarce = plan_hybrid(max_num_seqs=64, kv_cache_memory=20 * SLOT)
    assert (scarce.num_slots, scarce.num_blocks) == (10, 10 * SLOT // per_block)
    exact = plan_hybrid(num_state_slots=3, kv_cache_memory=20 * SLOT)
    assert (exact.num_slots, exact.num_blocks) == (3, 17 * SLOT // per_block)
    assert plan_hybrid(num_state_slots=3, num_kv_blocks=7).num_blocks == 7


def test_a_budget_without_room_for_a_state_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        ValueError, match=rf"need 2 slots, {SLOT:,} bytes each, .* has room for 1; raise kv_cache_memory"
    ):
        plan_hybrid(kv_cache_memory=4 * SLOT - 1)


def test_a_model_without_recurrent_layers_has_no_states() -> None:
    assert plan_kv_cache(EngineConfig(model="m"), MODEL, 128, torch.bfloat16, GIB).num_states == 0


@pytest.mark.parametrize(("head_dim", "ratio"), [(64, 1.9), (128, 1.96)])
@pytest.mark.parametrize("name", EIGHT_BITS)
def test_eight_bits_hold_nearly_twice_the_tokens_of_bfloat16(name: str, head_dim: int, ratio: float) -> None:
    model, dtype = parse_config(RAW | {"head_dim": head_dim}, {}), choose_cache_dtype(name, torch.float32)
    config = EngineConfig(model="m", kv_cache_memory=1 << 30)
    wide, short = (plan_kv_cache(config, model, 128, found, GIB) for found in (torch.bfloat16, dtype))
    assert ratio <= short.num_usable / wide.num_usable <= 2
    assert short.bfloat16_blocks == pytest.approx(wide.num_blocks, abs=1)
    assert wide.bfloat16_blocks == wide.num_blocks


def test_static_scales_take_no_room_in_blocks() -> None:
    own, static = (block_bytes(MODEL, 16, torch.int8, static_scales) for static_scales in (False, True))
    assert static == PER_BLOCK / 2 and own == static * (16 + 2) / 16
    config = EngineConfig(model="m", kv_cache_memory=100 * own)
    assert plan_kv_cache(config, MODEL, 128, torch.int8, GIB, static_scales=True).num_blocks == 112
    assert plan_kv_cache(config, MODEL, 128, torch.int8, GIB).num_blocks == 100


def test_the_dtype_of_the_cache_is_chosen_by_name() -> None:
    assert choose_cache_dtype("auto", torch.float16) is torch.float16
    assert [cache_dtype_name(choose_cache_dtype(name, torch.float16)) for name in EIGHT_BITS] == list(EIGHT_BITS)
    assert cache_dtype_name(torch.bfloat16) == "bfloat16"
    with pytest.raises(ValueError, match=r"kv_cache_dtype 'fp8' is not supported; use auto, fp8_e4m3, fp8_e5m2, int8"):
        choose_cache_dtype("fp8", torch.float16)


def test_free_memory_respects_a_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemAvailable:   600 kB\n")
    assert free_memory(meminfo, tmp_path) == 600 * 1024
    (tmp_path / "memory.current").write_text("100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(meminfo, tmp_path) == 600 * 1024
    (tmp_path / "memory.max").write_text("300000\n")
    assert free_memory(meminfo, tmp_path) == 200_000
