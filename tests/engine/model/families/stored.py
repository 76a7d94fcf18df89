"""What every family must hold in fewer bits, and in the plain forward of certificates: beside transformers and peft."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from shutil import copytree
from typing import Any, Final

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from loraplex import SamplingParams
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.expected import layer_path
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.quantize.ends import End, embed_tokens
from loraplex.engine.quantize.float_layers import stored_layer
from loraplex.engine.quantize.plain.forward import layer_forward
from loraplex.quant.weights.online import OnlineQuantization
from tests.checkpoints import reference_model

from .parity import SHOWN, TOLERANCE, Family, Shown, open_llm

WEIGHTS: Final = ("int8", "fp8", "int4")
WEIGHTS_ERROR: Final = 5e-3
"""Of any log-probability: both sides multiply the same rounded weights."""
CACHE_ERROR: Final = 0.1
"""Root of the mean square, with keys and values of 8 bits; those of float are exact."""


def check_fewer_bits(family: Family, folder: Path) -> None:
    for scheme in WEIGHTS:
        rounded = _rounded(family, scheme, folder / scheme)
        error = _judge(family, quantization=scheme) - _judged(rounded, family.adapters, family)
        assert error.abs().max() < WEIGHTS_ERROR, scheme
        SHOWN.append(Shown(ModelConfig.from_folder(family.base).architecture, weights=scheme))
    error = _judge(family, kv_cache_dtype="int8") - _judged(family.base, family.adapters, family)
    assert 0 < error.square().mean().sqrt() < CACHE_ERROR
    SHOWN.append(Shown(ModelConfig.from_folder(family.base).architecture, keys="int8"))


def _rounded(family: Family, scheme: str, folder: Path) -> Path:
    """The checkpoint with the weights that its linears have when they are rounded at the start."""
    copytree(family.base, folder)
    spec, online = ModelConfig.from_folder(folder).spec, OnlineQuantization(scheme)
    tensors = load_file(folder / "model.safetensors")
    for number, layer in enumerate(spec.layers):
        for linear in layer.linears():
            name = f"{layer_path(spec, number)}{linear.path}.weight"
            weight = online.linear(tensors[name])
            assert not isinstance(weight, torch.Tensor)
            tensors[name] = weight.dequantized().contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def _judge(family: Family, **settings: Any) -> torch.Tensor:
    """Log-probabilities that the engine gives the prompts' tokens."""
    params, found = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0), []
    with open_llm(family, **settings) as llm:
        outputs = llm.generate(family.prompts, params, adapter=family.names, use_tqdm=False)
    for output in outputs:
        assert output.prompt_logprobs is not None
        found += [next(iter(entry.values())).logprob for entry in output.prompt_logprobs[1:] if entry]
    return torch.tensor(found)


@torch.inference_mode()
def _judged(base: Path, adapters: Mapping[str, Path], family: Family) -> torch.Tensor:
    """The same of transformers and peft."""
    model, found = reference_model(base, dict(adapters)), []
    for prompt, name in zip(family.prompts, family.names, strict=True):
        if name is not None:
            model.set_adapter(name)
        with model.disable_adapter() if name is None and adapters else nullcontext():
            logits = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0]
        found.append(logits[:-1].log_softmax(-1).gather(1, torch.tensor(prompt[1:])[:, None])[:, 0])
    return torch.cat(found)


@torch.inference_mode()
def check_plain_forward(family: Family) -> None:
    """Logits of the longest prompt by the forward that certificates and calibration use."""
    config = ModelConfig.from_folder(family.base)
    spec, checkpoint = config.spec, Checkpoint(family.base, config.spec)
    prompt = torch.tensor([max(family.prompts, key=len)])
    embedding = checkpoint.tensor(f"{spec.embedding.path}.weight")
    x = embed_tokens(spec, checkpoint, embedding, prompt)
    for number, layer in enumerate(spec.layers):
        x = layer_forward(layer, prompt.shape[1]).apply(stored_layer(spec, checkpoint, number), x)
    end, head = End.read(spec, checkpoint, torch.device("cpu")), checkpoint.head(config)
    assert isinstance(head, torch.Tensor)
    logits = end.logits(F.linear(end.rows(x), head))
    expected = reference_model(family.base)(input_ids=prompt).logits
    assert (logits - expected).abs().max() < TOLERANCE * max(1.0, float(expected.abs().max()))
