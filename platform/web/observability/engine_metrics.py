"""EngineCollector: the engine's last heartbeat and the adapters' residency, read when /metrics is scraped."""

import time
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from loraplex.engine.protocol import EngineInfo, EngineStatus
from loraplex.engine.status import AdapterStatus, Distribution, StructuredStatus
from loraplex.registry.snapshot import Snapshot, Snapshots

from ..adapters.engine_door import EngineDoor
from .engine_memory import memory_parts
from .kv_cache import bfloat16_tokens, held_states, tokens, written_values
from .metrics import adapter_label

LABELS: Final = ("model_name", "engine")
RESIDENT: Final = "resident"
HOST: Final = "host"
"""Label of the host cache, beside that of the device."""
SHOWN_DIGITS: Final = 12
"""Of a digest that no name stands for."""
Names = dict[str, list[str]]


class EngineCollector(Collector):
    def __init__(self, engine: EngineDoor, snapshots: Snapshots, base_name: str) -> None:
        self._engine = engine
        self._snapshots = snapshots
        self._values = (base_name, "0")

    def collect(self) -> Iterator[Metric]:
        yield _gauge("loraplex_engine_up", "1 while the engine serves", float(self._engine.ready()))
        yield _counter("loraplex_engine_restarts", "Engines that were lost", float(self._engine.restarts))
        info, status = self._engine.info, self._engine.status
        if info is None or status is None:
            return
        yield from self._load(info, status)
        names = names_by_digest(self._snapshots.current)
        yield from _vllm_adapters(info, status, names, self._values)
        yield from _adapters(info, status, names)
        yield from _clipping(info, status, names, self._values[0])
        if status.structured is not None:
            yield from _structured(status.structured)

    def _load(self, info: EngineInfo, status: EngineStatus) -> Iterator[Metric]:
        used = 1.0 - status.free_blocks / info.num_blocks if info.num_blocks else 0.0
        gauges = (
            ("num_requests_running", "Sequences in the running batch", status.running),
            ("num_requests_waiting", "Requests that wait", status.waiting),
            ("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1", used),
        )
        counters = (
            ("prompt_tokens", "Prompt tokens processed", status.prompt_tokens),
            ("generation_tokens", "Tokens generated", status.generation_tokens),
            ("num_preemptions", "Sequences put back for lack of blocks", status.preemptions),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", status.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found there", status.prefix_hits),
        )
        for name, help, value in gauges:
            yield _gauge(f"vllm:{name}", help, value, LABELS, self._values)
        for name, help, value in counters:
            yield _counter(f"vllm:{name}", help, value, LABELS, self._values)
        cache = {
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_blocks),
            "cache_dtype": info.kv_cache_dtype,
        }
        yield _gauge(
            "vllm:cache_config_info", "Shape of the KV cache", 1, (*LABELS, *cache), (*self._values, *cache.values())
        )
        yield _capacity(info)
        yield _memory(info)
        if info.num_states:
            yield _states(info, status)
        steps, loads = status.step_tokens, status.adapter_load_seconds
        yield _histogram("vllm:iteration_tokens_total", "Tokens of an engine step", steps, LABELS, self._values)
        yield _histogram("vllm:lora_adapter_load_seconds", "Time of an adapter's load", loads, LABELS, self._values)
        yield _counter("loraplex_engine_steps", "Engine steps", status.steps)
        yield _counter("loraplex_engine_step_seconds", "Seconds in steps", status.step_seconds)
        yield _counter("loraplex_engine_host_seconds", "Seconds in steps outside the model", status.host_seconds)
        if status.device_seconds is not None:
            yield _counter("loraplex_engine_device_seconds", "Seconds that the GPU was at steps", status.device_seconds)
        yield _counter("loraplex_engine_evictions", "Adapters evicted, of all that ever were", status.adapter_evictions)
        yield _counter("loraplex_integrity_errors", "Broken invariants found", status.integrity_errors)
        late = status.late_compilations
        yield _counter("loraplex_late_compilations", "Kernels compiled while requests were served", late)


def _capacity(info: EngineInfo) -> GaugeMetricFamily:
    """Both the cache's own dtype and bfloat16, to compare; one series where they are the same."""
    help = "Tokens that fit in the KV cache as it is, and those that its bytes would hold in bfloat16"
    family = GaugeMetricFamily("loraplex_kv_cache_capacity_tokens", help, labels=("dtype", "in_use"))
    family.add_metric((info.kv_cache_dtype, "true"), tokens(info))
    if info.kv_cache_dtype != "bfloat16":
        family.add_metric(("bfloat16", "false"), bfloat16_tokens(info))
    return family


