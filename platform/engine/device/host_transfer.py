"""HostTransfer: from the device to the host on a stream of its own, so that no step waits for it."""

import torch

from .stream import Event, Stream


class HostTransfer:
    def __init__(self, compute: Stream, transfer: Stream) -> None:
        self._compute, self._transfer = compute, transfer

    def send(self, tensor: torch.Tensor) -> "Arrival":
        """Enqueue the way of what all work enqueued so far makes of `tensor`; later work may write it anew."""
        leaving = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        arrived = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._compute.copy(leaving, tensor)
        self._transfer.wait(self._compute.record())
        self._transfer.copy(arrived, leaving)
        return Arrival(arrived, leaving, self._transfer.record())


class Arrival:
    """A tensor on its way to the host."""

    def __init__(self, arrived: torch.Tensor, leaving: torch.Tensor, event: Event) -> None:
        self._arrived = arrived
        self._leaving = leaving
        """Held, so that its memory is not given to others before it has been read."""
        self._event = event

    def wait(self) -> torch.Tensor:
        """On the host."""
        self._event.synchronize()
        return self._arrived
