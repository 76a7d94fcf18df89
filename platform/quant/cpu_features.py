"""Which instructions this CPU has, as far as they decide how weights are stored. No torch."""

import platform
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")

KNOWN: Final = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")


def cpu_features(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """The subset of KNOWN this CPU has; empty where the system does not list them."""
    return frozenset(KNOWN) & set(_field(cpuinfo, "flags").split())


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    return _field(cpuinfo, "model name") or platform.processor() or platform.machine()


def has_bfloat16(features: frozenset[str]) -> bool:
    """Whether it multiplies bfloat16 in hardware."""
    return bool(features & {"avx512_bf16", "amx_bf16"})


def _field(cpuinfo: Path, name: str) -> str:
    if not cpuinfo.exists():
        return ""
    lines = (line.partition(":") for line in cpuinfo.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
