"""The whole engine on CUDA's path, its warm-up too, over a device that holds nothing: no operation mixes tensors of the
host and the device, no kernel gets one of the host, and no step reads the device."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from loraplex import SamplingParams
from loraplex.engine.runner import cuda_runner
from loraplex.engine.runner.cuda_runner import CudaRunner
from loraplex.engine.runner.step_inputs import StepInputs, StepShape
from loraplex.engine.runner.steps import Ended
from loraplex.engine.sampling.cuda.rows import RowLines
from loraplex.engine.scheduler.plan import StepPlan
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.cuda_scaled_float8 import CudaScaledFloat8Linear
from loraplex.quant.schemes import choose
from tests.checkpoints import make_adapter, make_checkpoint

from .cuda_double import pretend_cuda
from .cuda_engine import TINY, open_llm
from .fake_cuda import fake_cuda
from .pooling.modules_file import write_modules

if torch.backends.cuda.is_built():
    pytest.skip("made for a torch without CUDA; what is asked once of a device would stay", allow_module_level=True)
EDITED: dict[str, Any] = {
    "temperature": 0.8, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "logprobs": 2, "prompt_logprobs": 1,
    "presence_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {3: 1.0}, "seed": 1,
}  # fmt: skip
PROMPTS = [[4, 5, 6], [7, 8, 9, 10], [11], [12, 13]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "qwen2", num_hidden_layers=2, **TINY)


def say(base: Path, folder: Path, **settings: Any) -> list[int]:
    """How many tokens were said to greedy and edited requests with and without an adapter."""
    adapters = {"one": make_adapter(folder / "one", base, rank=8, seed=1)}
    kinds = [
        SamplingParams(max_tokens=4, ignore_eos=True, **fields)
        for fields in ({"temperature": 0.0}, EDITED, {"temperature": 1.0}, {"allowed_token_ids": [5, 6]})
    ]
    with open_llm(base, adapters, **settings) as llm:
        outputs = llm.generate(PROMPTS, kinds, adapter=[None, "one", "one", None], strict=True)
    return [len(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("settings", [{}, {"kv_cache_dtype": "fp8_e4m3"}, {"quantization": "int4"}], ids=str)
def test_no_operation_mixes_host_and_device_or_waits(
    settings: dict[str, Any], base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_cuda(monkeypatch):
        assert say(base, tmp_path, dtype="bfloat16", **settings) == [4] * 4


@pytest.mark.parametrize("mode", ["mean_tokens", "lasttoken", "cls_token"])
def test_nor_does_an_embedding(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_checkpoint(tmp_path / "base", "qwen2", num_hidden_layers=2, **TINY)
    write_modules(base, mode)
    norms = make_adapter(tmp_path / "one", base, rank=8, seed=1, modules_to_save=["norm"])
    with fake_cuda(monkeypatch), open_llm(base, {"one": norms}, dtype="bfloat16") as llm:
        outputs = llm.embed([*PROMPTS, [5] * 60], adapter=[None, "one", None, "one", "one"], use_tqdm=False)
    assert [output.outputs.hidden_size for output in outputs] == [TINY["hidden_size"]] * 5


@pytest.mark.parametrize("quantization", ["int4", "fp8"])
def test_packed_weights_are_read_to_the_device(
    quantization: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that a double of the device has kept, and none of them is packed."""
    settings = {"quantization": quantization, "dtype": "bfloat16", "weights_cache": str(tmp_path / "cache")}
    monkeypatch.setattr(choose, "multiplies_rows", lambda device: True)
    with monkeypatch.context() as double:
        pretend_cuda(double)
        open_llm(base, {}, **settings).close()
    for method in (CudaPackedLinear, CudaScaledFloat8Linear):
        monkeypatch.setattr(method, "finish", lambda method: pytest.fail("it was packed again"))
    with fake_cuda(monkeypatch):
        assert say(base, tmp_path, **settings) == [4] * 4


