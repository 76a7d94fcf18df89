"""What static scales clip, told apart by adapter, and what becomes of numbers that cannot be stored."""

import dataclasses

import numpy as np
import pytest
import torch

from loraplex.engine.protocol import AdapterRef
from loraplex.engine.runner.clipping import BASE, ClippingTotals, count_clipped
from loraplex.engine.runner.steps import Ended
from loraplex.engine.scheduler.plan import Scheduled, StepPlan
from loraplex.engine.status import AdapterStatus, Clipping

from ..harness import Harness, make_request, tokens
from .test_runner import sequence


def item(start: int, count: int, *starts: int) -> Scheduled:
    """Adapter number n acts from position starts[n] on."""
    made = sequence(list(range(40)), [1], *(AdapterRef(f"d{number}") for number in range(len(starts))))
    made.request.starts = starts
    return Scheduled(made, start, count, sample=False)


def test_tokens_count_for_what_acts_on_them() -> None:
    scheduled = [item(0, 6), item(3, 5, 5), item(9, 1, 2), item(4, 8, 0, 10), item(0, 3, 7)]
    total = sum(one.count for one in scheduled)
    clipped = torch.from_numpy(np.random.default_rng(1).integers(0, 3, (4, total)) * (np.arange(total) % 3 > 0))
    found, unusable = count_clipped(clipped, scheduled)
    numbers = clipped.numpy().sum(axis=0)
    owners: dict[str, list[int]] = {BASE: [], "d0": [], "d1": []}
    place = 0
    for one in scheduled:
        for position in range(one.start, one.start + one.count):
            acting = [number for number, start in enumerate(one.sequence.request.starts) if start <= position]
            for digest in [f"d{number}" for number in acting] or [BASE]:
                owners[digest].append(place)
            place += 1
    expected = {
        digest: Clipping(
            tokens=len(places),
            clipped_tokens=int((numbers[places] > 0).sum()),
            clipped_values=int(numbers[places].sum()),
        )
        for digest, places in owners.items()
    }
    assert found == expected and not unusable
    assert expected[BASE].tokens == 6 + 2 + 3 and all(one.clipped_values for one in expected.values())


def test_a_number_that_is_none_is_no_clipped_one() -> None:
    scheduled = [item(0, 2), item(0, 3), item(0, 2)]
    clipped = torch.tensor([[0, 1, 2, 0, 0, 3, 0], [0, 0, 2, -(1 << 40), 0, 0, 0]])
    found, unusable = count_clipped(clipped, scheduled)
    assert unusable == {1}
    assert found == {BASE: Clipping(tokens=7, clipped_tokens=3, clipped_values=8)}


def test_a_scale_of_its_own_counts_nothing() -> None:
    assert count_clipped(None, [item(0, 2)]) == ({}, frozenset())


def test_totals_are_those_of_registered_adapters() -> None:
    totals = ClippingTotals()
    for _ in range(2):
        totals.add({BASE: Clipping(tokens=3), "a": Clipping(tokens=5, clipped_tokens=2, clipped_values=7)})
    a, b = AdapterStatus(digest="a", state="resident"), AdapterStatus(digest="b", state="resident")
    assert totals.tell([a, b]) == Clipping(tokens=6)
    assert a.clipping == Clipping(tokens=10, clipped_tokens=4, clipped_values=14) and b.clipping is None
    assert totals.tell([b]) == Clipping(tokens=6)
    totals.tell([a])
    assert a.clipping is None, "registered anew, it begins anew"


def test_a_request_whose_keys_are_no_numbers_fails_alone_and_leaves_no_prefix(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of its prompt, where nothing is sampled that would tell."""
    submit = harness.runner.submit

    def poisoned(plan: StepPlan) -> Ended:
        places = [place for place, item in enumerate(plan.scheduled) if item.sequence.request.id == "bad"]
        assert not any(plan.scheduled[place].sample for place in places)
        return Ended(dataclasses.replace(submit(plan).result(), unusable=frozenset(places)))

    bad = harness.add(make_request("bad", tokens(60)))
    good = harness.add(make_request("good", tokens(3, 1)))
    with monkeypatch.context() as patch:
        patch.setattr(harness.runner, "submit", poisoned)
        harness.step()
    assert bad.failure is not None and bad.failure.kind == "internal" and "no finite numbers" in bad.failure.message
    harness.drain()
    assert good.failure is None
    again = harness.add(make_request("again", tokens(60)))
    harness.drain()
    assert again.messages[0].cached_tokens == 0
    harness.assert_released()
