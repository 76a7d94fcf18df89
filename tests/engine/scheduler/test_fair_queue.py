"""The fair queue by itself: order, debts, and what it forgets."""

import itertools
import random
from typing import Any

import pytest

from loraplex.engine.scheduler.fairness import FairQueue
from loraplex.engine.scheduler.sequence import Request, Sequence
from loraplex.engine.scheduler.shares import Share

from ..fake_model import EOS
from ..harness import make_request


class Queue(FairQueue):
    """With requests that it makes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def waiting(self, tenant: str = "t", group: str = "", request: str = "", priority: int = 0) -> Sequence:
        number = next(self.numbers)
        message = make_request(f"r{number}", [1, 2], tenant=tenant, share=(group, request), priority=priority)
        eos = frozenset({EOS})
        made = Request(message, number, 0.0, max_length=9, eos_token_ids=eos, fingerprint="f")
        made.shares = self.open(message)
        self.push(made.sequences[0])
        return made.sequences[0]

    def serve(self, sequence: Sequence, service: int) -> None:
        """Admit it; it gets more service, and waits no more."""
        self.remove(sequence)
        self.admit(sequence.request.shares, 1)
        self.charge(sequence.request.shares, service - 1)

    def end(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.close(sequence.request.shares)


def test_inside_a_tenant_priority_goes_first_then_arrival() -> None:
    queue = Queue()
    first, second, late_urgent = queue.waiting(), queue.waiting(), queue.waiting(priority=-1)
    assert list(queue) == [late_urgent, first, second]
    queue.remove(first)
    assert list(queue) == [late_urgent, second] and len(queue) == 2


@pytest.mark.parametrize("level", ["tenant", "group", "request"])
def test_on_each_level_the_one_with_the_least_service_goes_first(level: str) -> None:
    queue = Queue()
    a, b = queue.waiting(**{level: "a"}), queue.waiting(**{level: "b"})
    queue.charge(a.request.shares, 10)
    assert list(queue) == [b, a]
    queue.charge(b.request.shares, 11)
    assert list(queue) == [a, b]


def test_a_tenants_priority_counts_for_nothing_beside_other_tenants() -> None:
    queue = Queue()
    a, b = queue.waiting("a"), queue.waiting("b", priority=-5)
    assert list(queue) == [a, b]


def test_priorities_go_before_what_groups_and_requests_were_given() -> None:
    queue = Queue()
    urgent, other = queue.waiting(group="a", priority=-1), queue.waiting(group="b")
    queue.charge(urgent.request.shares, 1000)
    assert list(queue) == [urgent, other]


@pytest.mark.parametrize("level", ["tenant", "group", "request"])
def test_idling_earns_no_credit(level: str) -> None:
    queue = Queue()
    busy = queue.waiting(**{level: "busy"})
    queue.charge(busy.request.shares, 1000)
    new = queue.waiting(**{level: "new"})
    assert list(queue) == [busy, new]
    queue.charge(new.request.shares, 1)
    assert list(queue) == [busy, new], "it has more than the other, by the one token"
    queue.charge(busy.request.shares, 2)
    assert list(queue) == [new, busy]


def test_after_a_quiet_moment_nobody_starts_behind_the_last_one_served() -> None:
    queue = Queue()
    busy = queue.waiting("busy")
    queue.serve(busy, 1000)
    new, again = queue.waiting("new"), queue.waiting("busy")
    assert list(queue) == [new, again]
    queue.charge(new.request.shares, 1)
    assert list(queue) == [again, new]


@pytest.mark.parametrize("level", ["tenant", "group"])
def test_debt_is_kept_while_others_wait(level: str) -> None:
    queue = Queue()
    greedy, modest = queue.waiting(**{level: "greedy"}), queue.waiting(**{level: "modest"})
    queue.serve(greedy, 500)
    queue.end(greedy)
    again = queue.waiting(**{level: "greedy"})
    queue.charge(modest.request.shares, 400)
    assert list(queue) == [modest, again]
    queue.charge(modest.request.shares, 200)
    assert list(queue) == [again, modest]


def test_requests_with_one_choice_each_are_served_as_they_came_whatever_was_served_before() -> None:
    source, queue = random.Random(1), Queue()
    waiting: list[Sequence] = []
    for number in range(300):
        if waiting and source.random() < 0.45:
            assert next(iter(queue)) is waiting[0]
            queue.serve(waiting.pop(0), source.randint(1, 50))
        else:
            waiting.append(queue.waiting(request=f"r{number}"))
    assert list(queue) == waiting and len(waiting) > 10


def test_newcomers_that_never_stop_coming_do_not_keep_a_large_request_out() -> None:
    queue = Queue()
    for name in ("first", "second"):
        queue.waiting(request=name)
    large = queue.waiting(request="large")
    queue.charge(large.request.shares, 20)
    for number in range(100):
        queue.waiting(request=f"new{number}")
        served = next(iter(queue))
        if served is large:
            return
        queue.serve(served, 2)
    raise AssertionError("100 others were served, and the large one was not")


def test_what_has_ended_is_forgotten() -> None:
    queue = Queue()
    stays = queue.waiting("t", "k")
    for number in range(1000):
        gone = queue.waiting("t", "k", f"r{number}", priority=number)
        queue.remove(gone)
        queue.end(gone)
    [root, tenant, *_] = stays.request.shares
    assert len(tenant.children) == 1 and len(tenant._heap) < 50
    queue.serve(stays, 10)
    queue.end(stays)
    assert not root.children and not root._heap and len(queue) == 0


@pytest.mark.parametrize("count", [100, 10_000])
def test_the_next_of_thousands_is_found_without_a_look_at_all(count: int) -> None:
    queue = Queue()
    waiting = [queue.waiting(request=f"r{number}") for number in range(count)]
    group = waiting[0].request.shares[-2]
    looks = 0

    class Counted(dict[object, Share]):
        def values(self) -> Any:
            nonlocal looks
            looks += 1
            return super().values()

    group.children = Counted(group.children)
    for sequence in waiting[:50]:
        assert next(iter(queue)) is sequence
        queue.serve(sequence, 5)
    assert looks == 0
