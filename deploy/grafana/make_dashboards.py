"""Write Grafana's dashboards: a panel is a title, a unit and queries, the rest is the same for all.

python deploy/grafana/make_dashboards.py
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"
SOURCE: Final = {"type": "prometheus", "uid": "prometheus"}
FAILED: Final = 'loraplex_adapter_requests_total{status="error"}'
ROUTE_FAILED: Final = 'loraplex_route_requests_total{outcome="error"}'
ANSWERED: Final = 'loraplex_route_requests_total{role!="shadow"}'
ROUTED: Final = "route, version, role"
VERSION: Final = "{{route}} version {{version}} ({{role}})"
COLUMNS: Final = 3
WIDTH: Final = 24 // COLUMNS
HEIGHT: Final = 8


@dataclass(frozen=True)
class Panel:
    """`queries`: legend -> PromQL."""

    title: str
    unit: str
    queries: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A line with a title above the panels that follow."""

    title: str


def quantiles_by(metric: str, labels: str, share: float) -> str:
    """Of a histogram, for each value of the labels."""
    return f"histogram_quantile({share:g}, sum by (le, {labels}) (rate({metric}_bucket[$__rate_interval])))"


def quantiles(metric: str, *shares: float) -> dict[str, str]:
    """Of a histogram, over all series."""
    rate = f"sum by (le) (rate({metric}_bucket[$__rate_interval]))"
    return {f"p{share * 100:g}": f"histogram_quantile({share:g}, {rate})" for share in shares}


def rate(metric: str, by: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}(rate({metric}[$__rate_interval]))"


