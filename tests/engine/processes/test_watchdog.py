"""The watchdog by a clock of its own: what is a fault, and after how long, whatever came before."""

import pytest

from loraplex.engine.processes.vital_signs import Signs
from loraplex.engine.processes.watchdog import LOOK_SECONDS, Watchdog

COMPUTES, WAITS, STOPPED = Signs(working=True), Signs(working=False), Signs(working=False, stopped=True)


class Watch:
    def __init__(self) -> None:
        self.now = 0.0
        self.dog = Watchdog(lambda: self.now)

    def look(self, signs: Signs, after: float = LOOK_SECONDS) -> str | None:
        self.now += after
        return self.dog.look(signs)

    def lasts(self, signs: Signs, most: float = 10_000.0) -> float:
        """Seconds of silence until it is a fault."""
        begun = self.now
        while self.look(signs) is None:
            assert self.now - begun < most, "never"
        return self.now - begun


@pytest.fixture
def serving() -> Watch:
    watch = Watch()
    watch.dog.serve(on_gpu=False)
    watch.dog.hear()
    return watch


@pytest.mark.parametrize("signs", [WAITS, STOPPED])
def test_silence_without_work_is_a_fault_after_the_same_time_whatever_came_before(serving: Watch, signs: Signs) -> None:
    first = serving.lasts(signs)
    assert 5 <= first <= 10
    for _ in range(20):
        serving.dog.hear()
        for _ in range(int(first / LOOK_SECONDS) - 1):
            assert serving.look(WAITS) is None
        serving.dog.hear()
        for _ in range(1000):
            assert serving.look(COMPUTES) is None
    serving.dog.hear()
    assert serving.lasts(signs) == first


def test_it_is_not_ready_before_it_is_ended_and_ready_again_when_it_speaks(serving: Watch) -> None:
    while not serving.dog.unresponsive:
        assert serving.look(WAITS) is None
    assert serving.now <= 4
    serving.dog.hear()
    assert not serving.dog.unresponsive


def test_a_long_step_is_no_fault_and_an_endless_one_is(serving: Watch) -> None:
    assert 600 < serving.lasts(COMPUTES) < 1200
    assert not serving.dog.unresponsive


def test_a_wait_within_a_long_step_counts_on(serving: Watch) -> None:
    """Idle threads that wake up now and then hide no hang."""
    waited = 0.0
    while serving.look(COMPUTES if serving.now % 5 == 0 else WAITS) is None:
        waited += LOOK_SECONDS
    assert waited < 15


def test_who_was_not_awake_has_seen_no_silence(serving: Watch) -> None:
    """The machine was suspended, or the API process had no core or was blocked: it looks late, and once."""
    for _ in range(3):
        assert serving.look(WAITS, after=3600.0) is None
        assert not serving.dog.unresponsive
        serving.dog.hear()
    assert serving.look(STOPPED, after=3600.0) is None


def test_what_is_announced_may_take_long_unless_it_is_stopped(serving: Watch) -> None:
    serving.dog.hear(busy=True)
    for _ in range(600):
        assert serving.look(WAITS) is None
        assert not serving.dog.unresponsive
    assert serving.lasts(WAITS) < 1200
    serving.dog.hear(busy=True)
    assert serving.lasts(STOPPED) <= 10
    serving.dog.hear()
    assert serving.lasts(WAITS) <= 10, "the next message ends what was announced"


def test_waiting_for_a_gpu_looks_like_work() -> None:
    watch = Watch()
    watch.dog.serve(on_gpu=True)
    watch.dog.hear()
    assert 10 < watch.lasts(COMPUTES) <= 60
    watch.dog.hear(busy=True)
    assert watch.lasts(COMPUTES) > 600


def test_loading_may_wait_for_a_disk_for_long_but_not_for_ever() -> None:
    watch = Watch()
    for _ in range(600):
        assert watch.look(WAITS) is None
    assert watch.lasts(WAITS) < 1200
    assert Watch().lasts(STOPPED) <= 10
