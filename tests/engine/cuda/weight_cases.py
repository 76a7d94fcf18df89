"""Weights of 16 and fewer bits on CUDA's path: beside the CPU, and as adapters see their inputs."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import SamplingParams
from loraplex.engine.certify.certificate import CertifyJob
from loraplex.engine.certify.inputs import open_adapter
from loraplex.engine.certify.on_cuda import OnCuda
from loraplex.engine.certify.prompts import Prompt
from loraplex.engine.certify.served import ServedModel, load_adapter, make_batches
from loraplex.engine.device.device import choose_device
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.quant.kernels.cuda import cast
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from tests.checkpoints import make_adapter, reference_model
from tests.engine.cuda_engine import TINY, cuda, open_llm, small_config
from tests.engine.recorded_graph import RecordedGraph
from tests.quant.made_checkpoints import Case, groups, layers, make_quantized, scheme
from tests.quant.made_formats import Made, float8
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .requests import LENGTHS, NAMES, adapters, base, on_both, prompts, run, told

__all__ = ["adapters", "base", "cuda", "one_patch_a_module", "poisoned_memory", "prompts", "rounding"]
pytestmark = pytest.mark.usefixtures("cuda")


def test_bfloat16_and_int4_are_close_to_the_cpus(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    settings = {"dtype": "bfloat16", "quantization": "int4"}
    one, other = [
        torch.tensor(told(run(llm, prompts[2:], NAMES[2:], params))) for llm in on_both(base, adapters, **settings)
    ]
    assert (other - one).abs().mean() < 0.03 and (other - one).abs().max() < 0.2


TOKEN = {"type": "float", "num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}
CLIPPING = 2e-3
"""A static scale far too small: inputs beyond 0.9 are clipped."""


def clipped(random: Any, outputs: int, inputs: int) -> Made:
    made = float8(static=True)(random, outputs, inputs)
    made.tensors["input_scale"].fill_(CLIPPING)
    return made


FLOAT8_CASES = {
    None: Case(groups("float-quantized", scheme("float", 8, "channel", inputs=TOKEN)), layers(float8((1, None)))),
    CLIPPING: Case({"quant_method": "fp8", "activation_scheme": "static"}, layers(clipped)),
}


def in_float8(x: torch.Tensor, scale: float | None) -> torch.Tensor:
    """What is left of x in float8, with its rows' own scales or one."""
    scales = x.abs().amax(-1, keepdim=True) / 448 if scale is None else torch.tensor(scale)
    return (x / scales).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scales


@torch.inference_mode()
def read_by_float8_linears(
    floats: Path, adapter: Path, prompt: list[int], cast: Any, adapter_reads_it_too: bool = False
) -> torch.Tensor:
    """Log-probabilities of the prompt's tokens but the first, in float32, where linears of the base multiply `cast` of
    their inputs."""
    model = reference_model(floats, {"own": adapter})
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith("base_layer"):
            module.register_forward_pre_hook(lambda module, inputs: (cast(inputs[0]),))
        if adapter_reads_it_too and "lora_A." in name:
            module.register_forward_pre_hook(lambda module, inputs: (cast(inputs[0]),))
    found = model(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1)
    return found[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]


