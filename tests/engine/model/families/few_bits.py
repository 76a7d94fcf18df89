"""What every family must hold in few bits: log-probabilities as transformers and peft have them, with weights, keys and
values that are what the bits stand for."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any, Final

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers.modeling_utils import AttentionInterface

from loraplex import LLM, SamplingParams
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.expected import layer_path
from loraplex.engine.model.loader import Checkpoint
from loraplex.quant.weights.online import OnlineQuantization
from tests.checkpoints import make_adapter, reference_model
from tests.quant.made_checkpoints import FILE, groups, quantize_folder, quantized_linears, scheme
from tests.quant.made_formats import Make, awq, compressed, float8, gptq

from .parity import make_base
from .tiny import ADAPTERS, LINEARS, TINY

FLOATS: Final = (
    "lm_head", "re:.*project_(in|out)", "re:.*in_proj_[ab]$", "re:.*mlp.gate$", "re:.*shared_expert_gate$",
    "re:.*router.proj$",
)  # fmt: skip
"""At the ends, and of too few outputs to be packed."""
FORMATS: Final[dict[str, tuple[dict[str, Any], Make]]] = {
    "AWQ": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq(32)),
    "GPTQ": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, gptq(4, 32, ordered=True)),
    "compressed-tensors int4": (
        groups("pack-quantized", scheme("int", 4, "group", group_size=32), ignore=FLOATS),
        compressed(4, 32),
    ),
    "compressed-tensors int8": (
        groups("int-quantized", scheme("int", 8, "channel"), ignore=FLOATS),
        compressed(8, "channel", packed=False),
    ),
    "compressed-tensors fp8": (
        groups("float-quantized", scheme("float", 8, "channel"), ignore=FLOATS),
        float8((1, None)),
    ),
    "FP8": ({"quant_method": "fp8", "weight_block_size": [32, 32]}, float8((32, 32), "weight_scale_inv")),
}
"""How a checkpoint may be stored -> what its config.json says, and what makes a linear of it."""
CACHES: Final = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Of keys or values [B, G, T, D]."""
NAMES: Final = (None, "lora", "dora")
PROMPTS: Final = tuple(torch.randint(3, 300, (47,), generator=torch.Generator().manual_seed(3)).split((24, 16, 7)))
NEW_TOKENS: Final = 3


@dataclass(frozen=True)
class Tiny:
    """A tiny checkpoint with adapters, and the model of transformers and peft."""

    name: str
    base: Path
    adapters: dict[str, Path]
    model: PeftModel
    floats: dict[str, torch.Tensor]
    """The checkpoint's own."""

    @property
    def config(self) -> ModelConfig:
        return ModelConfig.from_folder(self.base)


def make_tiny(folder: Path, name: str) -> Tiny:
    base = make_base(folder / "base", TINY[name])
    kinds = {"kinds": LINEARS[name]} if name in LINEARS else {}
    adapters = {own: make_adapter(folder / own, base, **{**how, **kinds}) for own, how in ADAPTERS.items()}
    model = reference_model(base, adapters)
    assert isinstance(model, PeftModel)
    return Tiny(name, base, adapters, model, by_expert(base))


