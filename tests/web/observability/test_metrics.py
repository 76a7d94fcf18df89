import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loraplex.engine.status import DeviceMemory
from loraplex.registry.database.tables import DEFAULT_TENANT
from loraplex.web.observability.engine_memory import memory_words
from loraplex.web.observability.engine_metrics import names_by_digest
from loraplex.web.state import State

from ..fake_engine import FakeEngine
from ..test_adapters_api import add, say

HISTOGRAMS = [
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "iteration_tokens_total",
    "lora_adapter_load_seconds",
    "request_params_n",
]
COUNTERS = ["prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits"]
GAUGES = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]


async def scrape(client: httpx.AsyncClient) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """sample name -> labels -> value."""
    text = (await client.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for sample in samples:
        found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


async def test_vllm_names_and_labels(client: httpx.AsyncClient) -> None:
    assert (await say(client, "tiny")).status_code == 200
    found = await scrape(client)
    base = (("engine", "0"), ("model_name", "tiny"))
    for name in HISTOGRAMS:
        assert found[f"vllm:{name}_count"][base] >= 1, name
    for name in COUNTERS:
        assert base in found[f"vllm:{name}_total"], name
    for name in GAUGES:
        assert base in found[f"vllm:{name}"], name
    assert found["vllm:kv_cache_usage_perc"][base] == 0.5
    assert (
        found["vllm:request_success_total"][(("engine", "0"), ("finished_reason", "stop"), ("model_name", "tiny"))] == 1
    )
    [labels] = found["vllm:cache_config_info"]
    assert dict(labels)["block_size"] == "16" and dict(labels)["cache_dtype"] == "fp8_e4m3"


async def test_the_kv_cache_is_compared_with_one_of_bfloat16(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    name = "loraplex_kv_cache_capacity_tokens"
    fp8, bfloat16 = (("dtype", "fp8_e4m3"), ("in_use", "true")), (("dtype", "bfloat16"), ("in_use", "false"))
    assert (await scrape(client))[name] == {fp8: 1024, bfloat16: 512}
    assert engine.info is not None
    engine.info.kv_cache_dtype = "bfloat16"
    assert (await scrape(client))[name] == {(("dtype", "bfloat16"), ("in_use", "true")): 1024}


async def test_recurrent_states_are_counted_by_use(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert "loraplex_recurrent_states" not in await scrape(client)
    assert engine.info is not None
    engine.info.num_states, engine.info.state_bytes = 40, 3 << 20
    engine.free_states, engine.cached_states = 28, 5
    found = await scrape(client)
    counts = {dict(labels)["use"]: value for labels, value in found["loraplex_recurrent_states"].items()}
    assert counts == {"held": 12, "snapshot": 5, "blank": 23}
    assert found["loraplex_engine_memory_bytes"][(("part", "recurrent_states"),)] == 3 << 20


async def test_what_memory_is_for(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    async def parts() -> dict[str, float]:
        found = (await scrape(client))["loraplex_engine_memory_bytes"]
        return {dict(labels)["part"]: value for labels, value in found.items()}

    everywhere = dict.fromkeys(("weights", "adapters", "kv_cache"), 1 << 20)
    assert await parts() == everywhere
    assert engine.info is not None
    engine.info.device_memory = DeviceMemory(total=90 << 20, allowed=80 << 20, activations=7, graphs=5, graph_pool=3)
    assert await parts() == everywhere | {
        "activations": 7,
        "graphs": 5,
        "graph_pool": 3,
    }
    assert "graphs 5 B, graph pool 3 B, adapters" in memory_words(engine.info)
    assert memory_words(engine.info).endswith("; of 83.9 MB allowed, 94.4 MB in all")


async def test_the_seconds_of_a_gpu_are_told_where_there_is_one(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await scrape(client))["loraplex_engine_device_seconds_total"] == {(): 1.25}
    engine.device_seconds = None
    assert "loraplex_engine_device_seconds_total" not in await scrape(client)


async def test_kernels_compiled_too_late_are_counted(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.late_compilations = 3
    assert (await scrape(client))["loraplex_late_compilations_total"] == {(): 3}


async def test_histograms_of_the_engine_are_cumulative(client: httpx.AsyncClient) -> None:
    found = await scrape(client)
    base = (("engine", "0"), ("model_name", "tiny"))
    buckets = {dict(labels)["le"]: value for labels, value in found["vllm:iteration_tokens_total_bucket"].items()}
    assert buckets == {"1.0": 3, "8.0": 7, "+Inf": 10}
    assert found["vllm:iteration_tokens_total_count"][base] == 10
    assert found["vllm:iteration_tokens_total_sum"][base] == 50


async def test_the_longest_choice_of_a_request(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.stagger = 3
    body = {"model": "tiny", "prompt": "a", "n": 2, "max_tokens": 7, "ignore_eos": True}
    await client.post("/v1/completions", json=body)
    found = await scrape(client)
    base = (("engine", "0"), ("model_name", "tiny"))
    assert found["vllm:request_max_num_generation_tokens_sum"][base] == 7
    assert found["vllm:request_generation_tokens_sum"][base] == 14


async def test_adapter_series_come_and_go(
    client: httpx.AsyncClient, engine: FakeEngine, admin: dict[str, str], adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    await say(client, "tiny:sql")
    await client.post("/api/v1/adapters/sql/load")
    found = await scrape(client)
    [labels] = found["vllm:lora_requests_info"]
    expected = {"max_lora": "8", "running_lora_adapters": "sql", "waiting_lora_adapters": ""}
    assert dict(labels) == expected
    loaded = (("adapter_name", "sql"), ("level", "cpu"), ("pinned", "false"), ("rank", "8"))
    assert found["vllm:lora_adapter_loaded"] == {loaded: 1}
    kept = (("adapter", "sql"), ("tier", "host"))
    assert found["loraplex_adapter_resident"] == {(("adapter", "sql"), ("tier", "cpu")): 1, kept: 0}
    placed = (("adapter", "sql"), ("tier", "cpu"))
    assert (found["loraplex_adapter_pages"][placed], found["loraplex_adapter_bytes"][placed]) == (2, 1000)
    assert found["loraplex_adapter_requests_total"] == {(("adapter", "sql"), ("status", "stop")): 1}
    await client.delete("/api/v1/adapters/sql")
    found = await scrape(client)
    assert not any("sql" in str(labels) for series in found.values() for labels in series)


async def test_outcomes_are_booked_once(client: httpx.AsyncClient, engine: FakeEngine, state: State) -> None:
    await say(client, "tiny")
    engine.crash_after = 2
    await say(client, "tiny")
    first, second = state.metrics.recent
    assert (first.status, second.status) == ("stop", "error")
    assert first.request_id.startswith("req-")
    assert first.completion_tokens > second.completion_tokens == 2
    assert first.first_token is not None
    assert 0 < first.first_token <= first.duration


async def test_key_use_is_noted(client: httpx.AsyncClient, state: State) -> None:
    await client.get("/v1/models")
    used = state.used_keys.take()
    await asyncio.to_thread(state.registry.keys.record_use, used)
    assert [key.last_used_at is not None for key in state.registry.keys.list()] == [True]


async def test_metrics_of_a_lost_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.crash()
    found = await scrape(client)
    assert found["loraplex_engine_up"][()] == 0
    assert found["loraplex_engine_restarts_total"][()] == 1


async def test_residency_of_each_adapter(
    client: httpx.AsyncClient, engine: FakeEngine, admin: dict[str, str], adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    await client.patch("/api/v1/adapters/sql", json={"pinned": True})
    await add(client, "json", adapter_folders[1])
    [sql, json] = engine.registered
    engine.idle, engine.loads[json], engine.evictions[json], engine.kept = {sql: 90.0}, 4, 3, {json}
    found = await scrape(client)
    rows = (("sql", 1, 2, 1000, 1, 1, 0), ("json", 0, 0, 0, 0, 4, 3))
    for name, resident, pages, size, pinned, loads, evictions in rows:
        label, placed = (("adapter", name),), (("adapter", name), ("tier", "cpu"))
        by_tier = [found[f"loraplex_adapter_{what}"][placed] for what in ("resident", "pages", "bytes")]
        assert by_tier == [resident, pages, size]
        assert found["loraplex_adapter_pinned"][label] == pinned
        assert found["loraplex_adapter_evictions_total"][label] == evictions
        assert found["loraplex_adapter_loads_total"][label] == loads
        assert found["loraplex_adapter_host_loads_total"][label] == 0
        kept = (("adapter", name), ("tier", "host"))
        copied = [found[f"loraplex_adapter_{what}"][kept] for what in ("resident", "pages", "bytes")]
        assert copied == ([1, 2, 1000] if name == "json" else [0, 0, 0])
    for tier, used in (("cpu", 1000), ("host", 1000)):
        assert found["loraplex_adapter_cache_bytes"][(("tier", tier),)] == used
        assert found["loraplex_adapter_cache_capacity_bytes"][(("tier", tier),)] == 1 << 20
    assert found["loraplex_adapter_idle_seconds"] == {(("adapter", "sql"),): 90.0}
    assert found["vllm:num_cpu_loaded_lora_adapters"] == {(("engine", "0"), ("model_name", "tiny")): 1}


async def test_gateways_hear_who_waits_and_when_that_was(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    admin: dict[str, str],
    adapter_folders: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting is who is not in memory yet; the value is the time, by which readers find the newest series."""
    client.headers.update(admin)
    for name, folder in zip(("sql", "json"), adapter_folders, strict=True):
        await add(client, name, folder)
    await client.post("/api/v1/adapters/sql/load")
    status = engine.status
    assert status is not None
    for adapter in status.adapters:
        adapter.waiting = 2
    monkeypatch.setattr(FakeEngine, "status", status)
    before = time.time()
    [(labels, value)] = (await scrape(client))["vllm:lora_requests_info"].items()
    assert dict(labels) == {"max_lora": "8", "running_lora_adapters": "sql", "waiting_lora_adapters": "json"}
    assert before <= value <= time.time()


async def test_gateways_hear_every_name_of_the_same_bytes(
    client: httpx.AsyncClient, admin: dict[str, str], adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    for name, folder in (("a", adapter_folders[0]), ("a", adapter_folders[1]), ("b", adapter_folders[0])):
        await add(client, name, folder)
    await client.post("/api/v1/adapters/b/load")
    found = await scrape(client)
    [labels] = found["vllm:lora_requests_info"]
    assert dict(labels)["running_lora_adapters"] == "b,a@1"
    await client.post("/api/v1/adapters/a/load")
    [labels] = (await scrape(client))["vllm:lora_requests_info"]
    assert sorted(dict(labels)["running_lora_adapters"].split(",")) == ["a", "a@1", "b"]


def test_no_tenant_takes_the_name_of_another_s_series() -> None:
    """Equal names of two tenants are two series, and the same bytes in two tenants are the default one's."""

    def adapter(tenant: str, name: str, *digests: str) -> SimpleNamespace:
        versions = [SimpleNamespace(digest=digest, number=number) for number, digest in enumerate(digests, 1)]
        return SimpleNamespace(tenant=tenant, name=name, versions=versions, current=lambda: versions[-1])

    known = [
        adapter("beta", "aaa", "one"),
        adapter(DEFAULT_TENANT, "sql", "one"),
        adapter("beta", "sql", "old", "two"),
        adapter("acme", "sql", "three"),
    ]
    snapshot: Any = SimpleNamespace(adapters={index: {it.name: it} for index, it in enumerate(known)})
    assert names_by_digest(snapshot) == {
        "one": ["sql", "beta/aaa"],
        "old": ["beta/sql@1"],
        "two": ["beta/sql"],
        "three": ["acme/sql"],
    }
