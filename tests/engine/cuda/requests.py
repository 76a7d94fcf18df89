"""What an engine on CUDA's path is asked, and what transformers, peft and itself on the CPU answer."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine.offline.outputs import RequestOutput
from tests.checkpoints import make_adapter, make_checkpoint, reference_model
from tests.engine.cuda_engine import TINY, open_llm

LENGTHS = (3, 19, 9, 5)
NAMES = (None, "rank8", "rank12", "rank8")
NEW_TOKENS = 3


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "qwen2", num_hidden_layers=2, **TINY)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    some = ("k_proj", "o_proj", "up_proj")
    return {
        "rank8": make_adapter(folder / "rank8", base, rank=8, seed=1),
        "rank12": make_adapter(folder / "rank12", base, rank=12, seed=2, kinds=some),
    }


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 300, (length,), generator=generator).tolist() for length in LENGTHS]


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, **fields)


def run(llm: LLM, prompts: list[list[int]], names: Any, params: Any = None) -> list[RequestOutput]:
    return llm.generate(prompts, params or greedy(), adapter=list(names), use_tqdm=False, strict=True)


def tokens(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[choice.token_ids for choice in output.outputs] for output in outputs]


@torch.inference_mode()
def with_peft(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], names: Any, vocab_size: int | None = None
) -> list[list[list[int]]]:
    model, found = reference_model(base, adapters, vocab_size), []
    for prompt, name in zip(prompts, names, strict=True):
        if name is not None:
            model.set_adapter(name)
        ids = list(prompt)
        with model.disable_adapter() if name is None and adapters else nullcontext():
            for _ in range(NEW_TOKENS):
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        found.append([ids[len(prompt) :]])
    return found


def on_both(base: Path, adapters: dict[str, Path], **settings: Any) -> Iterator[LLM]:
    for device in ("cpu", "cuda"):
        with open_llm(base, adapters, device=device, **settings) as llm:
            yield llm


def told(outputs: list[RequestOutput]) -> list[float]:
    entries = [entry for output in outputs for entry in output.prompt_logprobs or ()]
    entries += [entry for output in outputs for choice in output.outputs for entry in choice.logprobs or ()]
    return [number.logprob for entry in entries if entry for _, number in sorted(entry.items())]
