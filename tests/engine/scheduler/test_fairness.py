"""Fair shares of a busy engine: what each side gets, and how soon a newcomer is served."""

import itertools
import random

import pytest

from loraplex.engine.protocol import GenerateRequest
from loraplex.engine.scheduler.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT

from ..fake_model import VOCAB
from ..harness import Harness, Stream, make_request, tokens


class Backlog:
    """Sides that always have requests waiting, and the service each one got, measured from outside.

    A side is a tenant, a group of a tenant or a request of a group, as `level` says.
    """

    def __init__(self, sides: list[str], seed: int, level: str = "tenant") -> None:
        self.random = random.Random(seed)
        self.harness = Harness(
            num_blocks=33, block_size=4, max_num_batched_tokens=32, max_model_len=40, enable_prefix_caching=False
        )
        self.level = level
        self.shapes = {side: (self.random.randint(1, 24), self.random.randint(1, 15)) for side in sides}
        self.sides = sides
        self.ids = itertools.count()
        self.history: list[dict[str, int]] = []
        self.longest_prompt = max(prompt for prompt, _ in self.shapes.values())

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.fill()
            self.harness.step()
            self.history.append({side: self.service(side) for side in self.sides})

    def fill(self) -> None:
        queued = [self.side_of(sequence.request.message) for sequence in self.harness.request_table.queue]
        for side in self.sides:
            for _ in range(self.harness.limits.max_num_seqs + 1 - queued.count(side)):
                length, max_tokens = self.shapes[side]
                prompt = [self.random.randrange(1, VOCAB) for _ in range(length)]
                adapter = self.random.choice([None, *self.harness.adapters.registered])
                name, places = (
                    f"{side}/{next(self.ids)}",
                    {"tenant": "t", "group": "g", "request": "r", self.level: side},
                )
                share = places["group"], places["request"]
                self.harness.add(
                    make_request(
                        name, prompt, adapter, places["tenant"], share=share, max_tokens=max_tokens, ignore_eos=True
                    )
                )

    def side_of(self, message: GenerateRequest) -> str:
        return {"tenant": message.tenant, "group": message.share[0], "request": message.share[1]}[self.level]

    def service(self, side: str) -> int:
        streams = [stream for stream in self.harness.streams.values() if self.side_of(stream.message) == side]
        unstarted = self.harness.request_table.unstarted
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


@pytest.mark.parametrize("level", ["tenant", "group", "request"])
@pytest.mark.parametrize("seed", range(6))
def test_backlogged_sides_get_the_same_service_whatever_they_send(level: str, seed: int) -> None:
    sides = [f"s{number}" for number in range(random.Random(seed).choice([2, 3, 5]))]
    backlog = Backlog(sides, seed, level)
    backlog.run(500)
    assert max(backlog.history[-1].values()) > 3 * backlog.bound(), "too short a run to show anything"
    for one, other in itertools.combinations(sides, 2):
        assert widest_gap(backlog.history, one, other) <= backlog.bound()


def test_one_who_idled_shares_evenly_from_when_it_comes() -> None:
    backlog = Backlog(["old"], 1)
    backlog.run(300)
    backlog.sides = ["old", "new"]
    backlog.shapes["new"] = backlog.shapes["old"]
    begin = {side: backlog.service(side) for side in backlog.sides}
    backlog.history.clear()
    backlog.run(300)
    since = [{side: moment[side] - begin[side] for side in backlog.sides} for moment in backlog.history]
    assert widest_gap(since, "old", "new") <= backlog.bound() < since[-1]["new"]


def test_a_lone_tenant_gets_everything() -> None:
    harness = Harness(num_blocks=200, max_num_seqs=6, max_num_batched_tokens=8)
    for number in range(20):
        harness.add(make_request(f"r{number}", [1 + number] * 8, tenant="only", ignore_eos=True, max_tokens=30))
    while harness.core.has_work():
        plan = harness.scheduler.schedule()
        full = sum(item.count for item in plan.scheduled) == 8 or len(plan.scheduled) == 6
        assert full or not harness.request_table.queue
        harness.receive(harness.scheduler.commit(plan, harness.runner.submit(plan).result()))
    harness.assert_released()


def test_a_tenant_with_many_adapters_gets_one_share() -> None:
    backlog = Backlog(["many", "one"], 3)
    backlog.harness.adapters.capacity = 50
    backlog.harness.adapters.register(*(f"a{number}" for number in range(20)))
    backlog.shapes = {"many": (8, 8), "one": (8, 8)}
    backlog.run(300)
    assert widest_gap(backlog.history, "many", "one") <= backlog.bound()


