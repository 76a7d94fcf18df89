"""Who is refused at a full queue: the engine's client knows it as the engine does, without asking it."""

import random

import pytest

from loraplex.engine.protocol import GenerateRequest
from loraplex.engine.scheduler.scheduler import Overloaded
from loraplex.engine.scheduler.waiting_queue import WaitingRequests, gives_way

from ..harness import Harness, make_request

TENANTS = ("one", "two", "three")


class Seen:
    """A harness, and what a client makes of its messages."""

    def __init__(self, most: int) -> None:
        self.harness = Harness(max_queue=most, max_num_seqs=2)
        self.waiting = WaitingRequests(most)

    def add(self, message: GenerateRequest) -> None:
        """The client refuses what the engine would refuse, and nothing else."""
        expected = self.waiting.refusal(message.tenant)
        try:
            self.harness.add(message)
        except Overloaded as refused:
            assert str(refused) == expected
            return
        assert expected is None
        self.waiting.add(message.request_id, message.tenant)
        self.look()

    def look(self) -> None:
        """As after each frame of the engine."""
        self.waiting.remove(self.harness.core.just_started)
        self.waiting.remove([name for name, stream in self.harness.streams.items() if stream.ended])
        assert len(self.waiting) == len(self.harness.request_table.unstarted)


@pytest.mark.parametrize("seed", range(40))
def test_the_client_refuses_what_the_engine_would(seed: int) -> None:
    draw = random.Random(seed)
    seen = Seen(most=draw.randint(1, 5))
    for number in range(120):
        match draw.choice(("add", "add", "step", "abort")):
            case "add":
                choices = draw.randint(1, 2)
                seen.add(make_request(f"r{number}", [1, 2], tenant=draw.choice(TENANTS), n=choices, max_tokens=4))
            case "step":
                seen.harness.step()
            case "abort":
                seen.harness.abort(f"r{draw.randrange(number + 1)}")
        seen.look()
    seen.harness.drain()
    seen.look()
    assert len(seen.waiting) == 0


def test_the_tenant_with_most_gives_way() -> None:
    assert gives_way("new", {"crowd": 3, "other": 1}) == "crowd"
    assert gives_way("crowd", {"crowd": 3, "other": 1}) is None
    assert gives_way("other", {"crowd": 2, "other": 1}) is None, "it would have as many then"
    assert gives_way("new", {}) is None
