"""Seeded traffic in virtual time against tiny pools: every step makes progress, everything ends, exactly as alone."""

import random
from typing import Literal

import pytest

from loraplex.engine.kv_cache.state_pool import StatePool
from loraplex.engine.protocol import BeamSearch
from loraplex.engine.structured_outputs import StructuredOutputs

from ..fake_adapters import FakeAdapters
from ..fake_model import INVOCATIONS, INVOKING, VOCAB
from ..harness import Harness, make_request
from ..late_masks import LateMasks

SEEDS = 2000
BATCHES = 8


class Traffic:
    """Random limits, and random requests that come one by one; some are aborted, some name an unknown adapter."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stem = [self.random.randrange(VOCAB) for _ in range(30)]
        for place in (self.random.randrange(4), self.random.randrange(4, 16)):
            self.stem[place : place + 2] = [INVOKING, INVOKING]
        adapters = FakeAdapters(capacity=self.random.randint(1, 2))
        adapters.register("a", "b", "c", *INVOCATIONS)
        budget = self.random.randint(2, 20)
        self.harness = Harness(
            num_blocks=self.random.randint(4, 32),
            block_size=self.random.choice([1, 2, 4, 8]),
            adapters=adapters,
            states=StatePool(self.random.randint(2, 12)) if seed // BATCHES % 2 else None,
            max_num_batched_tokens=budget,
            max_num_seqs=self.random.randint(1, min(budget, 8)),
            max_model_len=self.random.randint(20, 40),
            enable_prefix_caching=self.random.random() < 0.7,
            masks=LateMasks(self.random, self.random.choice([0.1, 0.5, 0.9])),
        )
        self.most_preemptions = 0

    def run(self) -> None:
        for number in range(self.random.randint(1, 14)):
            self.arrive(f"r{number}")
            for _ in range(self.random.choice([0, 0, 1, 4])):
                self.step()
            if self.random.random() < 0.1:
                self.harness.abort(f"r{self.random.randint(0, number)}")
        while self.harness.core.has_work():
            self.step()
            assert self.harness.now < 3000, "too many steps"
        self.harness.assert_released()

    def arrive(self, name: str) -> None:
        length = self.random.randint(1, 24)
        shared = self.random.choice([0, length // 2, length])
        prompt = self.stem[:shared] + [self.random.randrange(VOCAB) for _ in range(length - shared)]
        kind = self.random.random()
        constrained, beam_search = kind < 0.3, self.search() if kind > 0.8 else None
        request = make_request(
            name,
            prompt,
            adapter=self.random.choice([None, None, None, None, "a", "a", "b", "c", "late", "latest", "unknown"]),
            tenant=self.random.choice("xxy"),
            beam_search=beam_search,
            share=(self.random.choice("kkl"), self.random.choice(["", name])),
            priority=self.random.randint(0, 2),
            n=self.random.choice([1, 1, 1, 2, 4]),
            temperature=self.random.choice([0.0, 1.0]),
            seed=self.random.randrange(100),
            max_tokens=self.random.choice([None, 1, 4, 16]),
            # A constrained choice that may end nowhere else ends with EOS all the same.
            ignore_eos=not constrained and self.random.random() < 0.5,
            structured_outputs=StructuredOutputs(regex=".*") if constrained else None,
        )
        try:
            self.harness.add(request)
        except ValueError as error:
            refusals = ("never fit", "together may have", "beams of the prompt", "beams run at once")
            assert any(words in str(error) for words in refusals)
            self.harness.streams.pop(name, None)

    def search(self) -> BeamSearch:
        early_stopping: list[bool | Literal["never"]] = [True, False, "never"]
        return BeamSearch(
            length_penalty=self.random.choice([-1.0, 0.0, 1.0, 2.0]), early_stopping=self.random.choice(early_stopping)
        )

    def step(self) -> None:
        if self.harness.core.has_work():
            self.harness.step_on()
            live = [s for request in self.harness.request_table.requests.values() for s in request.sequences]
            self.most_preemptions = max([self.most_preemptions, *(sequence.preemptions for sequence in live)])


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_request_ends_as_it_would_alone(batch: int) -> None:
    preemptions = hits = most = 0
    for seed in range(batch, SEEDS, BATCHES):
        traffic = Traffic(seed)
        try:
            traffic.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        preemptions += traffic.harness.request_table.preemptions
        hits += traffic.harness.scheduler.prefix_hits
        most = max(most, traffic.most_preemptions)
    assert preemptions > 50 and hits > 200, "the traffic is too light to show anything"
    assert 1 < most <= 3
