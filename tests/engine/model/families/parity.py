"""What every family must hold: the same tokens and logits as transformers and peft, whatever the steps look like."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import AutoModelForCausalLM

from loraplex import LLM, SamplingParams
from loraplex.engine.certify.certificate import CertifyJob
from loraplex.engine.certify.run import certify
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.offline.outputs import RequestOutput
from loraplex.engine.sampling.sampler import Sampled, Sampler, SampleRow
from loraplex.lora.inspection.inspection import inspect_adapter
from tests.checkpoints import CORPUS, make_adapter, make_tokenizer, reference_model

TOKENS: Final = {"vocab_size": 320, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
"""Of every tiny configuration: those of the tests' tokenizer."""
LENGTHS: Final = (3, 47, 15, 31, 16, 1)
NEW_TOKENS: Final = 20
TOLERANCE: Final = 1e-4
ADAPTERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "rank1": {"rank": 1, "kinds": "all-linear"},
    "rank8": {"rank": 8, "kinds": "all-linear", "use_dora": True},
    "rank12": {"rank": 12, "kinds": "all-linear", "use_rslora": True, "alpha": 5.0},
}
"""Mixed ranks on every linear of the layers."""


class Shown(NamedTuple):
    """What a check has shown, for docs/models.md."""

    architecture: str
    targets: tuple[str, ...] = ()
    """Last names of the modules that adapters were on."""
    stored: str = ""
    """In which format of few bits the checkpoint was."""
    weights: str = ""
    """How they were quantized as they were loaded."""
    keys: str = ""
    """The dtype of the cache."""


SHOWN: Final[list[Shown]] = []
"""Since the test began."""


@dataclass
class Family:
    """A tiny random checkpoint with adapters, and what transformers and peft say for each prompt alone."""

    base: Path
    adapters: dict[str, Path]
    names: list[str | None]
    """The adapter of each prompt."""
    prompts: list[list[int]]
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the engine."""
    tokens: list[list[int]] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    """[NEW_TOKENS, V] for each prompt."""


def make_family(
    folder: Path,
    config: PretrainedConfig,
    adapters: Mapping[str, Mapping[str, Any]] = ADAPTERS,
    *,
    seed: int = 0,
    lengths: tuple[int, ...] = LENGTHS,
    change: Callable[[Path], None] = lambda base: None,
    **settings: Any,
) -> Family:
    """adapters: by name, arguments of make_adapter; lengths: of prompts; change: what is done to the base, before it is
    used; settings: of the engine."""
    base = make_base(folder / "base", config, seed)
    change(base)
    made = {
        name: make_adapter(folder / name, base, seed=number, **how)
        for number, (name, how) in enumerate(adapters.items())
    }
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, 300, (length,), generator=generator).tolist() for length in lengths]
    choices = [None, *made]
    names = [choices[number % len(choices)] for number in range(len(prompts))]
    family = Family(base, made, names, prompts, settings)
    generate_alone(family)
    return family


def make_base(folder: Path, config: PretrainedConfig, seed: int = 0) -> Path:
    """A random checkpoint of the model for text, and the tests' tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        spread(model)
    model.float().save_pretrained(folder)
    return make_tokenizer(folder)


def spread(model: PreTrainedModel) -> None:
    """Random biases, norms and other vectors, and weights large enough that tokens matter."""
    with torch.no_grad():
        scales = {f"{name}.weight": float(getattr(it, "embed_scale", 1.0)) for name, it in model.named_modules()}
        for name, parameter in model.named_parameters():
            if "norm" in name or ".ln_" in name:
                centre = 1.0 if float(parameter.mean()) > 0.5 else 0.0  # some norms count from 1
                parameter.uniform_(centre - 0.4, centre + 0.4)
            elif parameter.dim() < 2:
                parameter.add_(torch.empty_like(parameter).normal_(std=0.3))
            else:
                size = 0.3 if "embed" in name or "wte" in name else 1.2 / parameter.shape[-1] ** 0.5
                parameter.normal_(std=size / scales.get(name, 1.0))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.6, 1.3)
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.3)


