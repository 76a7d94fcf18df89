"""What the loop does with a runner that takes a step before the last has ended."""

import weakref
from itertools import pairwise

import pytest
import torch

from loraplex.engine.core import EngineCore
from loraplex.engine.kv_cache.block_pool import BlockPool
from loraplex.engine.protocol import FromEngine, RequestFailed, Tokens
from loraplex.engine.sampling.state import Sampled
from loraplex.engine.scheduler.plan import StepPlan, StepResult
from loraplex.engine.scheduler.scheduler import Scheduler
from loraplex.engine.status import Clipping

from ..harness import make_limits, make_request, tokens
from ..virtual_model import VirtualDevice
from ..virtual_runner import SlottedAdapters


class Handle:
    def __init__(self, log: list[str], number: int, answer: StepResult | Exception) -> None:
        self._log = log
        self._number = number
        self._answer = answer

    def result(self) -> StepResult:
        self._log.append(f"result {self._number}")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class LoggingRunner:
    """Draws token 1 for every row."""

    depth = 2

    def __init__(self) -> None:
        self.log: list[str] = []
        self.plans: list[StepPlan] = []
        self.positions: list[list[int]] = []
        self.blocked: list[list[tuple[int, ...]]] = []
        self.refuses: set[int] = set()
        self.fails: set[int] = set()

    def submit(self, plan: StepPlan) -> Handle:
        number = len(self.plans)
        self.log.append(f"submit {number}")
        self.plans.append(plan)
        rows = plan.sample_rows()
        self.positions.append([row.position for row in rows])
        self.blocked.append([row.blocked_token_ids for row in rows])
        if number in self.refuses:
            raise RuntimeError("refused")
        answer = StepResult(Sampled([1] * len(rows), [None] * len(rows), []), clipping={"": Clipping(tokens=1)})
        return Handle(self.log, number, RuntimeError("failed") if number in self.fails else answer)


class House:
    def __init__(self, num_blocks: int = 40, **limits: object) -> None:
        self.runner = LoggingRunner()
        self.adapters = SlottedAdapters(VirtualDevice(1, 1))
        self.pool = BlockPool(num_blocks, 4)
        self.scheduler = Scheduler(make_limits(**limits), self.pool, self.adapters)
        self.core = EngineCore(self.scheduler, self.runner, strict=True)

    def step(self) -> list[FromEngine]:
        return self.core.step()

    def drain(self) -> list[FromEngine]:
        messages = []
        for _ in range(200):
            if not self.core.has_work():
                break
            messages += self.step()
        assert not self.core.has_work() and self.pool.num_free == self.pool.num_usable
        return messages


@pytest.fixture
def house() -> House:
    return House()


def test_a_step_is_submitted_before_the_last_is_asked_for(house: House) -> None:
    house.core.add(make_request("r", tokens(4), max_tokens=3, ignore_eos=True))
    messages = house.drain()
    assert house.runner.log == ["submit 0", "submit 1", "result 0", "submit 2", "result 1", "result 2"]
    assert [message.token_ids for message in messages if isinstance(message, Tokens)] == [[1]] * 3
    assert [(item.start, item.count) for plan in house.runner.plans for item in plan.scheduled] == [
        (0, 4), (4, 1), (5, 1),
    ]  # fmt: skip


def test_rows_know_their_position_though_tokens_before_are_unknown(house: House) -> None:
    house.core.add(make_request("r", tokens(4), max_tokens=4, min_tokens=2))
    house.drain()
    assert house.runner.positions == [[0], [1], [2], [3]]
    assert [bool(blocked) for (blocked,) in house.runner.blocked] == [True, True, False, False]


