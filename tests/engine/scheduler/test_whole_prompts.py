"""Prompts that are not split, of a model that stores nothing: they start in their order, as many as fit in a step."""

from typing import Any

import numpy as np
import pytest

from loraplex.engine.kv_cache.block_pool import BlockPool
from loraplex.engine.pooling.wanted import Pooling, PoolingKind
from loraplex.engine.protocol import GenerateRequest
from loraplex.engine.sampling.state import Sampled
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.scheduler.admission import Limits
from loraplex.engine.scheduler.plan import StepResult
from loraplex.engine.scheduler.scheduler import Scheduler

from ..fake_adapters import FakeAdapters


def make_scheduler() -> Scheduler:
    limits = Limits(
        vocab_size=100,
        max_model_len=32,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_queue=100,
        eos_token_ids=frozenset(),
        fingerprint="base",
        enable_prefix_caching=False,
        splits_prompts=False,
        makes_logits=False,
        why_silent="this model makes embeddings",
    )
    return Scheduler(limits, BlockPool(1, 16), FakeAdapters())


def add(scheduler: Scheduler, name: str, tokens: int, **fields: Any) -> None:
    asked = {"pooling": Pooling(kind=PoolingKind.MEAN), "params": SamplingParams()} | fields
    scheduler.add(GenerateRequest(request_id=name, prompt_token_ids=[1] * tokens, **asked))


def test_steps_have_whole_prompts_in_their_order() -> None:
    scheduler, steps = make_scheduler(), list[list[tuple[str, int]]]()
    for number, tokens in enumerate([20, 32, 1, 12, 20, 5, 1, 1, 1, 1]):
        add(scheduler, str(number), tokens)
    while scheduler.has_work():
        plan = scheduler.schedule()
        assert all(item.start == 0 and item.count == item.sequence.prompt_length for item in plan.scheduled)
        assert not any(item.sequence.blocks or item.sample for item in plan.scheduled)
        steps.append([(item.sequence.request.id, item.count) for item in plan.scheduled])
        hidden = {index: np.full(4, float(item.count)) for index, item in enumerate(plan.scheduled)}
        scheduler.commit(plan, StepResult(Sampled([], [], []), pooled=hidden))
    assert [name for step in steps for name, _ in step] == [str(number) for number in range(10)]
    assert steps[0] == [("0", 20)] and steps[1] == [("1", 32)] and all(len(step) <= 4 for step in steps)
    assert scheduler.request_table.check_integrity() == []


@pytest.mark.parametrize(
    ("tokens", "fields", "words"),
    [
        (33, {}, "the prompt has 33 tokens, but it may have 32"),
        (5, {"pooling": None, "params": SamplingParams(max_tokens=1)}, "this model makes embeddings"),
        (
            5,
            {"pooling": None, "params": SamplingParams(max_tokens=0, prompt_logprobs=0)},
            "this model makes embeddings",
        ),
    ],
)
def test_what_can_never_run_is_refused(tokens: int, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        add(make_scheduler(), "a", tokens, **fields)
