"""A CUDA device without memory: its tensors know their device, shape and dtype and hold nothing (torch's fake tensors).

What mixes tensors of host and device, hands a kernel one of the host or waits for the device by reading it fails as on
a card; triton's kernels are not run. What comes to the host is zeros.
"""

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import cache, partial, partialmethod
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from loraplex.engine.device import cuda_stream, device
from loraplex.engine.device.stream import Launch
from loraplex.engine.startup import gpu_profile
from loraplex.lora.residency import page_copier as copies
from loraplex.lora.residency import pool
from loraplex.quant.kernels.cuda import linear
from loraplex.quant.kernels.cuda.merge import find_arrivals
from tests.cards import CARDS, use_card

from .inline_stream import HostMoment, InlineEvent, InlineStream
from .paper_gauge import PaperGauge

COSTS_NOTHING = ("aten::empty", "aten::new_empty", "prim::device")


class FakeCuda(TorchDispatchMode):
    """Makes what is asked of CUDA fake, and leaves the host's tensors real."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        """What the host asked of the device, one name for each time: kernels, operations of torch that enqueue any,
        copies, events, graphs. Not what only names memory."""
        self.is_capturing = False
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self._compute(func, args, kwargs)
        tensors = tensors_of((*args, *(result if isinstance(result, tuple | list) else [result])))
        if any(tensor.is_cuda for tensor in tensors) and not func.is_view and not func.name().startswith(COSTS_NOTHING):
            self.calls.append(func.name())
        return result

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if torch.device(given.get("device") or "cpu").type == "cuda":
            with self._fake:
                if func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.to):
                    dtype = given.get("dtype") or args[0].dtype
                    return torch.empty(args[0].shape, dtype=dtype, device=given["device"])
                return func(*args, **given)
        return func(*args, **given)


class EmptyStream(InlineStream):
    """Of a device that holds nothing: zeros come of it."""

    def __init__(self, device: FakeCuda) -> None:
        self._device = device

    def record(self) -> InlineEvent:
        self._device.calls.append("record an event")
        return super().record()

    def wait(self, event: object) -> None:
        self._device.calls.append("wait for an event")

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        if not destination.is_cuda:
            self._device.calls.append("copy to the host")
        if destination.device == source.device or destination.is_cuda:
            super().copy(destination, source)
        else:
            assert destination.shape == source.shape
            destination.zero_()


class Launches:
    """A captured step, whose launches were looked at as they were captured."""

    def __init__(self, device: FakeCuda, launch: Launch) -> None:
        self._device = device
        device.is_capturing = True
        try:
            launch()
        finally:
            device.is_capturing = False

    def replay(self) -> None:
        """Nothing holds anything."""
        self._device.calls.append("replay a graph")


class AtOnce(Executor):
    """In place of a thread, as fake tensors know one thread alone."""

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(work(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


def check_arguments(kernel: Any, device: FakeCuda, *arguments: Any, **named: Any) -> None:
    """In place of a launch: all that a kernel reads and writes is on the device."""
    device.calls.append(kernel.__name__)
    for tensor in tensors_of(arguments):
        assert tensor.device.type == "cuda", f"{kernel.__name__} gets a tensor of the host"


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from tensors_of(value)


def take(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """The view that an index names, and the tensors in it that name places of that."""
    parts, dimension, places = index if isinstance(index, tuple) else (index,), 0, list[torch.Tensor | None]()
    for number, part in enumerate(parts):
        if part is None:
            tensor = tensor.unsqueeze(dimension)
        elif part is Ellipsis:
            dimension = tensor.dim() - sum(other is not None for other in parts[number + 1 :])
            continue
        elif isinstance(part, int):
            tensor = tensor.select(dimension, part)
            continue
        elif isinstance(part, slice):
            tensor = torch.ops.aten.slice(tensor, dimension, part.start, part.stop, part.step or 1)
        else:
            places += [*[None] * (dimension - len(places)), part]
        dimension += 1
    return tensor, places


def get_item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    view, places = take(tensor, index)
    return torch.ops.aten.index(view, places) if places else view


def set_item(tensor: torch.Tensor, index: Any, value: Any) -> None:
    view, places = take(tensor, index)
    if places:
        torch.ops.aten.index_put_(view, places, value)
    elif isinstance(value, torch.Tensor):
        view.copy_(value)
    else:
        view.fill_(value)


def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return torch.ops.aten.copy_(target, source)


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    stream = EmptyStream(fake)

    def mark() -> HostMoment:
        fake.calls.append("mark a moment")
        return HostMoment()

    queues = cuda_stream.Queues(stream, stream, partial(Launches, fake), mark)
    monkeypatch.setattr(device, "find_cuda", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    use_card(monkeypatch, CARDS[10 * capability[0] + capability[1]])
    monkeypatch.setattr(cuda_stream, "open_queues", lambda device: queues)
    monkeypatch.setattr(gpu_profile, "open_gauge", lambda device: PaperGauge())
    monkeypatch.setattr(copies, "_default_streams", lambda device: copies.Streams(stream, stream))
    monkeypatch.setattr(pool, "JobThread", lambda name: AtOnce())
    monkeypatch.setattr(copies.PageCopier, "staging", lambda carrier, size, dtype: torch.zeros(size, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.is_capturing)
    monkeypatch.setattr(linear, "find_arrivals", cache(find_arrivals.__wrapped__))  # none of another test's device
    torch._C._ensureCUDADeviceGuardSet()
    # A torch that was built without CUDA has no brackets for such tensors.
    monkeypatch.setattr(FakeTensor, "__getitem__", get_item, raising=False)
    monkeypatch.setattr(FakeTensor, "__setitem__", set_item, raising=False)
    monkeypatch.setattr(FakeTensor, "copy_", copy, raising=False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(JITFunction, "run", partialmethod(check_arguments, fake))
    with fake:
        yield fake