# A newcomer beside a request of many prompts and choices


def flood(harness: Harness, prompts: int, n: int, max_tokens: int, tenant: str = "t", group: str = "k") -> None:
    """One request of many prompts, as the API sends it: one for each prompt."""
    for number in range(prompts):
        request = make_request(
            f"flood{number}",
            tokens(6, number),
            tenant=tenant,
            share=(group, "flood"),
            n=n,
            temperature=1.0,
            max_tokens=max_tokens,
            ignore_eos=True,
        )
        harness.add(request)


def steps_to_first_token(harness: Harness, stream: Stream) -> int:
    for step in range(5000):
        if stream.messages:
            return step
        harness.step()
    raise AssertionError("no token in 5000 steps")


NEWCOMERS = {"tenant": ("u", ("k", "new")), "group": ("t", ("l", "new")), "request": ("t", ("k", "new"))}


@pytest.mark.parametrize("level", sorted(NEWCOMERS))
def test_a_newcomer_is_served_beside_a_request_of_many_prompts_and_choices(level: str) -> None:
    """1,024 choices of 8 tokens on 16 places are more than 512 steps of work."""
    harness = Harness(num_blocks=400, max_num_seqs=16, max_num_batched_tokens=64)
    tenant, share = NEWCOMERS[level]
    flood(harness, 64, n=16, max_tokens=8)
    waits = []
    for number in range(4):
        harness.drain_some(20)
        request = make_request(f"new{number}", tokens(6, 1000 + number), tenant=tenant, share=share, max_tokens=2)
        waits.append(steps_to_first_token(harness, harness.add(request)))
    assert max(waits) <= 4, waits
    harness.drain()
    harness.assert_released()


@pytest.mark.parametrize("level", sorted(NEWCOMERS))
def test_long_answers_that_hold_all_places_give_up_half_of_them(level: str) -> None:
    harness = Harness(num_blocks=2000, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=600)
    tenant, share = NEWCOMERS[level]
    flood(harness, 8, n=16, max_tokens=500)
    harness.drain_some(60)
    waits = []
    for number in range(4):
        request = make_request(
            f"new{number}", tokens(6, 1000 + number), tenant=tenant, share=share, max_tokens=400, ignore_eos=True
        )
        waits.append(steps_to_first_token(harness, harness.add(request)))
    assert max(waits) <= 4, waits
    running = [sequence.request.id[:3] for sequence in harness.request_table.running]
    assert running.count("new") == running.count("flo") == 4
    harness.drain_some(100)
    assert harness.request_table.preemptions == 4, "places go back and forth"


def test_nobody_gives_up_a_place_where_nobody_holds_most_of_them() -> None:
    harness = Harness(num_blocks=2000, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=600)
    for number in range(30):
        share = (f"k{number % 2}", f"r{number}")
        harness.add(make_request(f"r{number}", tokens(6, number), share=share, n=2, max_tokens=40, ignore_eos=True))
    harness.drain()
    assert harness.request_table.preemptions == 0
    harness.assert_released()


def test_a_less_important_request_takes_no_place_from_a_more_important_one() -> None:
    harness = Harness(num_blocks=2000, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=600)
    flood(harness, 1, n=16, max_tokens=100)
    harness.drain_some(20)
    late = harness.add(make_request("late", tokens(6, 99), tenant="t", share=("l", "late"), priority=1))
    harness.drain_some(50)
    assert not late.messages and harness.request_table.preemptions == 0
    urgent = harness.add(make_request("urgent", tokens(6, 98), tenant="t", share=("l", "urgent"), priority=-1))
    assert steps_to_first_token(harness, urgent) <= 4
    harness.drain()
    harness.assert_released()


def test_when_blocks_run_out_the_share_that_holds_most_gives_way() -> None:
    harness = Harness(num_blocks=40, block_size=4, max_num_seqs=8, max_num_batched_tokens=32)
    flood(harness, 4, n=2, max_tokens=40)
    harness.drain_some(8)
    harness.add(make_request("modest", tokens(6, 99), tenant="u", max_tokens=40, ignore_eos=True))
    [modest] = harness.request_table.requests["modest"].sequences
    harness.drain()
    assert harness.request_table.preemptions > 0 and modest.preemptions == 0
    harness.assert_released()
