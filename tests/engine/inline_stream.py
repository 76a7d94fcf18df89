"""A stream of a device that is never behind, and what is built of such ones."""

import time

import torch

from loraplex.engine.device.host_transfer import HostTransfer
from loraplex.engine.sampling.cuda.sampler import CudaSampler


class InlineEvent:
    def synchronize(self) -> None:
        """It has happened."""

    def query(self) -> bool:
        return True


class InlineStream:
    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        assert destination.shape == source.shape
        destination.copy_(source)

    def record(self) -> InlineEvent:
        return InlineEvent()

    def wait(self, event: object) -> None:
        """It has happened."""


class HostMoment:
    """Of a device that computes while the host waits."""

    def __init__(self) -> None:
        self._time = time.perf_counter()

    def reached(self) -> bool:
        return True

    def seconds_until(self, later: "HostMoment") -> float:
        return later._time - self._time


def make_sampler(rows: int, vocabulary: int) -> CudaSampler:
    """On the CPU, in triton's interpreter."""
    stream = InlineStream()
    return CudaSampler(rows, vocabulary, torch.device("cpu"), HostTransfer(stream, stream))
