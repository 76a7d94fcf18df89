"""RouteCollector: what each version of a route answers, while candidates or a shadow stand beside the stable one."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from loraplex.engine.status import Distribution

from ..observability.metrics import adapter_label
from .tallies import Lane, Tallies

LABELS: Final = ("route", "version", "role")
MOST_LANES: Final = 200
"""Shown at once: whoever makes aliases makes no series without end."""


class RouteCollector(Collector):
    """Series go with the share that they are of: `Tallies.keep` drops them."""

    def __init__(self, tallies: Tallies) -> None:
        self._tallies = tallies

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "loraplex_route_requests", "Requests by version of a route", labels=(*LABELS, "outcome")
        )
        first = HistogramMetricFamily(
            "loraplex_route_first_token_seconds", "Time to first token by version of a route", labels=LABELS
        )
        latency = HistogramMetricFamily(
            "loraplex_route_latency_seconds", "Time of a whole request by version of a route", labels=LABELS
        )
        for lane in self._tallies.lanes[:MOST_LANES]:
            values, totals = _values(lane), self._tallies.totals(lane)
            requests.add_metric([*values, "ok"], totals.requests - totals.errors)
            requests.add_metric([*values, "error"], totals.errors)
            _add(first, values, totals.first_token.distribution())
            _add(latency, values, totals.latency.distribution())
        yield from (requests, first, latency)


def _values(lane: Lane) -> list[str]:
    role = "shadow" if lane.shadow else "stable" if lane.since is None else "candidate"
    return [f"{adapter_label(lane.tenant, lane.adapter)}@{lane.alias}", str(lane.version), role]


def _add(family: HistogramMetricFamily, values: list[str], found: Distribution) -> None:
    bounds = [*map(floatToGoString, found.bounds), "+Inf"]
    family.add_metric(values, list(zip(bounds, accumulate(found.counts), strict=True)), found.total)
