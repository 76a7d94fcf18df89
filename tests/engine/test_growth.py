"""What ended leaves nothing behind: memory stops growing once all that was reserved at the start was written to."""

import gc
import os
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loraplex import LLM, SamplingParams
from loraplex.engine.structured_outputs import StructuredOutputs
from tests.checkpoints import make_adapter, make_checkpoint

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.9, "top_k": 20, "seed": 3},
    {"frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {7: -3.0}},
    {"n": 3, "stop": ["a", "e"]},
    {"logprobs": 3, "prompt_logprobs": 1},
    {"structured_outputs": StructuredOutputs(regex="[a-z]{1,4}")},
]
BATCH = 48


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    base = make_checkpoint(tmp_path_factory.mktemp("base"))
    adapters = {f"a{seed}": make_adapter(tmp_path_factory.mktemp("a"), base, seed=seed) for seed in range(3)}
    with LLM(base, adapters, num_kv_blocks=48, adapter_memory=4 << 20, num_threads=1) as opened:
        yield opened


def serve(llm: LLM, source: random.Random, batches: int) -> None:
    for _ in range(batches):
        prompts = [[source.randrange(3, 300) for _ in range(source.randint(1, 40))] for _ in range(BATCH)]
        params = [SamplingParams(max_tokens=source.randint(1, 6), **source.choice(KINDS)) for _ in range(BATCH)]
        adapters = [source.choice([None, "a0", "a1", "a2"]) for _ in range(BATCH)]
        llm.generate(prompts, params, adapter=adapters, use_tqdm=False)
    gc.collect()


def resident() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_ended_requests_leave_no_objects_and_no_memory(llm: LLM) -> None:
    source = random.Random(0)
    serve(llm, source, 10)
    tracemalloc.start()
    try:
        serve(llm, source, 4)
        objects, traced, size = len(gc.get_objects()), tracemalloc.get_traced_memory()[0], resident()
        serve(llm, source, 12)
        more = len(gc.get_objects()) - objects
        grown = tracemalloc.get_traced_memory()[0] - traced
        print(f"{12 * BATCH} requests: {more} objects, {grown} bytes of Python, {resident() - size} bytes resident")
    finally:
        tracemalloc.stop()
    assert more < 100, "objects of requests that have ended are kept"
    assert grown < 200 * 12 * BATCH, "bytes of requests that have ended are kept"