@pytest.mark.parametrize("scale", FLOAT8_CASES, ids=str)
@torch.no_grad()
def test_linears_of_the_base_read_float8_and_adapters_what_was_before_it(
    scale: float | None, tmp_path: Path, prompts: list[list[int]]
) -> None:
    """One norm with its linears, and a gate with its own: against floats out of float8, in float32, with PEFT."""
    base, floats = make_quantized(tmp_path, replace(FLOAT8_CASES[scale], settings={"num_hidden_layers": 1, **TINY}))
    adapter = make_adapter(tmp_path / "rank8", base=floats, rank=8)
    config = small_config(base, dtype="bfloat16")
    served = ServedModel(base, choose_device(config, ModelConfig.from_folder(base)), 64)
    with ExitStack() as scratch:
        opened = open_adapter(CertifyJob(config, adapter=str(adapter)), base_signature(base), scratch)
        assert opened is not None
        table = load_adapter(served, opened, torch.bfloat16)
    prompt, drawn = max(prompts, key=len), torch.Generator().manual_seed(5)
    batch = OnCuda(torch.device("cpu")).place(make_batches([Prompt(prompt)], table)[0])
    layer, x = served.layer(0), torch.randn(len(prompt), 32, generator=drawn).bfloat16()
    qkv, down = layer.mixer.inputs, layer.feed_forward.output
    assert down.casts is not None and down.casts[1] == pytest.approx(scale)
    normed = layer._enter(layer.mixer_norm, qkv, x, torch.zeros_like(x), batch)
    inner = 2 * torch.randn(len(prompt), 96, generator=drawn).bfloat16()
    product = down.casts[0].multiply_gate(inner, layer.feed_forward.activation, down.casts[1])
    modules = dict(reference_model(floats, {"own": adapter}).named_modules())
    for linear, (inputs, rows) in ((qkv, normed), (down, product)):
        own = [next(m for name, m in modules.items() if name.endswith(f".{kind}")) for kind in linear.kinds]
        exact, narrow = inputs.float(), in_float8(inputs.float(), scale)
        found = linear.apply(inputs, batch, rows).float()

        def error(read: torch.Tensor, adapter_reads: torch.Tensor, own: Any = own, found: Any = found) -> float:
            changes = [m.scaling["own"] * m.lora_B["own"](m.lora_A["own"](adapter_reads)) for m in own]
            wanted = [m.base_layer(read) + change for m, change in zip(own, changes, strict=True)]
            return float((found - torch.cat(wanted, 1)).abs().mean())

        right, others = error(narrow, exact), (error(exact, exact), error(narrow, narrow))
        assert right < 0.6 * min(others), (linear.kinds, right, others)


def test_float8_linears_multiply_activations_in_float8_and_adapters_read_them_as_they_were(
    tmp_path: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the weights as floats times the inputs as floats, both out of float8, in float32. Only what attention
    gives is cast by itself, all else on the way. Decodes are captured."""
    base, floats = make_quantized(tmp_path, replace(FLOAT8_CASES[CLIPPING], settings={"num_hidden_layers": 2, **TINY}))
    adapter = make_adapter(tmp_path / "rank8", base=floats, rank=8)
    casts, cast_rows = [], cast.cast_rows
    monkeypatch.setattr(cast, "cast_rows", lambda *rows: casts.append(rows) or cast_rows(*rows))
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, prompt_logprobs=0)
    with open_llm(base, {"rank8": adapter}, dtype="bfloat16") as llm:
        assert llm.info.arithmetic == "cuda kernels on cpu; float8 linears multiply activations cast to float8"
        found = torch.tensor(told(run(llm, prompts[1:2], ["rank8"], params))[: LENGTHS[1] - 1])
    assert {rows[0].shape[1] for rows in casts} == {64}, "what attention gives, and neither norms nor the gate"

    def error(*how: Any) -> float:
        return float((found - read_by_float8_linears(floats, adapter, prompts[1], *how)).abs().mean())

    right, uncast = error(lambda x: in_float8(x, CLIPPING)), error(lambda x: x)
    by_adapters_too = error(lambda x: in_float8(x, CLIPPING), True)
    assert right < uncast / 2 and right < by_adapters_too / 2
    assert RecordedGraph.replayed > 0


def test_packed_weights_that_were_kept_answer_the_same(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"quantization": "int4", "dtype": "bfloat16", "weights_cache": str(tmp_path / "cache")}
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, prompt_logprobs=0)
    answers = []
    for _ in range(2):
        with open_llm(base, adapters, **settings) as llm:
            answers.append(told(run(llm, prompts[:2], NAMES[:2], params)))
        monkeypatch.setattr(CudaPackedLinear, "finish", lambda method: pytest.fail("it was packed again"))
    assert answers[0] == answers[1] and answers[0]
