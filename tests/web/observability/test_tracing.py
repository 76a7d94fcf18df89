"""Spans of requests at a real collector: an HTTP server, and a gRPC server, that read OTLP."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.web.observability import tracing
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state

from ..conftest import served
from ..fake_engine import FakeEngine
from ..tools import CHAT, HELLO

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
LATENCIES = ("time_in_queue", "time_to_first_token", "time_in_model_prefill", "time_in_model_decode", "e2e")


class Collector:
    """`spans` as they were sent."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint, self.spans = endpoint, list[Span]()
        self.resources = list[dict[str, str]]()

    def take(self, sent: Any) -> None:
        for resource in sent.resource_spans:
            self.resources.append({one.key: one.value.string_value for one in resource.resource.attributes})
            for scope in resource.scope_spans:
                self.spans += scope.spans


def by_http() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            collector.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield collector
    server.shutdown()
    server.server_close()


def by_grpc() -> Iterator[Collector]:
    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            collector.take(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    collector = Collector(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    yield collector
    server.stop(None)


@pytest.fixture(params=[by_http, by_grpc], ids=["http/protobuf", "grpc"])
def collector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.delenv(tracing.PROTOCOL, raising=False)
    yield from request.param()


@pytest.fixture
def state(settings: Settings, checkpoint: Path, collector: Collector) -> State:
    traced = settings.model_copy(update={"otlp_traces_endpoint": collector.endpoint})
    return open_state(traced, checkpoint, FakeEngine(Tokenizer(checkpoint)))


def attributes(span: Span) -> dict[str, Any]:
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        assert kind is not None
        found[one.key] = getattr(one.value, kind)
    return found


async def test_each_request_is_a_span_below_its_callers(state: State, collector: Collector) -> None:
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 5, "temperature": 0.5, "top_p": 0.9}
    async with served(state) as client:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine-1"}
        assert (await client.post(CHAT, json=ask, headers=headers)).status_code == 200
        lines = await client.post(CHAT, json=ask | {"stream": True}, headers=headers | {"x-request-id": "mine-2"})
        assert lines.status_code == 200
        assert (await client.post(CHAT, json=ask, headers={"x-request-id": "mine-3"})).status_code == 200
        assert (await client.post(CHAT, json=ask | {"model": "nowhere"})).status_code == 404
    spans = {attributes(span)["gen_ai.request.id"]: span for span in collector.spans}
    assert sorted(spans) == ["mine-1", "mine-2", "mine-3"] and len(collector.spans) == 3
    for name in ("mine-1", "mine-2"):
        assert (spans[name].trace_id.hex(), spans[name].parent_span_id.hex()) == (TRACE, PARENT)
    assert spans["mine-3"].trace_id.hex() != TRACE and not spans["mine-3"].parent_span_id
    assert collector.resources[0]["service.name"] == "loraplex"
    span = spans["mine-1"]
    said = attributes(span)
    assert (span.name, span.kind) == ("llm_request", Span.SPAN_KIND_SERVER)
    assert (said["gen_ai.usage.completion_tokens"], said["gen_ai.request.max_tokens"]) == (5, 5)
    assert (said["gen_ai.request.temperature"], said["gen_ai.request.top_p"]) == (0.5, 0.9)
    assert (said["gen_ai.response.model"], said["gen_ai.usage.prompt_tokens"] > 0) == ("tiny", True)
    times = {name: said[f"gen_ai.latency.{name}"] for name in LATENCIES}
    assert all(value >= 0 for value in times.values()) and times["time_to_first_token"] <= times["e2e"]
    assert said["loraplex.time_in_adapter_load"] <= times["time_in_queue"]
    lasted = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert lasted == pytest.approx(times["e2e"], abs=1e-6)


async def test_a_request_that_fails_says_so(state: State, collector: Collector) -> None:
    engine = state.engine
    assert isinstance(engine, FakeEngine)
    async with served(state) as client:
        engine.crash_after = 2
        answer = await client.post(CHAT, json={"model": "tiny", "messages": HELLO})
        assert answer.status_code == 503
    [span] = collector.spans
    assert span.status.code == span.status.STATUS_CODE_ERROR and span.status.message


async def test_a_collector_that_is_away_holds_up_nobody(settings: Settings, checkpoint: Path) -> None:
    away = settings.model_copy(update={"otlp_traces_endpoint": "http://127.0.0.1:9/v1/traces"})
    state = open_state(away, checkpoint, FakeEngine(Tokenizer(checkpoint)))
    async with asyncio.timeout(60), served(state) as client:
        answers = [await client.post(CHAT, json={"model": "tiny", "messages": HELLO}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3


def test_without_the_package_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_is_there", lambda package: "grpc" not in package)
    with pytest.raises(ValueError, match=r"needs OpenTelemetry.*pip install 'loraplex\[otel\]'"):
        tracing.check_tracing("http://127.0.0.1:4317")
    tracing.check_tracing("")


def test_a_protocol_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracing.PROTOCOL, "http/json")
    with pytest.raises(ValueError, match="set it to grpc or http/protobuf"):
        tracing.check_tracing("http://127.0.0.1:4317")


def test_nothing_is_imported_without_a_collector() -> None:
    names = "('opentelemetry.sdk', 'opentelemetry.exporter')"
    code = f"import sys, loraplex.web.app; sys.exit(any(name.startswith({names}) for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
