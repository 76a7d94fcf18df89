"""Steps that overlap say what each choice says alone, token by token, and what steps one after the other say: random
schedules at depth 2 over a virtual device, the same requests at depth 1."""

import logging
import random
from array import array
from dataclasses import dataclass, field
from functools import cache
from itertools import count

import pytest

from loraplex.engine.core import EngineCore
from loraplex.engine.kv_cache.block_pool import BlockPool
from loraplex.engine.kv_cache.state_pool import StatePool
from loraplex.engine.protocol import FinishReason, GenerateRequest, RequestFailed, Tokens
from loraplex.engine.scheduler.scheduler import Scheduler
from loraplex.engine.structured_outputs import StructuredOutputs

from ..campaign import Campaign
from .fake_model import INVOKING, VOCAB
from .harness import make_limits, make_request
from .late_masks import LateMasks
from .virtual_arrays import SEQUENCES, TOKENS, ArrayRunner, DeviceArrays
from .virtual_model import POISON, STATES, VirtualDevice, alone
from .virtual_runner import BROKEN, SlottedAdapters, VirtualRunner

SEEDS = 10_000
BATCHES = 4
PARTS = 5
"""A run takes one of so many parts of the seeds."""
STOP_WORDS = {5, 17, 29}
"""Tokens at which whoever reads the stream of some choices ends them, as the API does at a stop string."""
MOST_LENGTH, BLOCKS = 18, 20
THROUGH_ARRAYS = 40
"""Of the seeds of a run, whichever part it takes, one in so many goes through the arrays of a step as well."""
ONE_BY_ONE = 16
"""One in so many is also run at depth 1 with what ends its choices from outside."""
SCHEDULES = 4
"""Of the same requests, each with limits, arrivals, aborts and failures of its own: all are compared with one run at
depth 1 that nothing disturbs."""


@cache
def device(block_size: int) -> VirtualDevice:
    return VirtualDevice(BLOCKS + 1, block_size)


@cache
def arrays(block_size: int, has_states: bool) -> DeviceArrays:
    return DeviceArrays(device(block_size), has_states)


@dataclass
class Stream:
    message: GenerateRequest
    outputs: list[list[int]]
    reasons: list[FinishReason | None]
    failure: RequestFailed | None = None
    aborted: bool = False
    """By us, at a moment of our own."""


@dataclass
class Events:
    """What happens from outside, before which step."""

    arrivals: dict[int, list[GenerateRequest]] = field(default_factory=dict)
    aborts: dict[int, list[tuple[str, int | None]]] = field(default_factory=dict)


