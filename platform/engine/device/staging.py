"""Staging: named arrays in one buffer, filled on the host and sent to the device in one copy."""

import math
from typing import Final

import numpy as np
import torch

from .stream import Event, Stream

ALIGNMENT: Final = 16
"""Bytes that each array begins at a multiple of: one compiled kernel then serves all."""


class Staging:
    """On the device the arrays keep their addresses. On the host they lie in `turns` pinned buffers that take turns, so
    that the next step is written while the copy of the one before may still be read."""

    def __init__(
        self,
        arrays: dict[str, tuple[tuple[int, ...], torch.dtype]],
        device: torch.device,
        stream: Stream,
        turns: int = 2,
    ) -> None:
        """arrays: name -> shape and dtype, in the order in which they lie in memory."""
        self._spans: dict[str, tuple[int, int]] = {}
        end = 0
        for name, (shape, dtype) in arrays.items():
            self._spans[name] = end, end + math.prod(shape) * dtype.itemsize
            end = -(-self._spans[name][1] // ALIGNMENT) * ALIGNMENT
        pinned = device.type == "cuda"
        self._hosts = [torch.zeros(end, dtype=torch.uint8, pin_memory=pinned) for _ in range(turns)]
        self._device = torch.zeros(end, dtype=torch.uint8, device=device)
        self._sent: list[Event | None] = [None] * turns
        self._turn = 0
        self._stream = stream
        self.device = self._views(self._device, arrays)
        views = [self._views(host, arrays) for host in self._hosts]
        self._arrays = [{name: view.numpy() for name, view in host.items()} for host in views]

    def open(self) -> dict[str, np.ndarray]:
        """The arrays to write next. They hold what they held `turns` steps ago."""
        self._turn = (self._turn + 1) % len(self._hosts)
        sent = self._sent[self._turn]
        if sent is not None:
            sent.synchronize()
        return self._arrays[self._turn]

    def send(self, first: str, last: str, rows: int) -> None:
        """Enqueue the copy of all arrays from `first` up to `last`, and of the first `rows` rows of that one."""
        end = self._spans[last][0] + self.device[last][:rows].nbytes
        sent = slice(self._spans[first][0], end)
        self._stream.copy(self._device[sent], self._hosts[self._turn][sent])
        self._sent[self._turn] = self._stream.record()

    def _views(
        self, buffer: torch.Tensor, arrays: dict[str, tuple[tuple[int, ...], torch.dtype]]
    ) -> dict[str, torch.Tensor]:
        return {
            name: buffer[slice(*self._spans[name])].view(dtype).view(shape) for name, (shape, dtype) in arrays.items()
        }
