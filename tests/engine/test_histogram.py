from loraplex.engine.histogram import Histogram, LoadTimes
from loraplex.engine.status import AdapterStatus

from .harness import Harness, make_request, tokens


def loaded(digest: str, loads: int, seconds: float | None) -> AdapterStatus:
    return AdapterStatus(digest=digest, state="resident", loads=loads, load_seconds=seconds)


def test_a_value_on_a_bound_is_inside() -> None:
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    found = histogram.distribution()
    assert (found.counts, found.total) == ([2, 2, 1], 7.5)


def test_each_load_counts_once_also_of_an_adapter_that_came_again() -> None:
    times = LoadTimes()
    for _ in range(3):
        found = times.note([loaded("a", 1, 0.002), loaded("b", 0, None)])
    assert (sum(found.counts), found.total) == (1, 0.002)
    assert times.note([loaded("a", 3, 0.25)]).total == 0.502
    times.note([])
    found = times.note([loaded("a", 1, 60.0)])
    assert (sum(found.counts), found.counts[-1]) == (4, 1)


def test_the_engine_counts_the_tokens_of_each_step() -> None:
    harness = Harness(max_num_batched_tokens=16)
    stream = harness.add(make_request("r", tokens(40), ignore_eos=True))
    harness.drain()
    status = harness.core.status()
    assert status.step_tokens.total == 40 + len(stream.outputs[0]) - 1
    assert sum(status.step_tokens.counts) == status.steps == 3 + len(stream.outputs[0]) - 1