def _states(info: EngineInfo, status: EngineStatus) -> GaugeMetricFamily:
    """Of models with recurrent layers: snapshots are free, and can still serve a prefix."""
    family = GaugeMetricFamily("loraplex_recurrent_states", "Slots of recurrent states by use", labels=("use",))
    snapshots = status.cached_states
    counts = {"held": held_states(info, status), "snapshot": snapshots, "blank": status.free_states - snapshots}
    for use, count in counts.items():
        family.add_metric((use,), count)
    return family


def _memory(info: EngineInfo) -> GaugeMetricFamily:
    help = "Bytes that the engine reserved at its start, by what they are for"
    family = GaugeMetricFamily("loraplex_engine_memory_bytes", help, labels=("part",))
    for part, size in memory_parts(info).items():
        family.add_metric((part,), size)
    return family


def adapter_names(snapshot: Snapshot) -> dict[str, str]:
    """digest -> what people call it: the bare name where it means this version, else name@number."""
    return {digest: names[0] for digest, names in names_by_digest(snapshot).items()}


def names_by_digest(snapshot: Snapshot) -> Names:
    """digest -> all that people call it: bare names first, other tenants' last, so that none of these takes the place
    of another. The same bytes may have several names."""
    names: Names = {}
    for adapter in (adapter for tenant in snapshot.adapters.values() for adapter in tenant.values()):
        current, label = adapter.current(), adapter_label(adapter.tenant, adapter.name)
        for version in adapter.versions:
            name = label if version is current else f"{label}@{version.number}"
            names.setdefault(version.digest, []).append(name)
    return {digest: sorted(found, key=lambda name: ("/" in name, "@" in name, name)) for digest, found in names.items()}


def _all_names(names: Names, digest: str) -> list[str]:
    return names.get(digest, [digest[:SHOWN_DIGITS]])


def _name(names: Names, digest: str) -> str:
    return _all_names(names, digest)[0]


def _vllm_adapters(info: EngineInfo, status: EngineStatus, names: Names, values: tuple[str, str]) -> Iterator[Metric]:
    """The gauges that gateways route by; "running" means loaded and ready, as their protocol says."""
    resident = [adapter for adapter in status.adapters if adapter.state == RESIDENT]
    waiting = [adapter for adapter in status.adapters if adapter.waiting and adapter.state != RESIDENT]
    labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
    shown = [
        ",".join(name for adapter in group for name in _all_names(names, adapter.digest))
        for group in (resident, waiting)
    ]
    yield _gauge(
        "vllm:lora_requests_info", "Adapters by state", time.time(), labels, (str(info.max_loaded_adapters), *shown)
    )
    loaded = GaugeMetricFamily(
        "vllm:lora_adapter_loaded", "1 while loaded", labels=("adapter_name", "level", "pinned", "rank")
    )
    for adapter in resident:
        pinned, level = str(adapter.pinned).lower(), _tier(info)
        loaded.add_metric((_name(names, adapter.digest), level, pinned, str(adapter.rank)), 1)
    yield loaded
    kept = sum(adapter.host_bytes > 0 for adapter in status.adapters)
    in_host_memory = len(resident) if _tier(info) == "cpu" else kept
    yield _gauge("vllm:num_gpu_loaded_lora_adapters", "Loaded adapters", len(resident), LABELS, values)
    yield _gauge("vllm:num_cpu_loaded_lora_adapters", "Those in host memory", in_host_memory, LABELS, values)
    yield _gauge("vllm:max_gpu_lora_adapters", "Most adapters loaded at once", info.max_loaded_adapters, LABELS, values)


def _adapters(info: EngineInfo, status: EngineStatus, names: Names) -> Iterator[Metric]:
    yield from _tiers(info, status)
    yield from _by_tier(_tier(info), status, names)
    pinned = GaugeMetricFamily("loraplex_adapter_pinned", "1 while it is never evicted", labels=("adapter",))
    running = GaugeMetricFamily("loraplex_adapter_running", "Sequences that use it", labels=("adapter",))
    waiting = GaugeMetricFamily("loraplex_adapter_waiting", "Sequences that wait for their turn", labels=("adapter",))
    idle = GaugeMetricFamily("loraplex_adapter_idle_seconds", "Seconds since its last use", labels=("adapter",))
    loads = CounterMetricFamily("loraplex_adapter_loads", "Times it was loaded", labels=("adapter",))
    host_loads = CounterMetricFamily("loraplex_adapter_host_loads", "Those from the host cache", labels=("adapter",))
    evictions = CounterMetricFamily("loraplex_adapter_evictions", "Times it was evicted", labels=("adapter",))
    for name, adapter in _by_name(status.adapters, names):
        pinned.add_metric((name,), float(adapter.pinned))
        running.add_metric((name,), adapter.running)
        waiting.add_metric((name,), adapter.waiting)
        loads.add_metric((name,), adapter.loads)
        host_loads.add_metric((name,), adapter.host_loads)
        evictions.add_metric((name,), adapter.evictions)
        if adapter.last_used_seconds_ago is not None:
            idle.add_metric((name,), 0.0 if adapter.running else adapter.last_used_seconds_ago)
    yield from (pinned, running, waiting, idle, loads, host_loads, evictions)


