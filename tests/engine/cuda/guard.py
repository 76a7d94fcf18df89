"""What a step may not touch is no number while it runs, and the same no number behind it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from loraplex.engine.runner.cuda_runner import CudaRunner
from loraplex.engine.scheduler.plan import StepPlan
from loraplex.lora.residency.pool import AdapterPool

NOTHING = 0xFF
"""Of each byte: NaN in every format of floats."""


def guard_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on: keys, values, scales and states of all but the step's own sequences, the padding's among them, are
    hidden from each step, which must leave them so; of its own blocks it writes its new tokens' places alone, and of
    adapters, unless some are loaded meanwhile, nothing. In the list: bytes that were hidden, step by step."""
    submit, hidden = CudaRunner.submit, list[int]()

    def guarded(runner: CudaRunner, plan: StepPlan) -> Any:
        memories = [(part, _used_blocks(plan)) for part in _blocks(runner)]
        memories += [(part, _used_states(plan)) for part in _states(runner)]
        others = [~torch.isin(torch.arange(len(part)), torch.tensor([*used])) for part, used in memories]
        saved = [part[unused] for (part, _), unused in zip(memories, others, strict=True)]
        for (part, _), unused in zip(memories, others, strict=True):
            part[unused] = NOTHING
        own, table, pool = _written_elsewhere(runner, plan), runner.adapters.table, runner.adapters
        assert isinstance(pool, AdapterPool)
        is_quiet = not pool.loading()
        adapters = [bits(part).clone() for part in (table.arena, table.offset, table.rank, table.scaling)]
        handle = submit(runner, plan)
        for (part, _), unused, kept in zip(memories, others, saved, strict=True):
            assert part[unused].eq(NOTHING).all(), "a step wrote what is another's"
            part[unused] = kept
        assert plan.copies or _written_elsewhere(runner, plan) == own, "a step wrote a token that is not new"
        tensors = (table.arena, table.offset, table.rank, table.scaling)
        assert not is_quiet or all(torch.equal(bits(part), was) for part, was in zip(tensors, adapters, strict=True))
        hidden.append(sum(kept.numel() for kept in saved))
        return handle

    monkeypatch.setattr(CudaRunner, "submit", guarded)
    return hidden


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def _blocks(runner: Any) -> Iterator[torch.Tensor]:
    """[N, L, G, block size, bytes], views."""
    for cache in getattr(runner.cache, "_groups", [runner.cache]):
        for part in (cache._key, cache._value, cache._scales):
            if part.numel():
                yield bits(part).transpose(0, 1)


def _states(runner: Any) -> Iterator[torch.Tensor]:
    if runner.states is not None:
        yield bits(runner.states._conv).transpose(0, 1)
        yield bits(runner.states._recurrent).transpose(0, 1)


def _used_blocks(plan: StepPlan) -> set[int]:
    own = {block for item in plan.scheduled for block in item.sequence.blocks}
    return own | {block for pair in plan.copies for block in pair}


def _used_states(plan: StepPlan) -> set[int]:
    own = {item.sequence.state for item in plan.scheduled if item.sequence.state is not None}
    kept = {kept.slot for item in plan.scheduled for kept in item.kept}
    return own | kept | {slot for pair in plan.state_copies for slot in pair}


def _written_elsewhere(runner: Any, plan: StepPlan) -> list[bytes]:
    """All of the step's own blocks but the places of its new tokens."""
    found = []
    for part in _blocks(runner):
        rest, size = part.clone(), part.shape[3]
        for item in plan.scheduled:
            for position in range(item.start, item.start + item.count):
                rest[item.sequence.blocks[position // size], :, :, position % size] = 0
        found.append(rest[sorted(_used_blocks(plan))].numpy().tobytes())
    return found
