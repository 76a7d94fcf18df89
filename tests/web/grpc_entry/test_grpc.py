"""The gRPC API with a real client, whose stubs protoc makes of our file as a user would."""

import asyncio
import importlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loraplex.web.grpc_entry import packages
from loraplex.web.grpc_entry.messages import PROTO
from loraplex.web.grpc_entry.server import serving_grpc
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State

from ...integration.live_server import free_port
from ..conftest import KEY, served
from ..fake_engine import BASE_SENTENCE, FakeEngine
from ..tools import HELLO

WITH_KEY = (("authorization", f"Bearer {KEY}"),)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """Messages and stubs."""
    folder = tmp_path_factory.mktemp("stubs")
    out = (f"--python_out={folder}", f"--grpc_python_out={folder}")
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}", *out, PROTO.name], check=True)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("loraplex_pb2"), importlib.import_module("loraplex_pb2_grpc")
    sys.path.remove(str(folder))


class Client:
    def __init__(self, made: tuple[Any, Any], channel: grpc.aio.Channel, http: httpx.AsyncClient) -> None:
        self.messages, self.channel, self.http = made[0], channel, http
        self.stub = made[1].InferenceStub(channel)

    async def generate(self, metadata: Any = WITH_KEY, **fields: Any) -> list[Any]:
        sent = self.messages.GenerateRequest(**{"model": "tiny", "prompt": "Hello", **fields})
        return [part async for part in self.stub.Generate(sent, metadata=metadata)]


@pytest_asyncio.fixture
async def client(state: State, made: tuple[Any, Any]) -> AsyncIterator[Client]:
    state.settings = state.settings.model_copy(update={"grpc_port": free_port()})
    where = f"127.0.0.1:{state.settings.grpc_port}"
    async with served(state) as http, serving_grpc(state), grpc.aio.insecure_channel(where) as channel:
        yield Client(made, channel, http)


async def test_text_is_streamed_and_ends_with_its_usage(client: Client) -> None:
    *parts, last = await client.generate(max_tokens=100)
    assert "".join(part.text for part in parts) == BASE_SENTENCE and len(parts) > 3
    assert [part.finish_reason for part in parts if part.HasField("finish_reason")] == ["stop"]
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 100}
    usage = (await client.http.post("/v1/completions", json=body)).json()["usage"]
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


async def test_fields_arrive_at_the_engine(client: Client, engine: FakeEngine) -> None:
    await client.generate(max_tokens=3, temperature=0.5, top_k=7, seed=11, stop=["x", "y"], n=2, stop_token_ids=[5])
    params = engine.requests[-1].params
    assert (params.max_tokens, params.temperature, params.top_k, params.seed) == (3, 0.5, 7, 11)
    assert (params.stop, params.n, 5 in params.stop_token_ids) == (["x", "y"], 2, True)
    ids = client.messages.TokenIds(ids=[3, 4, 5])
    sent = client.messages.GenerateRequest(model="tiny", prompt_token_ids=ids, temperature=0)
    assert [part async for part in client.stub.Generate(sent, metadata=WITH_KEY)]
    assert engine.requests[-1].prompt_token_ids == [3, 4, 5] and engine.requests[-1].params.temperature == 0


async def test_a_chat_is_the_prompt_that_http_makes(client: Client, engine: FakeEngine) -> None:
    message = client.messages.Message(**HELLO[0])
    sent = client.messages.GenerateRequest(model="tiny", chat=client.messages.Messages(messages=[message]))
    assert [part async for part in client.stub.Generate(sent, metadata=WITH_KEY)]
    await client.http.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO})
    mine, theirs = (request.prompt_token_ids for request in engine.requests[-2:])
    assert mine == theirs


@pytest.mark.parametrize(
    ("metadata", "fields", "code", "words"),
    [
        ((), {}, "UNAUTHENTICATED", "No API key was sent"),
        ((("authorization", "Bearer wrong"),), {}, "UNAUTHENTICATED", "Incorrect API key"),
        (WITH_KEY, {"model": "nowhere"}, "NOT_FOUND", "does not exist"),
        (WITH_KEY, {"temperature": 3.0}, "INVALID_ARGUMENT", "temperature"),
        (WITH_KEY, {"n": 1000}, "INVALID_ARGUMENT", "n"),
        (WITH_KEY, {"prompt": "x " * 50_000}, "INVALID_ARGUMENT", "maximum context length"),
        (WITH_KEY, {"guided_json": "{}", "guided_regex": "a"}, "INVALID_ARGUMENT", "guided_regex"),
        ((("x-api-key", KEY),), {"max_tokens": 1 << 20}, "INVALID_ARGUMENT", "max"),
    ],
)
async def test_refusals_have_a_status_and_words(
    client: Client, metadata: Any, fields: dict[str, Any], code: str, words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.generate(metadata, **fields)
    assert refused.value.code() is getattr(grpc.StatusCode, code)
    assert words in (refused.value.details() or "")
    trailing = dict(refused.value.trailing_metadata() or ())
    if code == "INVALID_ARGUMENT":
        assert trailing["x-loraplex-param"]


async def test_without_an_input_it_is_refused(client: Client) -> None:
    sent = client.messages.GenerateRequest(model="tiny")
    with pytest.raises(grpc.aio.AioRpcError, match="set prompt, prompt_token_ids or chat"):
        assert [part async for part in client.stub.Generate(sent, metadata=WITH_KEY)]


async def test_a_model_without_texts_names_the_method_for_vectors(client: Client, engine: FakeEngine) -> None:
    engine.why_silent = "this model makes embeddings"
    await engine.start()
    with pytest.raises(
        grpc.aio.AioRpcError, match=r"This model makes embeddings\. Use Embed for vectors or"
    ) as refused:
        await client.generate()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_quotas_are_those_of_http(client: Client, state: State) -> None:
    from loraplex.registry.access.quotas import Quota

    [key] = state.registry.keys.list()
    state.registry.keys.change(key.prefix, actor="system", quota=Quota(requests_per_minute=1))
    state.registry.snapshots.refresh()
    assert (await client.http.post("/v1/completions", json={"model": "tiny", "prompt": "x"})).status_code == 200
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.generate()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(refused.value.trailing_metadata() or ())["retry-after"]) > 0