def _clipping(info: EngineInfo, status: EngineStatus, names: Names, base: str) -> Iterator[Metric]:
    """Nothing where every key and value has a scale of its own. The base's series is that of tokens without adapter."""
    labels = ("adapter",)
    written = CounterMetricFamily("loraplex_kv_values", "Numbers stored with static KV scales", labels=labels)
    saturated = CounterMetricFamily("loraplex_kv_saturated", "Those beyond their static scale", labels=labels)
    tokens = CounterMetricFamily("loraplex_kv_saturated_tokens", "Tokens with any such number", labels=labels)
    adapters = [(name, adapter.clipping) for name, adapter in _by_name(status.adapters, names)]
    for name, clipping in [(base, status.base_clipping), *adapters]:
        if clipping is not None:
            written.add_metric((name,), written_values(info, clipping))
            saturated.add_metric((name,), clipping.clipped_values)
            tokens.add_metric((name,), clipping.clipped_tokens)
    yield from (written, saturated, tokens)


def _structured(status: StructuredStatus) -> Iterator[Metric]:
    requests = CounterMetricFamily("loraplex_structured_requests", "Requests for answers of a form", labels=("kind",))
    failed = CounterMetricFamily("loraplex_structured_failed", "Those that ended with an error", labels=("reason",))
    for family, counts in ((requests, status.requests), (failed, status.failed)):
        for value, count in counts.items():
            family.add_metric((value,), count)
        yield family
    compiled, masks = status.compile_seconds, status.mask_seconds
    yield _histogram("loraplex_grammar_compile_seconds", "Time of a grammar's compilation, also in vain", compiled)
    yield _histogram("loraplex_mask_wait_seconds", "Time that a step waited for masks of constrained choices", masks)
    yield _counter("loraplex_late_masks", "Times that a choice sat a step out for want of its mask", status.late_masks)
    yield _counter(
        "loraplex_grammar_process_restarts", "Grammar processes that ended and were replaced", status.restarts
    )


def _tiers(info: EngineInfo, status: EngineStatus) -> Iterator[Metric]:
    used = GaugeMetricFamily("loraplex_adapter_cache_bytes", "Bytes of adapters' weights", labels=("tier",))
    capacity = GaugeMetricFamily("loraplex_adapter_cache_capacity_bytes", "Bytes there are for them", labels=("tier",))
    used.add_metric((_tier(info),), status.adapter_bytes_used)
    used.add_metric((HOST,), status.adapter_host_bytes_used)
    capacity.add_metric((_tier(info),), info.adapter_memory)
    capacity.add_metric((HOST,), info.adapter_host_memory)
    yield from (used, capacity)


def _by_tier(tier: str, status: EngineStatus, names: Names) -> Iterator[Metric]:
    """What each adapter has in memory and in the host cache; zeros while it is only on disk."""
    labels = ("adapter", "tier")
    resident = GaugeMetricFamily("loraplex_adapter_resident", "1 while it is there", labels=labels)
    pages = GaugeMetricFamily("loraplex_adapter_pages", "Rank pages it holds", labels=labels)
    size = GaugeMetricFamily("loraplex_adapter_bytes", "Bytes of its rank pages", labels=labels)
    for name, adapter in _by_name(status.adapters, names):
        loaded = adapter.state == RESIDENT
        kept = adapter.host_bytes > 0
        for place, found, taken in ((tier, loaded, adapter.bytes * loaded), (HOST, kept, adapter.host_bytes)):
            resident.add_metric((name, place), float(found))
            pages.add_metric((name, place), adapter.pages * found)
            size.add_metric((name, place), taken)
    yield from (resident, pages, size)


def _by_name(adapters: list[AdapterStatus], names: Names) -> list[tuple[str, AdapterStatus]]:
    return sorted(((_name(names, adapter.digest), adapter) for adapter in adapters), key=lambda pair: pair[0])


def _tier(info: EngineInfo) -> str:
    return "cpu" if info.device.startswith("cpu") else "gpu"


def _gauge(
    name: str, help: str, value: float, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help, labels=labels)
    family.add_metric(values, value)
    return family


def _histogram(
    name: str, help: str, found: Distribution, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()
) -> HistogramMetricFamily:
    bounds = [*map(floatToGoString, found.bounds), "+Inf"]
    family = HistogramMetricFamily(name, help, labels=labels)
    family.add_metric(values, list(zip(bounds, accumulate(found.counts), strict=True)), found.total)
    return family


def _counter(
    name: str, help: str, value: float, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help, labels=labels)
    family.add_metric(values, value)
    return family