def check_family(family: Family) -> None:
    """All of it. A test a family of its own is shorter to read, and shares the slow part."""
    check_mixed_batch(family)
    check_chunks_and_preemption(family)
    check_shared_prefix(family)
    check_completions(family)
    check_adapters_matter(family)


def check_mixed_batch(family: Family) -> None:
    with _logits_seen() as seen, open_llm(family) as llm:
        assert tokens(run(llm, family)) == family.tokens
    for prompt, expected in zip(family.prompts, family.logits, strict=True):
        found = torch.stack([seen[tuple(prompt), position] for position in range(NEW_TOKENS)])
        assert (found - expected).abs().max() < TOLERANCE * max(1.0, float(expected.abs().max()))
    SHOWN.append(Shown(_architecture(family), _targets(family)))


def check_chunks_and_preemption(family: Family) -> None:
    order = [3, 5, 0, 1, 4, 2]
    with open_llm(family, max_num_batched_tokens=8, max_num_seqs=5, num_kv_blocks=6) as llm:
        assert tokens(run(llm, family, order)) == family.tokens
        assert tokens(run(llm, family, order)) == family.tokens  # now no adapter is waited for
        assert llm.status().preemptions


def check_shared_prefix(family: Family) -> None:
    with open_llm(family) as llm:
        run(llm, family)
        again = run(llm, family)
    assert tokens(again) == family.tokens
    assert max(output.num_cached_tokens for output in again) >= 16


def check_completions(family: Family) -> None:
    """Several of one prompt say what one says."""
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, n=2)
    with open_llm(family) as llm:
        outputs = llm.generate(family.prompts, params, adapter=family.names, use_tqdm=False)
    assert [[one.token_ids for one in output.outputs] for output in outputs] == [[own] * 2 for own in family.tokens]


def check_certified(family: Family, adapter: str) -> None:
    """What certificates compare with is computed by other code: without rounding there is no difference."""
    engine = EngineConfig(model=str(family.base))
    found = certify(CertifyJob(engine, adapter=str(family.adapters[adapter]), prompts=CORPUS))
    for figures in (found.weights, found.kv_cache, found.both):
        assert figures.top1_agreement == 1 and figures.max_kl < 1e-6, figures


