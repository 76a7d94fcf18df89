"""Rules and dashboards against what a real server exposes, and Prometheus itself where it is installed."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from deploy.grafana import make_dashboards
from loraplex.web.state import State
from tests.deployment.dockerfile import ROOT

PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
NOT_METRICS = frozenset("sum min max rate increase topk histogram_quantile by on and le or without group_left".split())  # noqa: SIM905
OF_PROMETHEUS = frozenset({"up"})
OF_RECURRENT_LAYERS = {"loraplex_recurrent_states"}
"""tests/web/observability/test_metrics.py has a model with them."""


def expressions() -> Iterator[str]:
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for file in sorted(DASHBOARDS.glob("*.json")):
        yield from (
            target["expr"] for panel in json.loads(file.read_text())["panels"] for target in panel.get("targets", ())
        )


def metrics_in(expression: str) -> set[str]:
    """Names that are neither functions, labels, ranges nor texts."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|without) \([^)]*\)', " ", expression)
    return set(re.findall(r"[a-zA-Z_:][\w:]*", bare)) - NOT_METRICS


def labels_in(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Metric -> labels that a selector or the grouping around it names."""
    for metric, inside in re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression):
        yield metric, set(re.findall(r"(\w+)\s*[=!]", inside))
    for labels, rest in re.findall(r"\b(?:by|on) \(([^)]*)\)(.*)", expression):
        for metric in metrics_in(rest):
            yield metric, set(re.findall(r"\w+", labels))


@pytest.fixture
async def series(client: httpx.AsyncClient, admin: dict[str, str], state: State) -> dict[str, set[str]]:
    """Name -> labels of all that the server exposes after one request."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
    (await client.post("/v1/completions", json=body)).raise_for_status()
    text = (await client.get("/metrics", headers=admin)).text
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            for suffix in ("_bucket", "_count", "_sum") if kind == "histogram" else ("",):
                found.setdefault(name + suffix, set())
        elif not line.startswith("#"):
            name, labels = re.match(r"([\w:]+)(\{.*\})?", line).groups()  # type: ignore[union-attr]
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


def test_dashboards_are_what_the_script_writes() -> None:
    assert {file.stem for file in DASHBOARDS.glob("*.json")} == make_dashboards.DASHBOARDS.keys()
    for name in make_dashboards.DASHBOARDS:
        assert (DASHBOARDS / f"{name}.json").read_text() == make_dashboards.text(name), "run make_dashboards.py again"


async def test_every_metric_exists(series: dict[str, set[str]]) -> None:
    named = {metric for expression in expressions() for metric in metrics_in(expression)}
    named -= OF_PROMETHEUS | OF_RECURRENT_LAYERS
    assert len(named) > 25, named
    assert named <= series.keys(), named - series.keys()


async def test_every_label_exists(series: dict[str, set[str]], state: State) -> None:
    """Of metrics that have series here; those of adapters have none without one."""
    asked = [pair for expression in expressions() for pair in labels_in(expression)]
    checked = [metric for metric, labels in asked if series.get(metric) and labels <= series[metric]]
    wrong = [(metric, labels) for metric, labels in asked if series.get(metric) and not labels <= series[metric]]
    assert not wrong and len(checked) > 10


def test_a_metric_that_does_not_exist_would_be_found() -> None:
    expression = 'sum by (tier) (rate(loraplex_nothing_total{status="error"}[5m])) / sum(vllm:other) > 0.5'
    assert metrics_in(expression) == {"loraplex_nothing_total", "vllm:other"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: Debian's prometheus has it")
def test_prometheus_reads_its_files(tmp_path: Any) -> None:
    subprocess.run(["promtool", "check", "config", PROMETHEUS / "prometheus.yml"], check=True, capture_output=True)
    queries = {"groups": [{"name": "all", "rules": [
        {"record": f"query:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(expressions())
    ]}]}  # fmt: skip
    (tmp_path / "queries.yml").write_text(yaml.safe_dump(queries))
    subprocess.run(["promtool", "check", "rules", tmp_path / "queries.yml"], check=True, capture_output=True)


def test_data_source_and_dashboards_are_found() -> None:
    folder = ROOT / "deploy" / "grafana" / "provisioning"
    source = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    assert {"type": source["type"], "uid": source["uid"]} == make_dashboards.SOURCE
    provider = yaml.safe_load((folder / "dashboards" / "loraplex.yml").read_text())["providers"][0]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in compose["grafana"]["volumes"]
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0]
    host, port = scraped["targets"][0].split(":")
    for name in ("loraplex", "loraplex-gpu"):
        assert host in compose[name]["networks"]["back"]["aliases"]
        assert compose[name]["environment"]["LORAPLEX_METRICS_PORT"] == port
