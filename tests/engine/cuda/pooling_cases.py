"""Embeddings on CUDA's path, in batches with requests that generate: those of the CPU."""

from pathlib import Path

import pytest
import torch

from loraplex import SamplingParams
from tests.checkpoints import make_adapter, make_checkpoint
from tests.engine.cuda_engine import TINY, cuda, open_llm
from tests.engine.pooling.modules_file import write_modules
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

__all__ = ["cuda", "one_patch_a_module", "poisoned_memory", "rounding"]
PROMPTS = [[4, 5, 6], [7], [3 + place for place in range(50)], [12, 13] * 9]
NAMES: list[str | None] = [None, "one", "one", None]


@pytest.mark.parametrize("mode", ["mean_tokens", "lasttoken", "cls_token"])
def test_embeddings_are_those_of_the_cpu(mode: str, cuda: None, tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", "qwen2", num_hidden_layers=2, **TINY)
    write_modules(base, mode, normalized=True)
    adapters = {"one": make_adapter(tmp_path / "one", base, rank=8, modules_to_save=["norm"])}
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with open_llm(base, adapters, device="cpu") as llm:
        expected = [output.outputs.embedding for output in llm.embed(PROMPTS, adapter=NAMES, use_tqdm=False)]
        texts = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, greedy, use_tqdm=False)]
    with open_llm(base, adapters) as llm:
        engine = llm.llm_engine
        assert engine.info.pooling is not None
        pooling, pooled, generating = engine.info.pooling.pooling(), [], []
        for prompt, name in zip(PROMPTS, NAMES, strict=True):
            generating.append(engine.requests.make(engine.next_id(), prompt, greedy))
            pooled.append(engine.requests.make_pooled(engine.next_id(), prompt, pooling, adapter=name))
            engine.start(generating[-1])
            engine.start(pooled[-1])
        while engine.has_unfinished_requests():
            engine.advance()
    assert [collector.output().outputs[0].token_ids for collector in generating] == texts
    for collector, vector in zip(pooled, expected, strict=True):
        assert torch.allclose(collector.output().outputs.data, torch.tensor(vector), atol=1e-4)
