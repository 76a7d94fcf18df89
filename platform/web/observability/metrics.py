"""Metrics: what this process counts and times, under vLLM's names, so that existing boards and gateways read them."""

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

import prometheus_client
from prometheus_client import CollectorRegistry, Histogram

from loraplex.engine.protocol import GenerateRequest, Tokens
from loraplex.registry.database.tables import DEFAULT_TENANT

from .adapter_use import AdapterUse
from .hourly_use import HourlyUse
from .request_log import ABORT, ERROR, FinishedRequest, Phases, RequestLog

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
SIZE_BUCKETS = tuple(float(10**power * step) for power in range(6) for step in (1, 2, 5))
COUNT_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
RECENT = 10_000


class Metrics:
    """The instruments of one server, in a registry of their own."""

    def __init__(self, base_name: str) -> None:
        self.registry = CollectorRegistry()
        self.labels = (base_name, "0")
        self.recent: deque[FinishedRequest] = deque(maxlen=RECENT)
        """Those that ran, of all tenants."""
        self.log = RequestLog(time.time())
        self.hours = HourlyUse()
        self.use = AdapterUse()
        self.first_token = self._histogram("time_to_first_token_seconds", "Time to first token", TTFT_BUCKETS)
        self.inter_token = self._histogram("inter_token_latency_seconds", "Time between tokens", TOKEN_BUCKETS)
        self.per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time per output token of a request", TOKEN_BUCKETS
        )
        self.latency = self._histogram("e2e_request_latency_seconds", "Time of a whole request", LATENCY_BUCKETS)
        self.queue = self._histogram("request_queue_time_seconds", "Time until first scheduled", LATENCY_BUCKETS)
        self.prefill = self._histogram("request_prefill_time_seconds", "Scheduled to first token", LATENCY_BUCKETS)
        self.decode = self._histogram("request_decode_time_seconds", "First to last token", LATENCY_BUCKETS)
        self.inference = self._histogram("request_inference_time_seconds", "Scheduled to last token", LATENCY_BUCKETS)
        self.prompt_tokens = self._histogram("request_prompt_tokens", "Prompt tokens of a request", SIZE_BUCKETS)
        self.generated = self._histogram("request_generation_tokens", "Tokens made for a request", SIZE_BUCKETS)
        self.longest = self._histogram(
            "request_max_num_generation_tokens", "Tokens made for the longest choice of a request", SIZE_BUCKETS
        )
        self.params_n = self._histogram("request_params_n", "Choices asked for", COUNT_BUCKETS)
        self.params_max_tokens = self._histogram("request_params_max_tokens", "max_tokens asked for", SIZE_BUCKETS)
        self.success = prometheus_client.Counter(
            "vllm:request_success",
            "Finished choices",
            ("model_name", "engine", "finished_reason"),
            registry=self.registry,
        )
        self.adapter_requests = prometheus_client.Counter(
            "loraplex_adapter_requests",
            "Requests by adapter and outcome",
            ("adapter", "status"),
            registry=self.registry,
        )

        self.shadow_requests = prometheus_client.Counter(
            "loraplex_shadow_requests",
            "Copies of requests for shadow versions, by adapter and outcome",
            ("adapter", "outcome"),
            registry=self.registry,
        )

    def forget(self, tenant: str, adapter: str) -> None:
        """Drop the series of an adapter that was removed."""
        for counter in (self.adapter_requests, self.shadow_requests):
            counter.remove_by_labels({"adapter": adapter_label(tenant, adapter)})
        self.hours.forget(tenant, adapter)
        self.use.forget(tenant, adapter)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(f"vllm:{name}", help, ("model_name", "engine"), buckets=buckets, registry=self.registry)
        return family.labels(*self.labels)


def adapter_label(tenant: str, name: str) -> str:
    """Equal names of two tenants are two series."""
    return name if tenant == DEFAULT_TENANT else f"{tenant}/{name}"


@dataclass(frozen=True, slots=True)
class RequestLabel:
    """What one request is known by. `model`: the label of its series; `versions`: number by name, of the adapters that
    it runs with; `trace_id`: the client's request id."""

    actor: str
    model: str
    versions: Mapping[str, int]
    trace_id: str