async def test_a_running_request_is_aborted_by_its_key_alone(client: Client, state: State, engine: FakeEngine) -> None:
    engine.delay = 0.05
    sent = client.messages.GenerateRequest(model="tiny", prompt="Hello", request_id="mine", max_tokens=200)
    call = client.stub.Generate(sent, metadata=WITH_KEY)
    await call.read()
    other = (("authorization", f"Bearer {state.registry.keys.create('o', ['inference'], actor='system').token}"),)
    state.registry.snapshots.refresh()
    abort = client.messages.AbortRequest(request_id="mine")
    assert not (await client.stub.Abort(abort, metadata=other)).found
    assert (await client.stub.Abort(abort, metadata=WITH_KEY)).found
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        while await call.read() is not grpc.aio.EOF:
            pass
    assert ended.value.code() is grpc.StatusCode.CANCELLED and "aborted" in (ended.value.details() or "")
    async with asyncio.timeout(10):
        while engine.running:
            await asyncio.sleep(0.01)
    assert not (await client.stub.Abort(abort, metadata=WITH_KEY)).found


async def test_a_client_that_goes_ends_its_request(client: Client, engine: FakeEngine) -> None:
    engine.delay = 0.05
    call = client.stub.Generate(client.messages.GenerateRequest(model="tiny", prompt="Hello"), metadata=WITH_KEY)
    await call.read()
    call.cancel()
    async with asyncio.timeout(10):
        while engine.running:
            await asyncio.sleep(0.01)


async def test_vectors_are_those_of_http(client: Client) -> None:
    body = {"model": "tiny", "input": ["one", "two three"]}
    expected = (await client.http.post("/v1/embeddings", json=body)).json()
    found = await client.stub.Embed(client.messages.EmbedRequest(**body), metadata=WITH_KEY)
    for vector, entry in zip(found.embeddings, expected["data"], strict=True):
        assert list(vector.values) == pytest.approx(entry["embedding"], abs=1e-7)
    assert found.usage.prompt_tokens == expected["usage"]["prompt_tokens"]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.stub.Embed(client.messages.EmbedRequest(model="tiny"), metadata=WITH_KEY)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_a_model_is(client: Client, state: State) -> None:
    info = await client.stub.GetModelInfo(client.messages.GetModelInfoRequest(), metadata=WITH_KEY)
    assert (info.model, info.base, info.is_adapter, list(info.models)) == ("tiny", "tiny", False, ["tiny"])
    assert (info.max_model_len, info.has_chat_template) == (state.max_model_len, True)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.stub.GetModelInfo(client.messages.GetModelInfoRequest(model="no"), metadata=WITH_KEY)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_needs_no_key_and_follows_the_server(client: Client, state: State) -> None:
    stub = health_pb2_grpc.HealthStub(client.channel)

    async def becomes(status: int) -> None:
        async with asyncio.timeout(10):
            while (await stub.Check(health_pb2.HealthCheckRequest(service="loraplex.v1.Inference"))).status != status:
                await asyncio.sleep(0.05)

    await becomes(health_pb2.HealthCheckResponse.SERVING)
    state.stopping.set()
    await becomes(health_pb2.HealthCheckResponse.NOT_SERVING)


async def test_a_request_is_logged_with_its_id(client: Client, state: State) -> None:
    await client.generate(request_id="mine-7")
    [line] = state.metrics.log.of(None)
    assert (line.request_id, line.status) == ("mine-7", "length")


def test_without_the_package_the_port_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "PACKAGES", ("grpc", "no_such_package_of_grpc"))
    packages.check_grpc(settings)
    with pytest.raises(ValueError, match=r"no_such_package_of_grpc is not installed.*pip install 'loraplex\[grpc\]'"):
        packages.check_grpc(settings.model_copy(update={"grpc_port": 50051}))


def test_nothing_is_imported_without_a_port() -> None:
    code = "import sys, loraplex.web.grpc_entry.server; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
