"""The whole engine on a CUDA device."""

from pathlib import Path

import pytest
import torch

from loraplex import LLM, SamplingParams
from tests.checkpoints import make_adapter, make_checkpoint

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
SETTINGS = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 64, "num_kv_blocks": 65}


def test_nothing_but_events_is_waited_for_while_adapters_load_and_requests_run(tmp_path: Path) -> None:
    """Of what torch knows to wait for the device: copies that block, and numbers that are asked for."""
    base = make_checkpoint(tmp_path / "base", "qwen2", dtype=torch.bfloat16)
    ends = {"kinds": ("embed_tokens", "lm_head", "v_proj"), "use_dora": True}
    adapters = {
        "plain": make_adapter(tmp_path / "plain", base, rank=8),
        "dora": make_adapter(tmp_path / "dora", base, rank=4, use_dora=True, bias="all"),
        "ends": make_adapter(tmp_path / "ends", base, rank=4, **ends),
    }
    params = [
        SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, prompt_logprobs=1),
        SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=12, ignore_eos=True, logprobs=2),
        SamplingParams(seed=2, max_tokens=12, ignore_eos=True, presence_penalty=0.5, logit_bias={5: 2.0}),
        SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
    ]
    with LLM(base, adapters, device="cuda", dtype="bfloat16", kv_cache_dtype="fp8_e4m3", **SETTINGS) as llm:
        llm.status()
        torch.cuda.set_sync_debug_mode("error")
        try:
            outputs = llm.generate([[7, 8, 9] * 30] * 4, params, adapter=[None, *adapters], use_tqdm=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert [len(output.outputs[0].token_ids) for output in outputs] == [12] * 4
