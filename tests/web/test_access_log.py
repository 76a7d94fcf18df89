import logging

import httpx
import pytest

from loraplex.engine.client import EngineState

from .fake_engine import FakeEngine

PROBES = ["/health", "/ready", "/metrics"]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "loraplex.access")
    return caplog


async def levels(client: httpx.AsyncClient, lines: pytest.LogCaptureFixture, path: str, status: int) -> list[int]:
    """Levels of the lines that one request writes."""
    lines.clear()
    assert (await client.get(path)).status_code == status
    return [record.levelno for record in lines.records if record.name == "loraplex.access"]


@pytest.mark.parametrize("path", PROBES)
async def test_probes_that_go_well_are_not_worth_a_line(
    client: httpx.AsyncClient, lines: pytest.LogCaptureFixture, path: str
) -> None:
    assert await levels(client, lines, path, 200) == [logging.DEBUG]


async def test_probes_that_fail_and_everything_else_are_logged(
    client: httpx.AsyncClient, lines: pytest.LogCaptureFixture, engine: FakeEngine
) -> None:
    assert await levels(client, lines, "/v1/models", 200) == [logging.INFO]
    assert await levels(client, lines, "/health/none", 404) == [logging.INFO]
    engine.state = EngineState.RESTARTING
    assert await levels(client, lines, "/ready", 503) == [logging.INFO]
    assert any("GET '/ready' 503" in record.getMessage() for record in lines.records)
