"""Errors of a device: out of memory costs the requests of a step, anything worse costs the process and nothing else."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from loraplex.engine.config import EngineConfig
from loraplex.engine.device.faults import DeviceLost, judge
from loraplex.engine.ipc.client import EngineClient, EngineUnavailable, RequestRejected
from loraplex.web.http.errors import from_engine
from tests.checkpoints import make_checkpoint

from ..harness import Harness, make_request, tokens
from ..ipc.test_client import collect, outcome, request, until

NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nSee the documentation")
LOST = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
]


def fail() -> None:
    raise torch.AcceleratorError("CUDA error: unspecified launch failure")


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
def test_an_error_of_the_device_is_never_one_of_a_step(error: Exception) -> None:
    with pytest.raises(DeviceLost, match=r"^the device failed and its process must end: (CUDA|Triton) [^\n]+$"):
        judge(error, lambda: None)


@pytest.mark.parametrize("error", [NO_MEMORY, ValueError("host")], ids=["memory", "host"])
def test_what_a_step_may_survive_is_believed_when_the_device_answers(error: Exception) -> None:
    kind, message = judge(error, lambda: None)
    assert (kind, "gpu_memory_utilization" in message) == (
        ("out_of_memory", True) if error is NO_MEMORY else ("internal", False)
    )
    with pytest.raises(DeviceLost, match="unspecified launch failure"):
        judge(error, fail)


def test_without_memory_a_step_ends_its_own_requests_and_the_next_runs() -> None:
    harness = Harness(max_num_seqs=2)
    running = [harness.add(make_request(f"r{number}", tokens(9, number), ignore_eos=True)) for number in range(2)]
    waiting = harness.add(make_request("waiting", tokens(9)))
    harness.drain_some(3)
    harness.runner.broken = NO_MEMORY
    harness.step()
    failures = [stream.failure for stream in running]
    assert [failure is not None and failure.kind for failure in failures] == ["out_of_memory"] * 2
    assert failures[0] is not None and "gpu_memory_utilization" in failures[0].message
    assert "See the documentation" not in failures[0].message
    harness.drain()
    assert waiting.failure is None
    harness.assert_released()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes")]
)
def test_a_machine_without_memory_is_named(error: Exception) -> None:
    kind, message = judge(error, lambda: None)
    assert kind == "out_of_memory" and message.startswith("the machine ran out of memory in this request's step; free")


def test_a_lost_device_ends_the_loop() -> None:
    harness = Harness()
    harness.add(make_request("r", tokens(9)))
    harness.runner.broken = LOST[0]
    with pytest.raises(DeviceLost):
        harness.step()


def test_who_ran_out_of_memory_may_try_again() -> None:
    error = from_engine(RequestRejected("out_of_memory", "no memory"))
    assert (error.status, error.code) == (503, "unavailable") and "retry-after" in (error.headers or {})


async def test_a_lost_device_restarts_the_engine_and_a_full_one_does_not(
    tmp_path: Path, broken_executable: Callable[[str], None]
) -> None:
    model = make_checkpoint(tmp_path / "model", "llama", max_position_embeddings=4096)
    client = EngineClient(EngineConfig(model=str(model), num_kv_blocks=2100, adapter_memory=16 << 20, num_threads=1))
    await client.start()
    try:
        expected, pid = await collect(client, request("before")), client.pid
        broken_executable("OutOfMemoryError")
        results = await asyncio.gather(*(outcome(collect(client, request(f"m{i}", max_tokens=500))) for i in range(4)))
        refused = [result for result in results if isinstance(result, RequestRejected)]
        assert {error.kind for error in refused} == {"out_of_memory"} and len(refused) >= 2
        assert await collect(client, request("between")) == expected and client.pid == pid and client.restarts == 0
        broken_executable("AcceleratorError")
        streams = [asyncio.create_task(outcome(collect(client, request(f"l{i}", max_tokens=4000)))) for i in range(4)]
        results = await asyncio.wait_for(asyncio.gather(*streams), 60)
        assert [type(result) for result in results] == [EngineUnavailable] * 4
        assert all("the device failed and its process must end: CUDA says" in str(result) for result in results)
        await until(client.ready)
        assert client.restarts == 1 and client.pid != pid
        assert await collect(client, request("after")) == expected
    finally:
        await client.stop()