def test_a_stop_is_seen_a_step_late_and_the_late_step_leaves_nothing(house: House) -> None:
    house.core.add(make_request("r", tokens(7), ("a",), stop_token_ids=[1], ignore_eos=True))
    house.step()
    messages = house.step()
    assert [(m.token_ids, m.stop_reason) for m in messages if isinstance(m, Tokens)] == [([1], 1)]
    assert len(house.runner.plans) == 2 and house.core.has_work()
    assert house.adapters.held["a"] == 1 and house.pool.num_free < house.pool.num_usable, "the device still uses them"
    assert house.scheduler.request_table.check_integrity() == []
    assert house.drain() == [] and house.adapters.held["a"] == 0
    assert house.pool.num_cached == 1, "the block of known tokens alone, not the one that the late step filled"
    assert (house.scheduler.generation_tokens, house.scheduler.prompt_tokens) == (1, 7)


def test_what_a_step_without_memory_had_allocated_is_free_before_the_next_is_submitted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Activations:
        pass

    submit, held = house.runner.submit, list[weakref.ref[Activations]]()

    def allocating(plan: StepPlan) -> Handle:
        activations = Activations()
        assert len(held) < 2 or held[1]() is None, "the error that waits for its turn holds them"
        held.append(weakref.ref(activations))
        if len(held) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return submit(plan)

    monkeypatch.setattr(house.runner, "submit", allocating)
    for name in ("one", "other"):
        house.core.add(make_request(name, tokens(9), max_tokens=4, ignore_eos=True))
        house.step()
    house.core.add(make_request("next", tokens(9), max_tokens=1, ignore_eos=True))
    messages = house.drain()
    assert len(held) > 2 and isinstance(messages[-1], Tokens)


def test_an_abort_holds_what_the_device_uses_until_it_lands(house: House) -> None:
    house.core.add(make_request("r", tokens(7), ("a",), ignore_eos=True))
    house.step()
    assert [message.finish_reason for message in house.core.abort("r")] == ["abort"]
    assert not house.scheduler.has_work() and house.core.has_work() and house.adapters.held["a"] == 1
    house.core.add(make_request("r", tokens(7), max_tokens=1, ignore_eos=True))
    messages = house.drain()
    assert [message.token_ids for message in messages if isinstance(message, Tokens)] == [[1]]
    assert house.adapters.held["a"] == 0


def test_penalties_wait_for_the_token_and_others_do_not(house: House) -> None:
    house.core.add(make_request("penalized", tokens(4), max_tokens=3, presence_penalty=1.0, ignore_eos=True))
    house.core.add(make_request("free", tokens(4, 1), max_tokens=5, ignore_eos=True))
    house.drain()
    steps = [{item.sequence.request.id for item in plan.scheduled} for plan in house.runner.plans]
    assert steps == [{"penalized", "free"}, {"free"}, {"penalized", "free"}, {"free"}, {"penalized", "free"}]


@pytest.mark.parametrize("kind", ["refuses", "fails"])
def test_a_failed_step_ends_its_requests_after_those_before_it(kind: str, house: House) -> None:
    getattr(house.runner, kind).add(1)
    house.core.add(make_request("r", tokens(4), max_tokens=9, ignore_eos=True))
    house.step()
    first = house.step()
    assert [message.token_ids for message in first if isinstance(message, Tokens)] == [[1]]
    house.core.add(make_request("next", tokens(4, 1), max_tokens=2, ignore_eos=True))
    messages = house.drain()
    assert [message.request_id for message in messages if isinstance(message, RequestFailed)] == ["r"]
    said = [message.token_ids for message in messages if isinstance(message, Tokens)]
    assert said == [[1], [1]], "of the next request, which shared a step with the placeholder of the failed one"


def test_who_gives_way_is_chosen_when_no_step_is_in_flight() -> None:
    house = House(num_blocks=6)
    for number in range(2):
        house.core.add(make_request(f"r{number}", tokens(6, number), max_tokens=6, ignore_eos=True))
    house.drain()
    assert house.scheduler.request_table.preemptions == 1
    words = [line.split()[0] for line in house.runner.log[:-2]]
    assert ("result", "result") in pairwise(words), "the pipeline never ran empty"
