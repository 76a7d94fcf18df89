"""DrawnTokens: where the sampler leaves its tokens, for the next step on the device and for the host later on."""

import torch

from .stream import Event, Stream


class DrawnTokens:
    """`device` keeps the tokens of the last step, row by row of its sample rows, until the next step draws its own.

    The way to the host is a stream of its own: no step waits for it.
    """

    def __init__(self, most: int, device: torch.device, compute: Stream, transfer: Stream, turns: int = 2) -> None:
        """most: rows of a step; turns: steps in flight, each of whose tokens has a place until it has been read."""
        self.device = torch.zeros(most, dtype=torch.int64, device=device)
        self._leaving = [torch.zeros_like(self.device) for _ in range(turns)]
        pinned = device.type == "cuda"
        self._arrived = [torch.zeros(most, dtype=torch.int64, pin_memory=pinned) for _ in range(turns)]
        self._compute, self._transfer = compute, transfer
        self._turn = 0

    def send(self, count: int) -> "Arrival":
        """Enqueue the way to the host of the first `count` tokens, after the draw has been enqueued."""
        self._turn = (self._turn + 1) % len(self._arrived)
        leaving, arrived = self._leaving[self._turn][:count], self._arrived[self._turn][:count]
        self._compute.copy(leaving, self.device[:count])
        self._transfer.wait(self._compute.record())
        self._transfer.copy(arrived, leaving)
        return Arrival(arrived, self._transfer.record())


class Arrival:
    """Tokens on their way to the host."""

    def __init__(self, tokens: torch.Tensor, event: Event) -> None:
        self._tokens = tokens
        self._event = event

    def wait(self) -> list[int]:
        self._event.synchronize()
        found: list[int] = self._tokens.tolist()
        return found
