"""Doctor's checks of the machine: Python, torch, the compute path, memory, compiled kernels."""

import importlib.util
import os
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loraplex.engine.device.launcher_tools import REMEDY, missing_tools
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.folder import resolve_model_folder

from ...settings.settings import Settings
from ...units import size_words
from .service_checks import Check

if TYPE_CHECKING:
    import torch

    from loraplex.engine.config import EngineConfig
    from loraplex.engine.device.device import Device
    from loraplex.engine.startup.kv_cache_size import KvCachePlan
    from loraplex.engine.startup.static_scales import CacheScales

SUPPORTED_PYTHONS = ((3, 11), (3, 13))
REMEDIES = "--kv-cache-memory, --num-kv-blocks, --adapter-memory or --adapter-host-memory"


def check_python() -> Check:
    what = f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}"
    oldest, newest = SUPPORTED_PYTHONS
    if not oldest <= sys.version_info[:2] <= newest:
        return Check("fail", what, "Python 3.11 to 3.13 is needed.")
    return Check("ok", what)


def check_torch() -> Check:
    import torch

    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    return Check("ok", f"torch {torch.__version__}, {cuda}")


def check_compute(settings: Settings) -> Check:
    """The path the engine takes with these settings, and why: the engine's own choice, in its own words."""
    from loraplex.engine.device.device import choose_device
    from loraplex.engine.device.threads import available_cores

    folder = resolve_model_folder(settings.model)
    device = choose_device(settings.engine_config(folder), ModelConfig.from_folder(folder))
    return Check("ok", f"compute: {device.compute}; {available_cores()} core(s) usable")


def check_memory(settings: Settings) -> Check:
    """Whether adapters and KV cache fit beside the weights, in the memory of the device that serves them."""
    from loraplex.engine.device.device import choose_device, free_memory
    from loraplex.engine.model.loader import Checkpoint
    from loraplex.engine.startup.kv_cache_size import choose_cache_dtype, plan_kv_cache
    from loraplex.engine.startup.static_scales import choose_scales

    folder = resolve_model_folder(settings.model)
    config, model = settings.engine_config(folder), ModelConfig.from_folder(folder)
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    device = choose_device(config, model)
    cache_dtype = choose_cache_dtype(config.kv_cache_dtype, device.stored_dtype)
    scales = choose_scales(
        config, model, cache_dtype, Checkpoint(folder, model.spec), base_signature(folder).fingerprint
    )
    if device.is_cuda:
        return _check_gpu_memory(device, config, model, weights, cache_dtype, scales)
    free = free_memory()
    adapters = {"adapters": config.adapter_memory, "evicted adapters": config.adapter_host_memory}
    left = free - weights - sum(adapters.values())
    longest = model.length(config.max_model_len)
    plan = plan_kv_cache(config, model, longest, cache_dtype, max(0, left), scales.static is not None)
    needs = {"weights": weights, **adapters, "KV cache": plan.bytes, **_states(plan)}
    words = ", ".join(f"{name} {size_words(size)}" for name, size in needs.items())
    what = f"memory: {size_words(free)} free; {words} for {plan.num_usable * config.block_size:,} tokens"
    what += f" with {scales.words}" if scales.words else ""
    if plan.bytes + plan.state_bytes > left:
        return Check("fail", what, f"That does not fit. Lower {REMEDIES}.")
    return Check("ok", what)


def _states(plan: "KvCachePlan") -> dict[str, int]:
    """Bytes of recurrent states; nothing for a model without recurrent layers."""
    return {f"{plan.num_states:,} recurrent states": plan.state_bytes} if plan.num_states else {}


def _check_gpu_memory(
    device: "Device",
    config: "EngineConfig",
    model: ModelConfig,
    weights: int,
    dtype: "torch.dtype",
    scales: "CacheScales",
) -> Check:
    """By the rule of the engine's start, but for what it measures then: what a step takes, and weights as they lie."""
    from loraplex.engine.startup import gpu_profile
    from loraplex.engine.startup.gpu_memory import SHORTER, Seen, plan_graphs, split_memory

    gauge = gpu_profile.open_gauge(device.device)
    free, total = gauge.free_and_total()
    ratio = 1.0 if model.quantization is not None else SHORTER.get(config.quantization, 1.0)
    graphs = plan_graphs(config, model.num_layers, total).bytes
    seen = Seen(gauge.name, total, free, int(weights / ratio), activations=0, graphs=graphs, graph_pool=0)
    what = f"memory of {gauge.name}: {size_words(free)} of {size_words(total)} free"
    try:
        split = split_memory(config, model, seen, dtype, scales.static is not None)
    except ValueError as error:
        return Check("fail", what, f"{error}.")
    needs = {"weights": seen.weights, "CUDA graphs": graphs, "adapters": split.adapters, "KV cache": split.cache.bytes}
    needs |= _states(split.cache)
    words = ", ".join(f"{name} {size_words(size)}" for name, size in needs.items())
    what += f"; {words} for {split.cache.num_usable * config.block_size:,} tokens, minus the memory of the largest step"
    return Check("ok", what + (f"; {scales.words}" if scales.words else ""))


def check_kernel_cache() -> Check:
    """`prepare_environment` has chosen the folder."""
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    if folder.exists() and not os.access(folder, os.W_OK):
        return Check("fail", f"kernel cache {folder} cannot be written", "Set NUMBA_CACHE_DIR to a folder of yours.")
    if folder.name.startswith("loraplex-kernels-"):
        remedy = "Each start compiles again. Make ~/.cache writable, or set XDG_CACHE_HOME to a folder of yours."
        return Check("warn", f"kernel cache {folder} lasts only for this process", remedy)
    compiled = sum(1 for _ in folder.rglob("*.nbc"))
    state = f"{compiled} compiled kernels" if compiled else "empty; the first start compiles for about a minute"
    return Check("ok", f"kernel cache {folder}: {state}")


def check_triton() -> Check:
    """On a GPU it builds what launches its kernels."""
    if importlib.util.find_spec("triton") is None:
        return Check("ok", "triton is not installed; it is only needed on a GPU (loraplex's extra `gpu`)")
    lacking = missing_tools()
    if not lacking:
        return Check("ok", "triton is installed, with the C compiler and headers it needs on a GPU")
    from loraplex.engine.device.device import find_cuda

    what = f"triton is installed without {' and '.join(lacking)}, which it needs on a GPU"
    if find_cuda() is None:
        return Check("ok", what)
    return Check("fail", what, REMEDY)
