"""What an error in a step means: for its own requests, or for all that the device was to compute."""

from collections.abc import Callable
from typing import NamedTuple

import torch

OUT_OF_MEMORY_KIND = "out_of_memory"
DEVICE_WORDS = ("CUDA error", "Triton Error [CUDA]", "CUBLAS_STATUS", "CUDNN_STATUS")
"""How libraries that raise no AcceleratorError say that the device failed."""
HOST_WORDS = "can't allocate memory"
"""How torch says, in a RuntimeError, that the machine has no memory left."""
HOST_MEMORY = (
    "the machine ran out of memory in this request's step; free memory on it, or lower kv_cache_memory, adapter_memory "
    "or max_num_batched_tokens, if it happens again"
)


class DeviceLost(RuntimeError):
    """Nothing more can be computed in this process, as a device keeps its error. The process ends, all running requests
    with one error, and the API process starts a new one."""


class Fault(NamedTuple):
    """Of one step: what its requests are told."""

    kind: str
    """As of RequestFailed."""
    message: str


def judge(error: Exception, settle: Callable[[], None] | None = None) -> Fault:
    """What to tell the requests of the step that raised it. Raises DeviceLost where no other step would succeed.

    `settle` waits for the device, raises what is wrong with it, and gives back memory that nobody uses.
    """
    if is_of_device(error):
        raise _lost(error) from error
    try:
        (settle or settle_device)()
    except Exception as found:
        raise _lost(found) from error
    if isinstance(error, torch.OutOfMemoryError):
        return Fault(OUT_OF_MEMORY_KIND, _memory_words(error))
    if isinstance(error, MemoryError) or HOST_WORDS in str(error):
        return Fault(OUT_OF_MEMORY_KIND, HOST_MEMORY)
    return Fault("internal", f"the engine failed in a step: {type(error).__name__}: {error}")


def settle_device() -> None:
    """Nothing where no CUDA device is in use."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def is_of_device(error: Exception) -> bool:
    """Whether the device itself failed, which it never recovers from in this process."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    words = str(error)
    return isinstance(error, torch.AcceleratorError) or any(word in words for word in DEVICE_WORDS)


def _lost(error: Exception) -> DeviceLost:
    return DeviceLost(f"the device failed and its process must end: {_first_line(error)}")


def _memory_words(error: Exception) -> str:
    return (
        f"the device ran out of memory in this request's step; lower gpu_memory_utilization or max_num_batched_tokens "
        f"if it happens again ({_first_line(error)})"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def memory_error(error: BaseException | None) -> BaseException | None:
    """It, or what it came of: a capture that memory ended is ended with an error of its own."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
            return error
        error = error.__context__
    return None
