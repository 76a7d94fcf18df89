import itertools
import random

import pytest

from loraplex.engine.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT, FairQueue
from loraplex.engine.sequence import Request, Sequence

from .fake_model import EOS, VOCAB
from .harness import Harness, make_request

NUMBERS = itertools.count()


def waiting(tenant: str, priority: int = 0) -> Sequence:
    message = make_request("r", [1, 2], tenant=tenant, priority=priority)
    request = Request(message, next(NUMBERS), 0.0, max_length=9, eos_token_ids=frozenset({EOS}), fingerprint="f")
    return request.sequences[0]


def test_inside_a_tenant_priority_goes_first_then_arrival() -> None:
    queue = FairQueue()
    late_urgent, first, second = waiting("a", -1), waiting("a"), waiting("a")
    for sequence in (second, first, late_urgent):
        queue.push(sequence)
    assert list(queue) == [late_urgent, first, second]
    queue.remove(first)
    assert list(queue) == [late_urgent, second] and len(queue) == 2


def test_the_tenant_with_the_least_service_goes_first() -> None:
    queue = FairQueue()
    a, b = waiting("a"), waiting("b", 5)
    queue.push(a)
    queue.push(b)
    queue.charge("a", 10)
    assert list(queue) == [b, a]
    queue.charge("b", 11)
    assert list(queue) == [a, b]


def test_idling_earns_no_credit() -> None:
    queue = FairQueue()
    queue.push(waiting("busy"))
    queue.charge("busy", 1000)
    queue.push(waiting("new"))
    assert queue.service("new") == 1000


def test_after_a_quiet_moment_nobody_starts_behind_the_last_one_served() -> None:
    queue = FairQueue()
    only = waiting("busy")
    queue.push(only)
    queue.charge("busy", 1000)
    queue.remove(only)
    queue.push(waiting("new"))
    assert queue.service("new") == 1000


def test_a_tenant_keeps_its_debt_while_others_wait() -> None:
    queue = FairQueue()
    greedy = waiting("greedy")
    queue.push(greedy)
    queue.push(waiting("modest"))
    queue.charge("greedy", 500)
    queue.remove(greedy)
    queue.push(waiting("greedy"))
    assert queue.service("greedy") == 500


class Backlog:
    """Tenants that always have requests waiting, and the service each one got, measured from outside."""

    def __init__(self, tenants: list[str], seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = Harness(
            num_blocks=33, block_size=4, max_num_batched_tokens=32, max_model_len=40, enable_prefix_caching=False
        )
        self.shapes = {tenant: (self.random.randint(1, 24), self.random.randint(1, 15)) for tenant in tenants}
        self.tenants = tenants
        self.ids = itertools.count()
        self.history: list[dict[str, int]] = []
        self.longest_prompt = max(prompt for prompt, _ in self.shapes.values())

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.fill()
            self.harness.step()
            self.history.append({tenant: self.service(tenant) for tenant in self.tenants})

    def fill(self) -> None:
        queued = [sequence.request.tenant for sequence in self.harness.roster.queue]
        for tenant in self.tenants:
            for _ in range(self.harness.limits.max_num_seqs + 1 - queued.count(tenant)):
                length, max_tokens = self.shapes[tenant]
                prompt = [self.random.randrange(1, VOCAB) for _ in range(length)]
                adapter = self.random.choice([None, *self.harness.adapters.registered])
                name = f"{tenant}/{next(self.ids)}"
                self.harness.add(
                    make_request(name, prompt, adapter, tenant=tenant, max_tokens=max_tokens, ignore_eos=True)
                )

    def service(self, tenant: str) -> int:
        streams = [stream for stream in self.harness.streams.values() if stream.message.tenant == tenant]
        unstarted = self.harness.roster.unstarted
        started = [stream for stream in streams if stream.message.request_id not in unstarted]
        prompts = sum(len(stream.message.prompt_token_ids) for stream in started)
        return PROMPT_WEIGHT * prompts + OUTPUT_WEIGHT * sum(len(stream.outputs[0]) for stream in streams)

    def bound(self) -> int:
        """2 max(w_p L_in, w_q M), M the tokens that fit in the cache (Sheng et al. 2024, theorem 4.4)."""
        cache = self.harness.pool.num_usable * self.harness.pool.block_size
        return 2 * max(PROMPT_WEIGHT * self.longest_prompt, OUTPUT_WEIGHT * cache)


def widest_gap(history: list[dict[str, int]], one: str, other: str) -> int:
    """Largest difference in service over all windows."""
    leads = [0, *(moment[one] - moment[other] for moment in history)]
    return max(leads) - min(leads)


@pytest.mark.parametrize("seed", range(6))
def test_backlogged_tenants_get_the_same_service_whatever_they_send(seed: int) -> None:
    tenants = [f"t{number}" for number in range(random.Random(seed).choice([2, 3, 5]))]
    backlog = Backlog(tenants, seed)
    backlog.run(500)
    assert max(backlog.history[-1].values()) > 3 * backlog.bound(), "too short a run to show anything"
    for one, other in itertools.combinations(tenants, 2):
        assert widest_gap(backlog.history, one, other) <= backlog.bound()


def test_one_who_idled_shares_evenly_from_when_it_comes() -> None:
    backlog = Backlog(["old"], 1)
    backlog.run(300)
    backlog.tenants = ["old", "new"]
    backlog.shapes["new"] = backlog.shapes["old"]
    begin = {tenant: backlog.service(tenant) for tenant in backlog.tenants}
    backlog.history.clear()
    backlog.run(300)
    since = [{tenant: moment[tenant] - begin[tenant] for tenant in backlog.tenants} for moment in backlog.history]
    assert widest_gap(since, "old", "new") <= backlog.bound() < since[-1]["new"]


def test_a_lone_tenant_gets_everything() -> None:
    harness = Harness(num_blocks=200, max_num_seqs=6, max_num_batched_tokens=8)
    for number in range(20):
        harness.add(make_request(f"r{number}", [1 + number] * 8, tenant="only", ignore_eos=True, max_tokens=30))
    while harness.core.has_work():
        plan = harness.scheduler.schedule()
        full = sum(item.count for item in plan.scheduled) == 8 or len(plan.scheduled) == 6
        assert full or not harness.roster.queue
        harness.receive(harness.scheduler.commit(plan, harness.runner.submit(plan).result()))
    harness.assert_released()


def test_a_tenant_with_many_adapters_gets_one_share() -> None:
    backlog = Backlog(["many", "one"], 3)
    backlog.harness.adapters.capacity = 50
    backlog.harness.adapters.register(*(f"a{number}" for number in range(20)))
    backlog.shapes = {"many": (8, 8), "one": (8, 8)}
    backlog.run(300)
    assert widest_gap(backlog.history, "many", "one") <= backlog.bound()
