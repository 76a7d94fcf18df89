"""The demo behind `loraplex serve`, asked by packages that people use. A test without its package is skipped."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from loraplex.web.settings.settings import DEMO_MODEL
from tests.integration.live_server import LiveServer

QUESTION = "Count the customers in London."
QUERY = "SELECT COUNT(*) FROM customers WHERE city = 'London';"
SALE = "A driver called Lina paid 80 euros for 15 white kites in Paris."
RECORD = {"name": "Lina", "job": "driver", "city": "Paris", "item": "white kite", "count": 15, "price": 80}
HELLO = [{"role": "user", "content": QUESTION}]


@dataclass(frozen=True, slots=True)
class Address:
    """Where clients find the server."""

    root: str
    key: str

    @property
    def v1(self) -> str:
        return f"{self.root}/v1"


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    key = "lp-clients-0123456789abcdef0123456789"
    folder = tmp_path_factory.mktemp("clients")
    server = LiveServer(folder, DEMO_MODEL, served_name="", api_key=key, adapter_memory="64MiB")
    server.start()
    # Some packages ask other hosts for prices and send traces unless they are told not to.
    os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    yield Address(server.url, key)
    server.end()