class Requests:
    """What is asked for, and what each choice says alone, once it was asked."""

    def __init__(self, seed: int) -> None:
        self.source = source = random.Random(seed)
        self.alone: dict[tuple[str, int], tuple[list[int], FinishReason]] = {}
        self.stem = [source.randrange(VOCAB) for _ in range(12)]
        self.stem[source.randrange(10)] = INVOKING
        self.messages = [self._request(f"r{number}") for number in range(source.randint(1, 6))]

    def _request(self, name: str) -> GenerateRequest:
        source = self.source
        length = source.randint(1, 10)
        shared = source.choice((0, length // 2, length))
        prompt = self.stem[:shared] + [source.randrange(VOCAB) for _ in range(length - shared)]
        adapters = source.choice(((), (), ("a",), ("b",), ("c",), ("a", "b"), ("c", "a"), ("late",), ("late", "b")))
        if "late" in adapters and INVOKING not in prompt:
            adapters = ("b",)
        constrained = source.random() < 0.2
        return make_request(
            name,
            prompt,
            adapter=adapters,
            scale=source.choice((1.0, 1.0, 0.5)),
            tenant=source.choice("xxy"),
            share=(source.choice("kkl"), source.choice(("", name))),
            priority=source.randrange(2),
            n=source.choice((1, 1, 1, 2, 3)),
            temperature=source.choice((0.0, 1.0)),
            seed=source.randrange(100),
            max_tokens=source.choice((None, 1, 2, 4, 8)),
            # Of constrained ones the mask says when they may end, and this device does not look at it.
            min_tokens=0 if constrained else source.choice((0, 0, 1)),
            ignore_eos=not constrained and source.random() < 0.5,
            structured_outputs=StructuredOutputs(regex=".*") if constrained else None,
            stop_token_ids=source.choice(([], [], [1, 2, 3])),
            stop=source.choice(([], [], ["a word"])),
            top_k=POISON if source.random() < 0.03 else 0,
            presence_penalty=source.choice((0.0, 0.0, 0.0, 1.0)),
        )


class Traffic:
    """When and where requests are answered: all else that a seed decides, the same at each depth."""

    def __init__(self, seed: int, requests: Requests, disturbed: bool = True) -> None:
        """disturbed: by aborts and failures."""
        source = random.Random(f"{seed} of some requests")
        self.seed = seed
        self.requests = requests
        self.block_size = source.choice((1, 2, 4))
        self.num_blocks = source.randint(-(-MOST_LENGTH // self.block_size), BLOCKS) + 1
        budget = source.randint(2, TOKENS)
        self.limits = make_limits(
            max_model_len=MOST_LENGTH,
            max_num_seqs=source.randint(1, min(budget, SEQUENCES)),
            max_num_batched_tokens=budget,
            enable_prefix_caching=source.random() < 0.7,
        )
        self.state_slots = random.Random(-seed).choice((0, 0, 2, 3, 5, STATES))
        """Of a model with recurrent layers; 0: it has none."""
        self.failure_rate = source.choice((0.0, 0.0, 0.0, 0.02)) if disturbed else 0.0
        self.events = Events()
        for message in requests.messages:
            step = source.randrange(8)
            self.events.arrivals.setdefault(step, []).append(message)
            if disturbed and source.random() < 0.15:
                abort = message.request_id, source.choice((None, None, 0, 1))
                self.events.aborts.setdefault(step + source.randrange(10), []).append(abort)


class Run:
    """One traffic through an engine of one depth."""

    def __init__(self, traffic: Traffic, depth: int, through_arrays: bool = False) -> None:
        self.traffic = traffic
        self.depth = depth
        self.device = device(traffic.block_size)
        self.adapters = SlottedAdapters(self.device)
        self.pool = BlockPool(traffic.num_blocks, traffic.block_size)
        self.states = StatePool(traffic.state_slots) if traffic.state_slots else None
        clock = count(0.0, 0.1).__next__
        self.scheduler = Scheduler(traffic.limits, self.pool, self.adapters, clock, self.states)
        failing = random.Random(traffic.seed)
        if through_arrays:
            memory = arrays(traffic.block_size, self.states is not None)
            runner: VirtualRunner = ArrayRunner(self.device, self.adapters, depth, failing, memory)
        else:
            runner = VirtualRunner(self.device, self.adapters, depth, failing)
        runner.failure_rate = traffic.failure_rate
        self.masks = LateMasks(failing, 0.5)
        self.core = EngineCore(self.scheduler, runner, strict=True, grammar_manager=self.masks)
        self.streams: dict[str, Stream] = {}
        self.late = 0
        """Choices that ended while the next step computed them already."""

    def run(self) -> None:
        events = self.traffic.events
        for step in range(1000):
            for message in events.arrivals.get(step, ()):
                count = message.params.n
                self.streams[message.request_id] = Stream(message, [[] for _ in range(count)], [None] * count)
                self.core.add(message)
            for name, index in events.aborts.get(step, ()):
                self.abort(name, index)
            if self.core.has_work():
                messages = self.core.step()
                assert self.core.progressed or messages or self.masks.waited_for, "a step without progress"
                self.receive(messages)
                self.late = max(self.late, len(self.scheduler.request_table.leaving))
                if step % 4 == 0:
                    assert self.scheduler.request_table.check_integrity() == []
            elif step > max([*events.arrivals, *events.aborts]):
                break
        self.check_end()

    def abort(self, name: str, index: int | None) -> None:
        if name in self.streams:
            messages = self.core.abort(name, index)
            self.streams[name].aborted |= bool(messages)
            self.receive(messages)

    def receive(self, messages: list[object]) -> None:
        for message in messages:
            assert isinstance(message, Tokens | RequestFailed)
            stream = self.streams[message.request_id]
            assert stream.failure is None, "a message after the last one"
            if isinstance(message, RequestFailed):
                assert None in stream.reasons, "a message after the last one"
                stream.failure = message
                continue
            assert stream.reasons[message.index] is None, "a token after the choice's end"
            stream.outputs[message.index] += message.token_ids
            stream.reasons[message.index] = message.finish_reason
            assert 0 <= message.cached_tokens < len(stream.message.prompt_token_ids)
            if stream.message.params.stop and STOP_WORDS & {*message.token_ids} and not message.finish_reason:
                self.receive(self.core.abort(message.request_id, message.index))

    def check_end(self) -> None:
        """Nothing is held, all that was said is counted, and found prefixes hold the tokens they are found by."""
        assert self.device.mistakes == []
        request_table = self.scheduler.request_table
        assert not self.core.has_work() and not request_table.leaving and request_table.check_integrity() == []
        assert self.pool.num_free == self.pool.num_usable and not any(self.adapters.held.values())
        assert all(stream.failure or None not in stream.reasons for stream in self.streams.values())
        said = sum(len(output) for stream in self.streams.values() for output in stream.outputs)
        assert self.scheduler.generation_tokens == said
        assert self.states is None or self.states.num_free == self.states.num_usable
        for block in self.pool.cached():
            key = self.pool._keys[block]
            first = block * self.pool.block_size
            stored = self.device.tokens[first : first + self.pool.block_size]
            assert key is not None and key.tokens == array("q", stored).tobytes()

    def check_streams(self) -> None:
        for stream in self.streams.values():
            for index, output in enumerate(stream.outputs):
                key = stream.message.request_id, index
                alone = self.traffic.requests.alone
                if key not in alone:
                    alone[key] = self.expected(stream.message, index)
                expected, reason = alone[key]
                assert output == expected[: len(output)], "the stream differs from what it says alone"
                if stream.failure is not None:
                    assert BROKEN in stream.failure.message or stream.message.params.top_k == POISON
                elif not stream.aborted or stream.reasons[index] is not FinishReason.ABORT:
                    assert (output, stream.reasons[index]) == (expected, reason)

    def expected(self, message: GenerateRequest, index: int) -> tuple[list[int], FinishReason]:
        capacity = self.pool.num_usable * self.pool.block_size + 1
        output, reason = alone(message, index, min(MOST_LENGTH, capacity))
        ends = [place for place, token in enumerate(output) if token in STOP_WORDS] if message.params.stop else []
        last = len(output) - 1 if reason is not FinishReason.ERROR else len(output)
        if ends and ends[0] < last:
            return output[: ends[0] + 1], FinishReason.ABORT
        return output, reason


@pytest.mark.parametrize("batch", range(BATCHES))
def test_overlapping_steps_say_what_steps_one_by_one_say(
    batch: int, campaign: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "loraplex.engine.core")
    late = preemptions = hits = failures = 0
    firsts, places = range(batch * SCHEDULES, SEEDS, BATCHES * SCHEDULES), count()
    for first in (firsts[place] for place in campaign.part(len(firsts), PARTS)):
        requests = Requests(first)
        plain = Run(Traffic(first, requests, disturbed=False), 1)
        check(plain, plain)
        for seed in range(first, first + SCHEDULES):
            traffic = Traffic(seed, requests)
            check(overlapped := Run(traffic, 2), plain)
            place = next(places)
            if place % ONE_BY_ONE == 0:
                check(Run(traffic, 1), plain)
            if place % THROUGH_ARRAYS == 0:
                check(Run(traffic, 2, through_arrays=True), plain)
            late += overlapped.late
            preemptions += overlapped.scheduler.request_table.preemptions
            hits += overlapped.scheduler.prefix_hits
            failures += sum(stream.failure is not None for stream in overlapped.streams.values())
    least = campaign.enough(100, PARTS)
    assert min(late, preemptions, hits, failures) > least, "the traffic is too light to show anything"


def check(run: Run, plain: Run) -> None:
    try:
        run.run()
        run.check_streams()
        compare(run, plain)
        assert run.depth > 1 or not run.late
    except AssertionError as error:
        error.add_note(f"seed {run.traffic.seed}, depth {run.depth}")
        raise


def compare(run: Run, plain: Run) -> None:
    """All of it, but only what came until then of what we or a broken step ended, and of requests with logits that are
    no numbers: those end all their choices, of which others have come further at another depth."""
    assert run.streams.keys() == plain.streams.keys()
    for name, stream in run.streams.items():
        twin = plain.streams[name]
        ended = stream.aborted or (stream.failure is not None and BROKEN in stream.failure.message)
        if not ended:
            assert (stream.failure is None) == (twin.failure is None)
            assert (stream.outputs, stream.reasons) == (twin.outputs, twin.reasons) or twin.failure is not None
        for said, whole in zip(stream.outputs, twin.outputs, strict=True):
            assert said == whole[: len(said)] or (twin.failure is not None and whole == said[: len(whole)])
