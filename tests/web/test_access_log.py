import logging
from pathlib import Path

import httpx
import pytest

from loraplex.engine.ipc.client import EngineState
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.web.cli.port import listen
from loraplex.web.monitoring import monitoring
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state
from tests.integration.live_server import free_port

from .batches.test_batches import begin, prompt, until_ended
from .batches.test_batches import lines as lines_of
from .conftest import served
from .fake_engine import FakeEngine

PROBES = ["/health", "/ready", "/metrics"]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "loraplex.access")
    return caplog


async def levels(
    client: httpx.AsyncClient, lines: pytest.LogCaptureFixture, path: str, method: str = "GET"
) -> list[int]:
    """Of the lines that one request writes."""
    lines.clear()
    await client.request(method, path)
    return [record.levelno for record in lines.records if record.name == "loraplex.access"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", PROBES)
async def test_probes_are_not_worth_a_line_whatever_they_are_told(
    client: httpx.AsyncClient,
    lines: pytest.LogCaptureFixture,
    engine: FakeEngine,
    state: State,
    path: str,
    method: str,
) -> None:
    state.settings = state.settings.model_copy(update={"public_metrics": False})
    for engine_state in EngineState:
        engine.state = engine_state
        assert await levels(client, lines, path, method=method) == [logging.DEBUG]
    state.stopping.set()
    assert await levels(client, lines, path, method=method) == [logging.DEBUG]


async def test_a_setting_has_them_logged(settings: Settings, checkpoint: Path, lines: pytest.LogCaptureFixture) -> None:
    loud = settings.model_copy(update={"log_probes": True})
    async with served(open_state(loud, checkpoint, FakeEngine(Tokenizer(checkpoint)))) as client:
        for path in PROBES:
            assert await levels(client, lines, path) == [logging.INFO]


async def test_everything_else_is_logged(client: httpx.AsyncClient, lines: pytest.LogCaptureFixture) -> None:
    assert await levels(client, lines, "/v1/models") == [logging.INFO]
    assert await levels(client, lines, "/health/none") == [logging.INFO]
    assert any("GET '/health/none' 404" in record.getMessage() for record in lines.records)


async def test_the_monitoring_port_writes_no_lines(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, lines: pytest.LogCaptureFixture
) -> None:
    engine.state = EngineState.RESTARTING
    port = free_port()
    lines.clear()
    async with monitoring(state, listen("127.0.0.1", port)), httpx.AsyncClient(trust_env=False) as probe:
        assert [(await probe.get(f"http://127.0.0.1:{port}{path}")).status_code for path in PROBES] == [200, 503, 200]
    assert not [record for record in lines.records if "access" in record.name]


async def test_lines_of_a_batch_are_not_worth_one_each(
    client: httpx.AsyncClient, lines: pytest.LogCaptureFixture
) -> None:
    await until_ended(client, (await begin(client, lines_of(map(prompt, range(3)))))["id"])
    written = [record for record in lines.records if "/v1/completions" in record.getMessage()]
    assert [record.levelno for record in written] == [logging.DEBUG] * 3