def test_all_that_a_step_reads_comes_in_one_copy(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prompts and of decodes, drawn and described or not, with an adapter and without."""
    adapters, sent = {"one": make_adapter(tmp_path / "one", base, rank=8, seed=1)}, list[int]()
    kinds = [
        SamplingParams(max_tokens=4, ignore_eos=True, **fields)
        for fields in ({"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9, "seed": 1, "logprobs": 2})
    ]
    with fake_cuda(monkeypatch):
        copy = FakeTensor.copy_

        def copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
            sent.append(target.is_cuda and not source.is_cuda)
            return copy(target, source, non_blocking)

        monkeypatch.setattr(FakeTensor, "copy_", copied)
        with open_llm(base, adapters, dtype="bfloat16") as llm:
            llm.generate(PROMPTS[:2], kinds, adapter=[None, "one"], strict=True)
            steps = llm.status().steps
            sent.clear()
            llm.generate(PROMPTS[:2], kinds, adapter=[None, "one"], strict=True)
            assert sum(sent) == llm.status().steps - steps >= 4


MOST_CALLS = 40
"""Of a step, whatever the model's layers."""
EIGHT_BILLION: dict[str, Any] = TINY | {"num_attention_heads": 8, "num_key_value_heads": 2}
"""Shaped as Llama 3.1 8B: as many linears and norms a layer, four query heads for each of keys."""


def calls_of_a_mixed_step(layers: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the host asks of the device in a step of prompts and decodes with adapters, drawn and greedy, after another
    of that size."""
    base = make_checkpoint(folder / "base", "llama", num_hidden_layers=layers, **EIGHT_BILLION)
    adapters = {name: make_adapter(folder / name, base, rank=8, seed=1, kinds="all-linear") for name in ("one", "two")}
    submit, steps = CudaRunner.submit, list[tuple[bool, list[str]]]()
    monkeypatch.setattr(CudaRunner, "submit", submit)
    with fake_cuda(monkeypatch) as device:

        def noted(runner: CudaRunner, plan: StepPlan) -> Any:
            device.calls.clear()
            result, counts = submit(runner, plan).result(), [item.count for item in plan.scheduled]
            steps.append((1 in counts and max(counts) > 1, [*device.calls]))
            return Ended(result)

        monkeypatch.setattr(CudaRunner, "submit", noted)
        with open_llm(base, adapters, dtype="bfloat16", max_num_batched_tokens=16) as llm:
            names = ["one", None, "two", "one"]
            for _ in range(2):
                steps.clear()
                heats = (0.0, 0.7, 0.0, 1.0)
                params = [SamplingParams(max_tokens=3, temperature=heat, ignore_eos=True) for heat in heats]
                llm.generate([[4] * 3, [5], [6] * 14, [7] * 9], params, adapter=names, strict=True)
    mixed = [calls for is_mixed, calls in steps if is_mixed]
    assert mixed, "no step had prompts and decodes"
    return max(mixed, key=len)


def test_a_mixed_step_costs_the_host_as_much_whatever_the_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one graph that is replayed, beside what comes to the device and goes back."""
    few, many = (calls_of_a_mixed_step(layers, tmp_path / f"{layers}", monkeypatch) for layers in (2, 5))
    assert few == many and len(many) <= MOST_CALLS, many
    assert many.count("replay a graph") == 1
    assert not [name for name in many if "::" not in name and " " not in name], "kernels were launched one by one"


def test_a_tensor_left_on_the_host_is_found(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowLines, "_to_device", lambda lines, values: torch.from_numpy(values))
    with fake_cuda(monkeypatch), pytest.raises(RuntimeError, match="same device"):
        say(base, tmp_path, dtype="bfloat16")


def test_a_step_that_reads_the_device_is_found(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = cuda_runner.resolve

    def read(token_ids: torch.Tensor, *given: torch.Tensor) -> None:
        resolve(token_ids, *given)
        token_ids.sum().item()

    monkeypatch.setattr(cuda_runner, "resolve", read)
    with fake_cuda(monkeypatch), pytest.raises(DataDependentOutputException):
        say(base, tmp_path, dtype="bfloat16")


def test_a_kernel_that_gets_a_tensor_of_the_host_is_found(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placeholders = StepInputs.placeholders

    def on_host(inputs: StepInputs, shape: StepShape) -> tuple[torch.Tensor, torch.Tensor]:
        token_ids, sources = placeholders(inputs, shape)
        return token_ids, torch.zeros(sources.shape, dtype=sources.dtype)

    monkeypatch.setattr(StepInputs, "placeholders", on_host)
    with fake_cuda(monkeypatch), pytest.raises(AssertionError, match="a tensor of the host"):
        say(base, tmp_path, dtype="bfloat16")
