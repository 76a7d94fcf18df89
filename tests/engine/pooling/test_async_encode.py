"""AsyncLLM.encode: the vectors of LLM.embed, beside streams of text, from the engine's own process."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM, AsyncEngineArgs, AsyncLLM, LoRARequest, PoolingParams, SamplingParams
from tests.checkpoints import make_adapter, make_checkpoint

SETTINGS: dict[str, Any] = {"num_kv_blocks": 64, "adapter_memory": 4 << 20, "num_threads": 1}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


async def encoded(engine: AsyncLLM, prompt: Any, name: str, **asked: Any) -> torch.Tensor:
    params = asked.pop("params", PoolingParams())
    outputs = [output async for output in engine.encode(prompt, params, name, **asked)]
    assert len(outputs) == 1 and outputs[0].request_id == name and outputs[0].finished
    return outputs[0].outputs.data


async def said(engine: AsyncLLM, prompt: str, name: str) -> list[int]:
    outputs = [output async for output in engine.generate(prompt, GREEDY, name)]
    return outputs[-1].outputs[0].token_ids


async def test_it_is_what_the_llm_says(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    adapter = make_adapter(tmp_path / "adapter", base)
    with LLM(base, {"mine": adapter}, **SETTINGS) as llm:
        expected = [out.outputs.embedding for out in llm.embed(["one two", "one two"], adapter=[None, "mine"])]
        text = llm.generate("a text", GREEDY)[0].outputs[0].token_ids
    async with AsyncLLM(AsyncEngineArgs(base, **SETTINGS), {"mine": adapter}) as engine:
        request = LoRARequest("mine", 1, str(adapter))
        vectors = await asyncio.gather(
            encoded(engine, "one two", "a"),
            encoded(engine, "one two", "b", adapter="mine"),
            encoded(engine, {"prompt": "one two"}, "c", lora_request=request),
        )
        told, short = await asyncio.gather(
            said(engine, "a text", "d"), encoded(engine, "one two", "e", params=PoolingParams(dimensions=8))
        )
        for vector, number in zip(vectors, (0, 1, 1), strict=True):
            assert torch.allclose(vector, torch.tensor(expected[number]), atol=1e-6)
        assert told == text and short.shape == (8,) and float(short.norm()) == pytest.approx(1.0)
        with pytest.raises(ValueError, match="the prompt has 300 tokens, but it may have 256"):
            await encoded(engine, [5] * 300, "f")
        with pytest.raises(ValueError, match="between 1 and 64"):
            await encoded(engine, "a", "g", params=PoolingParams(dimensions=65))
        assert not engine._live