class RequestTimer:
    """Times one request and books it once, however it ends."""

    def __init__(self, metrics: Metrics, label: RequestLabel, request: GenerateRequest) -> None:
        self._metrics = metrics
        self._label = label
        self._request = request
        self._start = time.perf_counter()
        self._first: float | None = None
        self._last: dict[int, float] = {}
        self._generated: Counter[int] = Counter()
        self._queued = 0.0
        self._loaded = 0.0
        self._cached = 0
        self._status = ABORT
        self._reason = ""
        metrics.prompt_tokens.observe(len(request.prompt_token_ids))
        metrics.params_n.observe(request.params.n)
        if request.pooling is None and request.params.max_tokens is not None:
            metrics.params_max_tokens.observe(request.params.max_tokens)

    def note(self, tokens: Tokens) -> None:
        """One message of the engine has come."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now
            self._queued, self._loaded = tokens.queue_seconds or 0.0, tokens.load_seconds or 0.0
            self._metrics.first_token.observe(now - self._start)
            self._metrics.queue.observe(self._queued)
        elif tokens.token_ids and tokens.index in self._last:
            self._metrics.inter_token.observe((now - self._last[tokens.index]) / len(tokens.token_ids))
        self._last[tokens.index] = now
        self._cached = max(self._cached, tokens.cached_tokens)

    def take(self, index: int, count: int) -> None:
        """So many new tokens of a choice go to the client."""
        self._generated[index] += count

    def finish(self, reason: str) -> None:
        """One choice has ended."""
        self._status = reason
        self._metrics.success.labels(*self._metrics.labels, reason).inc()

    def begin(self) -> None:
        """The engine is asked; `close` follows."""
        self._metrics.use.begin(self._request.tenant, self._label.versions)

    def fail(self, reason: str) -> None:
        self._status, self._reason = ERROR, reason

    def close(self, aborted: bool) -> FinishedRequest:
        """The request is over. `aborted`: some choice had not ended."""
        now, metrics, completion_tokens = time.perf_counter(), self._metrics, self._generated.total()
        tenant, model = self._request.tenant, self._label.model
        if aborted and self._status != ERROR:
            self._status = ABORT
        metrics.use.end(tenant, self._label.versions)
        metrics.adapter_requests.labels(adapter_label(tenant, model), self._status).inc()
        metrics.latency.observe(now - self._start)
        metrics.generated.observe(completion_tokens)
        metrics.longest.observe(max(self._generated.values(), default=0))
        first_token = None if self._first is None else self._first - self._start
        phases = None
        if self._first is not None:
            phases = self._book_phases(self._first, max(self._last.values()), completion_tokens)
        metrics.hours.note(tenant, model, self._status == ERROR, completion_tokens)
        finished = FinishedRequest(
            at=time.time(),
            tenant=tenant,
            actor=self._label.actor,
            request_id=self._label.trace_id,
            model="+".join(sorted(self._label.versions)) or model,
            version=", ".join(str(number) for _, number in sorted(self._label.versions.items())),
            reason=self._reason,
            phases=phases,
            digests=tuple(adapter.digest for adapter in self._request.adapters),
            status=self._status,
            prompt_tokens=len(self._request.prompt_token_ids),
            completion_tokens=completion_tokens,
            cached_tokens=self._cached,
            first_token=first_token,
            duration=now - self._start,
        )
        metrics.recent.append(finished)
        metrics.log.add(finished)
        return finished

    def _book_phases(self, first: float, last: float, completion_tokens: int) -> Phases:
        metrics, scheduled = self._metrics, self._start + self._queued
        prefill = max(0.0, first - scheduled)
        metrics.prefill.observe(prefill)
        metrics.decode.observe(last - first)
        metrics.inference.observe(max(0.0, last - scheduled))
        if completion_tokens > 1:
            metrics.per_token.observe((last - first) / (completion_tokens - 1))
        return Phases(max(0.0, self._queued - self._loaded), self._loaded, prefill, last - first)
