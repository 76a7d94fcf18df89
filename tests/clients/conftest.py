"""The demo behind `loraplex serve`, asked by packages that people use: `make clients`.

The packages have an environment of their own, since some need other versions than the server. Nothing of loraplex is
imported here, and the conftest.py of the other tests is not read.
"""

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

# Some packages ask other hosts for prices and send traces unless they are told not to before they are imported.
os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "AI_SDK_LOG_WARNINGS": "false",
}

import pytest

from tests.integration.live_server import LiveServer
from tests.network import Watch

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "examples" / "demo" / "model"
QUESTION = "Count the customers in London."
QUERY = "SELECT COUNT(*) FROM customers WHERE city = 'London';"
SALE = "A driver called Lina paid 80 euros for 15 white kites in Paris."
RECORD = {"name": "Lina", "job": "driver", "city": "Paris", "item": "white kite", "count": 15, "price": 80}
HELLO = [{"role": "user", "content": QUESTION}]
NETWORK = Watch()


@dataclass(frozen=True, slots=True)
class Address:
    """Where clients find the server."""

    root: str
    key: str

    @property
    def v1(self) -> str:
        return f"{self.root}/v1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    result = yield
    assert NETWORK.take() == [], "this client tried to reach another machine"
    return result


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    key = "lp-clients-0123456789abcdef0123456789"
    folder = tmp_path_factory.mktemp("clients")
    server = LiveServer(folder, DEMO_MODEL, served_name="", api_key=key, adapter_memory="64MiB")
    server.python = str(ROOT / ".venv" / "bin" / "python")
    server.start()
    yield Address(server.url, key)
    server.end()