def check_adapters_matter(family: Family) -> None:
    """Without this the others could pass with adapters that do nothing."""
    with _logits_seen() as seen, open_llm(family) as llm:
        llm.generate(family.prompts, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
    for prompt, name, adapted in zip(family.prompts, family.names, family.logits, strict=True):
        moved = float((seen[tuple(prompt), 0] - adapted[0]).abs().max())
        assert (moved > 100 * TOLERANCE) == (name is not None)


def check_refuses_names_only(family: Family, adapter: Path, path: str, folder: Path) -> None:
    """An adapter with tensors for a module `path` of a layer that the base has not is refused by that name."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    first = next(name for name in tensors if ".0." in name and "lora_A" in name)
    stem = f"{first.split('.0.', 1)[0]}.0."
    own = first.removeprefix(stem).split(".lora_", 1)[0]
    renamed = {
        f"{stem}{path}{name.removeprefix(stem + own)}" if name.startswith(stem + own + ".") else name: tensor
        for name, tensor in tensors.items()
    }
    folder.mkdir()
    save_file(renamed, folder / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    found = inspect_adapter(
        json.dumps(config).encode(), folder / "adapter_model.safetensors", base_signature(family.base)
    )
    assert found.manifest is None
    assert any(path in failure.message for failure in found.failures()), found.failures()


def check_whole(folder: Path, whole: PreTrainedModel, left_out: set[str]) -> None:
    """The folder of a larger model serves its text part, with an adapter trained on the whole."""
    torch.manual_seed(0)
    spread(whole.eval())
    base, prompt, kinds = make_tokenizer(folder / "base"), list(range(5, 40)), ["q_proj", "o_proj", "down_proj"]
    whole.save_pretrained(base)
    targets = rf".*language_model.*({'|'.join(kinds)})"
    adapted = get_peft_model(whole, LoraConfig(r=6, target_modules=targets, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.4 / parameter.shape[1] ** 0.5)
    adapted.save_pretrained(folder / "adapter")
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config | {"target_modules": kinds}))
    assert set(Checkpoint(base, ModelConfig.from_folder(base).spec).left_out) == left_out
    with LLM(base, {"one": folder / "adapter"}, max_model_len=80, num_kv_blocks=64, num_threads=1) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
        outputs = llm.generate([prompt, prompt], params, adapter=["one", None], use_tqdm=False)
    with adapted.disable_adapter():
        plain = _greedy(adapted, prompt)[0]
    assert tokens(outputs) == [_greedy(adapted, prompt)[0], plain]
    assert plain != tokens(outputs)[0]


def found(spec: object, path: str) -> object:
    """What a description says at `path`: layers.0.mixer.window."""
    for name in path.split("."):
        spec = spec[int(name)] if isinstance(spec, tuple) else getattr(spec, name)
    return spec


def open_llm(family: Family, **settings: Any) -> LLM:
    defaults = {"max_model_len": 80, "num_kv_blocks": 64, "adapter_memory": 16 << 20, "num_threads": 1}
    return LLM(family.base, family.adapters, **(defaults | family.settings | settings))


def run(llm: LLM, family: Family, order: list[int] | None = None) -> list[RequestOutput]:
    order = order or list(range(len(family.prompts)))
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    prompts, names = ([part[place] for place in order] for part in (family.prompts, family.names))
    outputs = llm.generate(prompts, params, adapter=names, use_tqdm=False)
    return [output for _, output in sorted(zip(order, outputs, strict=True), key=lambda pair: pair[0])]


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def _architecture(family: Family) -> str:
    return ModelConfig.from_folder(family.base).architecture


def _targets(family: Family) -> tuple[str, ...]:
    files = [load_file(folder / "adapter_model.safetensors") for folder in family.adapters.values()]
    names = {name.split(".lora_", 1)[0] for tensors in files for name in tensors if ".lora_" in name}
    # peft nests the LoRA on a second parameter of one module.
    return tuple({name.removesuffix(".base_layer").rpartition(".")[2] for name in names})


def generate_alone(family: Family) -> None:
    """Fill in what transformers and peft say."""
    model = reference_model(family.base, family.adapters)
    for prompt, name in zip(family.prompts, family.names, strict=True):
        if name is not None:
            model.set_adapter(name)
        with model.disable_adapter() if name is None and family.adapters else nullcontext():
            generated, logits = _greedy(model, prompt)
        family.tokens.append(generated)
        family.logits.append(logits)


@torch.inference_mode()
def _greedy(model: Any, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """NEW_TOKENS tokens, and the logits [NEW_TOKENS, V] that each was the largest of."""
    ids = list(prompt)
    for _ in range(NEW_TOKENS):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        ids.append(int(logits[-1].argmax()))
    return ids[len(prompt) :], logits[len(prompt) - 1 :]


@contextmanager
def _logits_seen() -> Iterator[dict[tuple[tuple[int, ...], int], torch.Tensor]]:
    """(prompt, position in the output) -> the logits the engine drew from."""
    seen: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}
    sample = Sampler.sample

    def recording(self: Sampler, logits: torch.Tensor, rows: list[SampleRow]) -> Sampled:
        for row, values in zip(rows, logits, strict=True):
            seen[tuple(row.prompt_token_ids), row.position] = values.clone()
        return sample(self, logits, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampler, "sample", recording)
        yield seen
