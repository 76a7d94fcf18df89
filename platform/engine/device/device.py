"""Where the model runs, in which dtype, on how many threads, and why: decided once at start."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch

from loraplex.quant.schemes.choose import choose_cuda_scheme, choose_scheme
from loraplex.quant.schemes.selector import SchemeSelector
from loraplex.quant.weights.online import OnlineQuantization

from ..config import EngineConfig, check_block_size
from ..model.config import ModelConfig
from ..model.description.config_fields import DTYPES
from .computing import Computing
from .runtime import cpu_runtime, cuda_runtime
from .threads import set_host_threads, set_threads

DEVICES: Final = ("auto", "cpu", "cuda")
MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Device:
    device: torch.device
    stored_dtype: torch.dtype
    """Of the weights; of keys and values in the cache too, unless `kv_cache_dtype` says another."""
    scheme: SchemeSelector
    online: OnlineQuantization
    """What is done to float weights at load."""
    num_threads: int
    compute: str
    """What was chosen and why, in one sentence."""
    arithmetic: str
    """What linears are multiplied with."""
    runtime: dict[str, str]
    """What computes it all, as of runtime.py."""
    is_cuda: bool = False
    """Whether the kernels are those for CUDA."""


def choose_device(config: EngineConfig, model: ModelConfig) -> Device:
    """Settle device, dtype, scheme and threads. ValueError for a setting this machine cannot do."""
    if config.device not in DEVICES:
        raise ValueError(f"device {config.device!r} is not supported; use {', '.join(DEVICES)}")
    stored = _stored_dtype(config.dtype, model.dtype)
    online = OnlineQuantization(config.quantization, config.head_quantization)
    cuda = _chosen_cuda(config, model)
    if cuda is not None:
        scheme, name = choose_cuda_scheme(cuda, stored, model.quantization, online), _name(cuda)
        num_threads = set_host_threads(config.num_threads)
        arithmetic = f"{name}; {scheme.activations}" if scheme.activations else name
        compute, runtime = f"{name}, {scheme.reason}", cuda_runtime(cuda)
        return Device(cuda, stored, scheme, online, num_threads, compute, arithmetic, runtime, is_cuda=True)
    return _cpu(config, model, stored, online)


def _cpu(config: EngineConfig, model: ModelConfig, stored: torch.dtype, online: OnlineQuantization) -> Device:
    from loraplex.quant.schemes.arithmetic import (
        ARITHMETIC,  # compiled for this processor, as all that a CPU computes with
    )

    check_block_size(config.block_size)
    num_threads, sharing = set_threads(config.num_threads)
    device = torch.device("cpu")
    scheme = choose_scheme(device, stored, model.quantization)
    threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
    compute = f"cpu, {threads}, {scheme.reason}; {sharing}"
    return Device(device, stored, scheme, online, num_threads, compute, ARITHMETIC, cpu_runtime())


def find_computing(config: EngineConfig, model: ModelConfig) -> Computing:
    """Of the Device that `choose_device` would settle."""
    if _chosen_cuda(config, model) is None:
        from loraplex.quant.schemes.arithmetic import ARITHMETIC

        return Computing(ARITHMETIC, cpu_runtime())
    device = choose_device(config, model)
    return Computing(device.arithmetic, device.runtime)


def _chosen_cuda(config: EngineConfig, model: ModelConfig) -> torch.device | None:
    """None: the CPU computes. ValueError as of _usable_cuda."""
    if not model.spec.keeps_keys:
        if config.device == "cuda":
            raise ValueError("encoders such as this model run on CPUs alone; use device cpu")
        return None
    return None if config.device == "cpu" else _usable_cuda(config.device)


def find_cuda() -> torch.device | None:
    """The device that torch would use."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


def _usable_cuda(asked: str) -> torch.device | None:
    """None where auto takes the CPU. ValueError when cuda was asked for by name and something is lacking."""
    device = find_cuda()
    lacking = "no CUDA device that torch can use" if device is None else ""
    if device is not None and find_spec("triton") is None:
        lacking = "no triton, which compiles the kernels: pip install --editable '.[gpu]' in the folder of loraplex"
    if lacking and (asked == "cuda" or device is not None):
        raise ValueError(f"device {asked!r} finds {lacking}; or use device cpu")
    return device


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cuda kernels on {device}"


def free_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Bytes this process may still take: what the machine has available, cut by a container's limit."""
    lines = (line.split() for line in meminfo.read_text().splitlines())
    available = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
    return min(available, _container_room(cgroup, available))


def _container_room(cgroup: Path, unlimited: int) -> int:
    try:
        limit, used = ((cgroup / f"memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return unlimited
    return unlimited if limit == "max" else max(0, int(limit) - int(used))


def _stored_dtype(asked: str, checkpoint: str) -> torch.dtype:
    name = checkpoint if asked == "auto" else asked
    if name not in DTYPES:
        raise ValueError(f"dtype {asked!r} is not supported; use auto, {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype
