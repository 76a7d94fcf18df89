"""Where the model runs, in which dtype, on how many threads, and why: decided once at start."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from loraplex.quant.arithmetic import ARITHMETIC
from loraplex.quant.choose import Choice, choose_scheme
from loraplex.quant.online import OnlineQuantization

from .config import EngineConfig
from .model.config import DTYPES, ModelConfig
from .threads import set_threads

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Device:
    device: torch.device
    stored_dtype: torch.dtype
    """Of the weights; of keys and values in the cache too, unless `kv_cache_dtype` says another."""
    scheme: Choice
    online: OnlineQuantization
    """What is done to float weights at load."""
    num_threads: int
    compute: str
    """What was chosen and why, in one sentence."""
    arithmetic: str
    """What linears are multiplied with."""


def choose_device(config: EngineConfig, model: ModelConfig) -> Device:
    """Settle device, dtype, scheme and threads. ValueError for a setting this machine cannot do."""
    if config.device not in ("auto", "cpu"):
        raise ValueError(f"device {config.device!r} is not supported yet; use cpu or auto")
    stored = _stored_dtype(config.dtype, model.dtype)
    num_threads, sharing = set_threads(config.num_threads)
    device = torch.device("cpu")
    online = OnlineQuantization(config.quantization, config.head_quantization)
    scheme = choose_scheme(device, stored, model.quantization)
    threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
    compute = f"cpu, {threads}, {scheme.reason}; {sharing}"
    return Device(device, stored, scheme, online, num_threads, compute, ARITHMETIC)


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