def by_expert(base: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, those of all experts of a layer apart, as quantized checkpoints have them."""
    spec, tensors = ModelConfig.from_folder(base).spec, load_file(base / FILE)
    checkpoint = Checkpoint(base, spec)
    for number, layer in enumerate(spec.layers):
        for linear in layer.expert_linears():
            name = f"{layer_path(spec, number)}{linear.path}.weight"
            tensors.pop(checkpoint.stored_name(name), None)
            tensors[name] = checkpoint.tensor(name).clone()
    return tensors


def store(tiny: Tiny, name: str, folder: Path) -> dict[str, torch.Tensor]:
    """A copy of the checkpoint in a format. The floats that it stands for."""
    copytree(tiny.base, folder)
    save_file(tiny.floats, folder / FILE, {"format": "pt"})
    said, make = FORMATS[name]
    return quantize_folder(folder, said, lambda module: None if module.endswith(("in_proj_a", "in_proj_b")) else make)


def rounded(tiny: Tiny, quantization: str) -> dict[str, torch.Tensor]:
    """The weights that its linears have when they are rounded as they are loaded."""
    online, floats = OnlineQuantization(quantization), {}
    for path, linear in quantized_linears(tiny.config.spec):
        name = f"{path}.weight"
        weight = online.linear(tiny.floats[name].T if linear.is_transposed else tiny.floats[name])
        assert not isinstance(weight, torch.Tensor)
        floats[name] = weight.dequantized().T if linear.is_transposed else weight.dequantized()
    return floats


@dataclass(frozen=True)
class Answers:
    """Of the engine, for each of PROMPTS."""

    texts: list[list[int]]
    """Prompts, and the tokens that follow."""
    logprobs: torch.Tensor
    """Of all tokens but the first of each text, one text behind the other."""


def served(tiny: Tiny, base: Path, **settings: Any) -> Answers:
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, prompt_logprobs=0, logprobs=0, ignore_eos=True)
    prompts = [prompt.tolist() for prompt in PROMPTS]
    with LLM(base, tiny.adapters, max_model_len=60, num_kv_blocks=24, num_threads=1, **settings) as llm:
        outputs = llm.generate(prompts, params, adapter=NAMES, use_tqdm=False)
    found: list[float] = []
    for output in outputs:
        answer, judged = output.outputs[0], output.prompt_logprobs
        assert judged is not None and answer.logprobs is not None
        found += [next(iter(entry.values())).logprob for entry in (*judged[1:], *answer.logprobs) if entry]
    return Answers(
        [[*output.prompt_token_ids, *output.outputs[0].token_ids] for output in outputs], torch.tensor(found)
    )


def expected(
    tiny: Tiny, answers: Answers, floats: Mapping[str, torch.Tensor] | None = None, rounding: Rounding | None = None
) -> torch.Tensor:
    """The same of transformers and peft, with these `floats`, and keys and values through `rounding`."""
    with _weights(tiny, floats or {}), _keys(rounding):
        return torch.cat([_judged(tiny.model, text, name) for text, name in zip(answers.texts, NAMES, strict=True)])


@torch.inference_mode()
def _judged(model: PeftModel, token_ids: list[int], name: str | None) -> torch.Tensor:
    """Log-probabilities of all tokens but the first."""
    ids = torch.tensor([token_ids])
    if name is None:
        with model.disable_adapter():
            logits = model(input_ids=ids, use_cache=False).logits[0]
    else:
        model.set_adapter(name)
        logits = model(input_ids=ids, use_cache=False).logits[0]
    return logits[:-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


@contextmanager
def _weights(tiny: Tiny, floats: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """The model with these for a while."""
    _put(tiny.model, floats)
    try:
        yield
    finally:
        _put(tiny.model, {name: tiny.floats[name] for name in floats})


@torch.no_grad()
def _put(model: PeftModel, floats: Mapping[str, torch.Tensor]) -> None:
    own = {name.replace(".base_layer.", "."): it for name, it in model.get_base_model().named_parameters()}
    for name, tensor in floats.items():
        _place(own, name, len(tensor)).copy_(tensor)


def _place(own: Mapping[str, torch.Tensor], name: str, rows: int) -> torch.Tensor:
    """Where a weight of so many rows is in transformers' parameters, which have one tensor for all experts."""
    path, found, rest = name.partition(".experts.")
    if not found:
        return own[name]
    number, part = rest.removesuffix(".weight").split(".")
    if part == "down_proj":
        return own[f"{path}.experts.down_proj"][int(number)]
    first = 0 if part == "gate_proj" else rows
    return own[f"{path}.experts.gate_up_proj"][int(number), first : first + rows]


@contextmanager
def _keys(rounding: Rounding | None) -> Iterator[None]:
    """transformers with keys and values through this."""
    find = AttentionInterface.get_interface

    def get_interface(self: AttentionInterface, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        attend = find(self, name, default)

        def attend_to_rounded(
            module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any, **how: Any
        ) -> Any:
            assert rounding is not None
            return attend(module, query, rounding(key), rounding(value), *more, **how)

        return attend if rounding is None else attend_to_rounded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttentionInterface, "get_interface", get_interface)
        yield


def in_eight_bits(heads: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """heads [..., D] as the cache keeps them."""
    codes, scale = codes_and_scale(heads, dtype)
    return codes * scale


def codes_and_scale(heads: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """heads [..., D] as numbers that 8 bits can be, and for each head the least bfloat16 with which its largest number
    fits [..., 1]."""
    most = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    least = heads.abs().amax(dim=-1, keepdim=True) / most
    scale = least.bfloat16()
    scale = torch.where(scale.float() < least, torch.nextafter(scale, torch.full_like(scale, torch.inf)), scale).float()
    codes = (heads / scale).clamp(-most, most)
    return (codes.round() if dtype == torch.int8 else codes).to(dtype).float(), scale
