"""GpuProfile: what a model's weights, its largest step and its captured ones take of a GPU, measured at the start."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from .gpu_memory import Seen, allowed_memory


class Gauge(Protocol):
    """A GPU's memory as the driver and torch's allocator count it, in bytes."""

    name: str

    def settle(self) -> None:
        """Wait for the device and give back what torch keeps of freed memory."""

    def free_and_total(self) -> tuple[int, int]:
        """Of the whole device, whoever took the rest."""

    def reserved(self) -> int:
        """What torch holds of it now."""

    def peak_reserved(self) -> int:
        """Most that it held since `reset_peak`."""

    def reset_peak(self) -> None: ...


class CudaGauge:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.name = torch.cuda.get_device_name(device)

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def free_and_total(self) -> tuple[int, int]:
        return torch.cuda.mem_get_info(self._device)

    def reserved(self) -> int:
        return torch.cuda.memory_reserved(self._device)

    def peak_reserved(self) -> int:
        return torch.cuda.max_memory_reserved(self._device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)


def open_gauge(device: torch.device) -> Gauge:
    return CudaGauge(device)


class GpuProfile:
    """Made before anything is loaded; `weights`, `activations` and `graph_pool` then go around the three, in this
    order."""

    def __init__(self, gauge: Gauge, utilization: float) -> None:
        """ValueError when other processes hold what this one may take: before minutes are spent on loading."""
        self._gauge = gauge
        gauge.settle()
        self._free, self._total = gauge.free_and_total()
        allowed_memory(utilization, gauge.name, self._total, self._free)
        self._weights = self._activations = self._graph_pool = 0

    @property
    def total(self) -> int:
        """Bytes of the card."""
        return self._total

    @contextmanager
    def weights(self) -> Iterator[None]:
        """Around all that stays: weights, and what libraries take once."""
        yield
        self._gauge.settle()
        self._weights = self._free - self._gauge.free_and_total()[0]

    @contextmanager
    def activations(self) -> Iterator[None]:
        """Around one step of the largest shape: as many tokens and sequences as there may be, with adapters."""
        gauge, reserved = self._gauge, self._begin_peak()
        free = gauge.free_and_total()[0]
        yield
        torch_took = gauge.peak_reserved() - reserved
        gauge.settle()
        # Kernels that were loaded, and other things that torch does not count, stay.
        others_took = free - gauge.free_and_total()[0] - (gauge.reserved() - reserved)
        self._activations = torch_took + max(0, others_took)

    @contextmanager
    def graph_pool(self) -> Iterator[None]:
        """Around the largest step that will be captured, launched without a graph: its tensors are what all graphs
        share, as none is replayed beside another."""
        reserved = self._begin_peak()
        yield
        self._graph_pool = self._gauge.peak_reserved() - reserved

    def seen(self, graphs: int) -> Seen:
        """With the bytes that captured steps will take beside what they share. What was tried is given back."""
        self._gauge.settle()
        took = (self._weights, self._activations, graphs, self._graph_pool)
        return Seen(self._gauge.name, self._total, self._free, *took)

    def taken(self) -> int:
        """Bytes of the device that are in use, whoever uses them; torch gives back first what it only keeps."""
        self._gauge.settle()
        return self._total - self._gauge.free_and_total()[0]

    def _begin_peak(self) -> int:
        """What torch holds now."""
        self._gauge.settle()
        self._gauge.reset_peak()
        return self._gauge.reserved()
