"""The parts of docker-compose.yml as processes: PostgreSQL, the server below a sub-path, and Prometheus reading it."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.healthcheck import obstacles, ready_url
from loraplex.web.cli.serve.service_checks import check_port
from loraplex.web.settings.settings import Settings
from tests.deployment.dockerfile import ROOT
from tests.registry.postgres import PASSWORD, find_binaries, private_server

from .live_server import LiveServer, free_port
from .talk import COMPLETIONS, greedy

PROMETHEUS = shutil.which("prometheus")
ROOT_PATH = "/tools/lora"
BROWSER = {"accept": "text/html"}
SECONDS = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def stack(folder: Path, checkpoint: Path) -> Iterator[LiveServer]:
    """Of the profile `postgres`: migrated by a process of its own before the server starts."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL: install Debian's postgresql")
    secret = folder / "postgres_password"
    secret.write_text("b49ad1f07c5e2d68")
    secret.chmod(0o600)
    with private_server(binaries) as url:
        given = {"database_url": url.replace(f":{PASSWORD}@", "@"), "database_password_file": secret}
        server = LiveServer(folder, checkpoint, metrics_port=free_port(), root_path=ROOT_PATH, **given)
        try:
            server.command("db", "upgrade", "--only", "postgresql")
            server.start()
            yield server
        finally:
            server.end()


def test_below_a_path_that_a_proxy_cuts_off(stack: LiveServer) -> None:
    """What the server is asked has no prefix; whatever it says to a browser has."""
    with httpx.Client(base_url=stack.url, headers=BROWSER, trust_env=False) as stranger:
        sent = stranger.get("/adapters?search=a")
        assert (sent.status_code, sent.headers["location"]) == (303, f"{ROOT_PATH}/login?next=/adapters%3Fsearch%3Da")
        page = stranger.get("/login").text
        assert f'href="{ROOT_PATH}/static/app.css"' in page
        assert stranger.get("/static/app.css").status_code == 200
    with stack.client() as http:
        assert http.get("/openapi.json").json()["servers"] == [{"url": ROOT_PATH}]


def test_health_check_and_doctor_find_it(stack: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORAPLEX_PORT", str(stack.port))
    monkeypatch.setenv("LORAPLEX_ROOT_PATH", ROOT_PATH)
    assert obstacles(ready_url()) == ""
    assert "is serving there" in check_port(Settings()).what


@pytest.fixture
def prometheus(stack: LiveServer, folder: Path) -> Iterator[httpx.Client]:
    """Debian's, with the files and the command of docker-compose.yml; it scrapes more often."""
    if PROMETHEUS is None:
        pytest.skip("no Prometheus: install Debian's prometheus")
    shutil.copytree(ROOT / "deploy" / "prometheus", folder / "etc")
    config, port = folder / "etc" / "prometheus.yml", free_port()
    text = config.read_text().replace("server:9464", f"127.0.0.1:{stack.settings['metrics_port']}")
    config.write_text(text.replace("15s", "1s"))
    command = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]["command"]
    places = {"=/etc/prometheus/": f"={folder}/etc/", "=/prometheus": f"={folder}/series"}
    for inside, outside in places.items():
        command = [word.replace(inside, outside) for word in command]
    process = subprocess.Popen(
        [PROMETHEUS, *command, f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait(30)


ABSENT = "loraplex_engine_device_seconds_total", "loraplex_recurrent_states"
"""Only a GPU, and a model with recurrent layers, have them."""


def test_prometheus_reads_the_server(stack: LiveServer, prometheus: httpx.Client) -> None:
    """Every panel of the dashboard has figures, but what this server cannot have, and every alert can be computed."""

    def asked(path: str, part: str, **params: str) -> Any:
        try:
            answer = prometheus.get(path, params=params)
        except httpx.TransportError:
            return []
        return answer.json()["data"][part] if answer.status_code == 200 else []

    def healths() -> set[str]:
        """Of the alerts."""
        return {rule["health"] for group in asked("/rules", "groups") for rule in group["rules"]}

    with stack.client() as http:
        http.post(COMPLETIONS, json=greedy("tiny", "a", 8)).raise_for_status()
        assert until(lambda: asked("/query", "result", query='up{job="loraplex"} == 1'))
        http.post(COMPLETIONS, json=greedy("tiny", "a", 8)).raise_for_status()
    panels = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "server.json").read_text())["panels"]
    queries = [
        target["expr"].replace("$__rate_interval", "1m")
        for panel in panels
        for target in panel.get("targets", ())
        if not any(metric in target["expr"] for metric in ABSENT)
    ]
    assert len(queries) > 10
    for query in queries:
        assert until(lambda query=query: asked("/query", "result", query=query)), query
    until(lambda: (found := healths()) and "unknown" not in found)  # each has been computed once
    assert healths() == {"ok"}


def until(found: Callable[[], Any]) -> Any:
    """What it finds within a minute; what it found last, if that is nothing."""
    deadline = time.monotonic() + SECONDS
    while not (result := found()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return result
