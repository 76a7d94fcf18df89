"""Tracing: one OpenTelemetry span for each request that ran, under vLLM's names, sent to an OTLP collector.

The packages of the extra `otel` are imported only where a collector is named.
"""

import os
import time
from collections.abc import Mapping
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import loraplex
from loraplex.engine.protocol import GenerateRequest

from .request_log import ERROR, FinishedRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

SPAN: Final = "llm_request"
PACKAGES: Final = (
    "opentelemetry.sdk",
    "opentelemetry.exporter.otlp.proto.grpc",
    "opentelemetry.exporter.otlp.proto.http",
)
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
GRPC, HTTP = "grpc", "http/protobuf"
HTTP_PATH: Final = "/v1/traces"
CONTEXT_HEADERS: Final = ("traceparent", "tracestate")
NANOSECONDS: Final = 1_000_000_000
_parent: ContextVar[Mapping[str, str]] = ContextVar("trace_parent")


def note_parent(headers: Mapping[str, str]) -> None:
    """The caller's W3C trace context, for what is run for this request."""
    found = {name: headers[name] for name in CONTEXT_HEADERS if name in headers}
    _parent.set(found)


def check_tracing(endpoint: str) -> None:
    """ValueError where spans could not be sent: a package is missing, or the protocol is none."""
    if not endpoint:
        return
    missing = [name for name in PACKAGES if not _is_there(name)]
    if missing:
        raise ValueError(
            f"otlp_traces_endpoint needs OpenTelemetry, and {missing[0]} is not installed. Install it: "
            "pip install 'loraplex[otel]', or leave the setting out"
        )
    _protocol(endpoint)


class Tracing:
    """`endpoint`: of an OTLP collector, by gRPC or HTTP. Sending is for a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        check_tracing(endpoint)
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        named = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "loraplex")})
        self._provider: TracerProvider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(endpoint)))
        self._tracer = self._provider.get_tracer("loraplex", loraplex.__version__)

    def note(self, finished: FinishedRequest, request: GenerateRequest) -> None:
        """One request has ended. Called where it ran, so that its caller's context is known."""
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        end = time.time_ns()
        span = self._tracer.start_span(
            SPAN,
            context=TraceContextTextMapPropagator().extract(_parent.get({})),
            kind=SpanKind.SERVER,
            attributes=attributes_of(finished, request),
            start_time=end - round(finished.duration * NANOSECONDS),
        )
        if finished.status == ERROR:
            span.set_status(Status(StatusCode.ERROR, finished.reason))
        span.end(end)

    def close(self) -> None:
        """Send what is left. Blocks."""
        self._provider.shutdown()


def attributes_of(finished: FinishedRequest, request: GenerateRequest) -> dict[str, Any]:
    """Times in seconds. The time in the queue has that of the adapter's load in it, as the metrics have."""
    params, phases = request.params, finished.phases
    found: dict[str, Any] = {
        "gen_ai.request.id": finished.request_id,
        "gen_ai.response.model": finished.model,
        "gen_ai.request.n": params.n,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.usage.num_sequences": params.n,
        "gen_ai.usage.prompt_tokens": finished.prompt_tokens,
        "gen_ai.usage.completion_tokens": finished.completion_tokens,
        "gen_ai.latency.e2e": finished.duration,
        "loraplex.tenant": finished.tenant,
        "loraplex.finish_reason": finished.status,
        "loraplex.cached_tokens": finished.cached_tokens,
    }
    if params.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = params.max_tokens
    if finished.version:
        found["loraplex.adapter_version"] = finished.version
    if finished.first_token is not None:
        found["gen_ai.latency.time_to_first_token"] = finished.first_token
    if phases is not None:
        found |= {
            "gen_ai.latency.time_in_queue": phases.queue + phases.load,
            "gen_ai.latency.time_in_model_prefill": phases.prefill,
            "gen_ai.latency.time_in_model_decode": phases.decode,
            "gen_ai.latency.time_in_model_inference": phases.prefill + phases.decode,
            "loraplex.time_in_adapter_load": phases.load,
        }
    return found


def _protocol(endpoint: str) -> str:
    """As vLLM: the variable's, else gRPC. A path of HTTP's says HTTP."""
    told = os.environ.get(PROTOCOL) or (HTTP if endpoint.rstrip("/").endswith(HTTP_PATH) else GRPC)
    if told not in (GRPC, HTTP):
        raise ValueError(f"{PROTOCOL} is {told!r}; set it to {GRPC} or {HTTP}")
    return told


def _exporter(endpoint: str) -> "SpanExporter":
    if _protocol(endpoint) == HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter(endpoint=endpoint)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint.removeprefix("grpc://"), insecure=not endpoint.startswith("https://"))


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
