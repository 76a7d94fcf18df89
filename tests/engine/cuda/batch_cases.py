"""Batches on CUDA's path against transformers and peft, and against the CPU: mixed, captured, drawn, constrained."""

import re
from pathlib import Path
from typing import Any

import pytest

from loraplex import SamplingParams
from loraplex.engine.runner.step_sizes import finest_sizes
from loraplex.engine.startup import cuda_warmup
from loraplex.engine.structured_outputs import StructuredOutputs
from tests.engine.cuda_engine import cuda, open_llm
from tests.engine.recorded_graph import RecordedGraph
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .requests import LENGTHS, NAMES, NEW_TOKENS, adapters, base, on_both, prompts, run, tokens, told, with_peft

__all__ = ["adapters", "base", "cuda", "one_patch_a_module", "poisoned_memory", "prompts", "rounding"]
pytestmark = pytest.mark.usefixtures("cuda")

WARM_UP = cuda_warmup.warm_up_cuda


def test_a_mixed_batch_equals_transformers_and_peft(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    """The base and two adapters of different ranks, chunks of prompts beside decodes, and all of it again from the
    prefix cache. Decodes are captured by fewer sequences with shorter contexts than they are replayed for."""
    expected = with_peft(base, adapters, prompts, NAMES)
    with open_llm(base, adapters) as llm:
        assert llm.info.compute == "cuda kernels on cpu, float32 weights, float32 arithmetic"
        assert tokens(run(llm, prompts, NAMES)) == expected
        captured = RecordedGraph.captured
        again = run(llm, prompts, NAMES)
        status = llm.status()
        assert status.device_seconds is not None and 0 < status.device_seconds < status.step_seconds
    assert tokens(again) == expected
    assert [output.num_cached_tokens for output in again] == [(length - 1) // 16 * 16 for length in LENGTHS]
    assert captured > 0 and RecordedGraph.replayed > 0


def test_what_was_captured_at_the_start_replays_for_all_that_comes(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warm-up knows one adapter without ranks and contexts of one token."""
    monkeypatch.setattr(cuda_warmup, "warm_up_cuda", WARM_UP)
    names, prompts = ("rank12", "rank8"), [prompts[0], prompts[3]]
    with open_llm(base, adapters, max_num_seqs=2, max_num_batched_tokens=4) as llm:
        captured = RecordedGraph.captured
        assert captured == finest_sizes(2, 4).captured
        runner: Any = llm.llm_engine.engine.core._in_flight._runner
        assert runner.graphs.serves, "memory that runs out in a capture costs no step from now on"
        outputs = run(llm, prompts, names)
    assert tokens(outputs) == with_peft(base, adapters, prompts, names)
    assert RecordedGraph.captured == captured and RecordedGraph.replayed >= NEW_TOKENS - 1


def test_draws_and_log_probabilities_are_the_cpus(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    shared = {"max_tokens": 3, "ignore_eos": True}
    params = [
        SamplingParams(temperature=0.8, top_p=0.9, seed=1, n=2, logprobs=2, **shared),
        SamplingParams(temperature=1.2, top_k=9, seed=2, frequency_penalty=0.5, **shared),
        SamplingParams(temperature=0.0, prompt_logprobs=1, logit_bias={5: 3.0}, **shared),
        SamplingParams(temperature=0.7, min_p=0.02, seed=3, min_tokens=3, stop_token_ids=[9], **shared),
    ]
    one, other = [run(llm, prompts, NAMES, params) for llm in on_both(base, adapters)]
    assert tokens(other) == tokens(one)
    assert told(other) == pytest.approx(told(one), abs=1e-4)


def test_constrained_answers_are_the_cpus_and_their_neighbours_are_left_alone(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    """Steps overlap: a constrained choice waits for its last token, the others do not."""
    form = StructuredOutputs(regex="[a-z]{2}[0-9]{2}")
    params = [
        SamplingParams(temperature=0.0, max_tokens=9, structured_outputs=form),
        SamplingParams(
            temperature=1.0, seed=4, max_tokens=9, logprobs=1, presence_penalty=0.3, structured_outputs=form
        ),
        SamplingParams(temperature=1.0, seed=5, max_tokens=6, ignore_eos=True),
        SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True),
    ]
    one, other = [run(llm, prompts, NAMES, params) for llm in on_both(base, adapters)]
    assert tokens(other) == tokens(one)
    # Random prompts may end within a character, which then comes first.
    assert all(re.search("[a-z]{2}[0-9]{2}$", output.outputs[0].text) for output in other[:2])
    with open_llm(base, adapters) as alone:
        assert tokens(run(alone, prompts[2:], NAMES[2:], params[2:])) == tokens(other[2:])