SERVER: Final = (
    Panel("Requests", "reqps", {"{{status}}": rate("loraplex_adapter_requests_total", "status")}),
    Panel("Running and waiting", "short", {
        "running": "sum(vllm:num_requests_running)",
        "waiting": "sum(vllm:num_requests_waiting)",
    }),
    Panel("Tokens", "short", {
        "prompt tokens/s": rate("vllm:prompt_tokens_total"),
        "generated tokens/s": rate("vllm:generation_tokens_total"),
    }),
    Panel("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds", 0.5, 0.95, 0.99)),
    Panel("Time between tokens", "s", quantiles("vllm:inter_token_latency_seconds", 0.5, 0.95, 0.99)),
    Panel("Time of a request", "s", quantiles("vllm:e2e_request_latency_seconds", 0.5, 0.95)),
    Panel("Time in the queue", "s", quantiles("vllm:request_queue_time_seconds", 0.5, 0.95)),
    Panel("KV cache in use", "percentunit", {"blocks": "max(vllm:kv_cache_usage_perc)"}),
    Panel("Recurrent states", "short", {"{{use}}": "sum by (use) (loraplex_recurrent_states)"}),
    Panel("Prompt tokens found in the prefix cache", "percentunit", {
        "share": f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}",
    }),
    Panel("Engine", "short", {
        "up": "min(loraplex_engine_up)",
        "restarts in an hour": "sum(increase(loraplex_engine_restarts_total[1h]))",
        "broken invariants in an hour": "sum(increase(loraplex_integrity_errors_total[1h]))",
    }),
    Panel("Time of a step outside the model", "percentunit", {
        "share": f"{rate('loraplex_engine_host_seconds_total')} / {rate('loraplex_engine_step_seconds_total')}",
    }),
    Panel("GPU busy with steps", "percentunit", {"share": rate("loraplex_engine_device_seconds_total")}),
    Panel("Sequences put back for lack of blocks", "ops", {"preemptions": rate("vllm:num_preemptions_total")}),
    Row("Structured output"),
    Panel("Requests for a form", "reqps", {"{{kind}}": rate("loraplex_structured_requests_total", "kind")}),
    Panel("Of these refused or failed", "reqps", {"{{reason}}": rate("loraplex_structured_failed_total", "reason")}),
    Panel("Time of a grammar's compilation", "s", quantiles("loraplex_grammar_compile_seconds", 0.5, 0.95, 0.99)),
    Panel("Time that a step waits for masks", "s", quantiles("loraplex_mask_wait_seconds", 0.5, 0.95, 0.99)),
    Panel("Choices that sat a step out", "ops", {"late masks": rate("loraplex_late_masks_total")}),
    Panel("Grammar processes replaced", "short", {
        "in an hour": "sum(increase(loraplex_grammar_process_restarts_total[1h]))",
    }),
)  # fmt: skip
ADAPTERS: Final = (
    Panel("Requests by adapter", "reqps", {
        "{{adapter}}": f"topk(12, {rate('loraplex_adapter_requests_total', 'adapter')})",
    }),
    Panel("Failed requests by adapter", "reqps", {
        "{{adapter}}": f"topk(12, {rate(FAILED, 'adapter')})",
    }),
    Panel("Sequences that wait, by adapter", "short", {"{{adapter}}": "topk(12, loraplex_adapter_waiting > 0)"}),
    Panel("Adapter memory", "bytes", {
        "{{tier}} used": "sum by (tier) (loraplex_adapter_cache_bytes)",
        "{{tier}} there is": "sum by (tier) (loraplex_adapter_cache_capacity_bytes)",
    }),
    Panel("Adapters in memory", "short", {"{{tier}}": "sum by (tier) (loraplex_adapter_resident)"}),
    Panel("Loads and evictions", "ops", {
        "loads": rate("loraplex_adapter_loads_total"),
        "of these from the host cache": rate("loraplex_adapter_host_loads_total"),
        "evictions": rate("loraplex_adapter_evictions_total"),
    }),
    Panel("Time of a load", "s", quantiles("vllm:lora_adapter_load_seconds", 0.5, 0.95)),
    Panel("Evictions by adapter", "ops", {
        "{{adapter}}": f"topk(12, {rate('loraplex_adapter_evictions_total', 'adapter')})",
    }),
    Panel("Idle longest of those in memory", "s", {
        "{{adapter}}": "topk(12, loraplex_adapter_idle_seconds and on (adapter) (loraplex_adapter_resident == 1))",
    }),
    Row("Routes: the versions of an alias that has candidates or a shadow"),
    Panel("Share of the traffic", "percentunit", {
        VERSION: f"{rate(ANSWERED, ROUTED)} / on (route) group_left () {rate(ANSWERED, 'route')}",
    }),
    Panel("Share that failed", "percentunit", {
        VERSION: f"{rate(ROUTE_FAILED, ROUTED)} / {rate('loraplex_route_requests_total', ROUTED)}",
    }),
    Panel("p95 time to first token", "s", {
        VERSION: quantiles_by("loraplex_route_first_token_seconds", ROUTED, 0.95),
    }),
    Panel("p95 time of a request", "s", {VERSION: quantiles_by("loraplex_route_latency_seconds", ROUTED, 0.95)}),
    Panel("Requests", "reqps", {VERSION: rate(ANSWERED, ROUTED)}),
    Panel("Copies for shadows", "reqps", {
        "{{adapter}} {{outcome}}": rate("loraplex_shadow_requests_total", "adapter, outcome"),
    }),
)  # fmt: skip
DASHBOARDS: Final = {"server": ("loraplex: server", SERVER), "adapters": ("loraplex: adapters", ADAPTERS)}


def document(name: str) -> dict[str, Any]:
    """What Grafana reads."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"loraplex-{name}",
        "title": title,
        "tags": ["loraplex"],
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "schemaVersion": 41,
        "panels": list(_placed(panels)),
    }


def _placed(panels: Sequence[Panel | Row]) -> Iterator[dict[str, Any]]:
    """From left to right and top to bottom; a row begins a new line."""
    column, y = 0, 0
    for number, panel in enumerate(panels, start=1):
        if isinstance(panel, Row):
            y, column = y + (HEIGHT if column else 0), 0
            line = {"id": number, "type": "row", "title": panel.title, "collapsed": False, "panels": []}
            yield line | {"gridPos": {"x": 0, "y": y, "w": 24, "h": 1}}
            y += 1
            continue
        yield _panel(number, panel, column * WIDTH, y)
        column = (column + 1) % COLUMNS
        y += 0 if column else HEIGHT


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def text(name: str) -> str:
    return json.dumps(document(name), indent=1) + "\n"


if __name__ == "__main__":
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(text(name))
