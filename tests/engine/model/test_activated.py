"""Activated LoRA as peft's own generate() computes it, its tokens in chunks, from the cache and in company."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from loraplex import LLM, SamplingParams
from tests.checkpoints import ALL_KINDS, make_adapter, make_checkpoint, reference_model

BLOCK, CHUNK = 16, 12
INVOCATIONS = {"late": [310, 311], "other": [312]}
ADAPTERS = {
    "late": {"rank": 8, "kinds": (*ALL_KINDS, "lm_head")},
    "other": {"rank": 3, "kinds": ("q_proj", "v_proj", "down_proj")},
    "plain": {"rank": 4},
}
NEW_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(root / name, base, seed=seed, alora_invocation_tokens=INVOCATIONS.get(name), **settings)  # type: ignore[arg-type]
        for seed, (name, settings) in enumerate(ADAPTERS.items())
    }


@pytest.fixture(scope="module")
def reference(base: Path, adapters: dict[str, Path]) -> PeftModel:
    model = reference_model(base, adapters)
    assert isinstance(model, PeftModel)
    return model


@pytest.fixture(scope="module")
def llm(base: Path, adapters: dict[str, Path]) -> Iterator[LLM]:
    """So small that prompts come in chunks and sequences give way to each other."""
    settings = {"block_size": BLOCK, "num_kv_blocks": 16, "max_num_batched_tokens": CHUNK, "max_num_seqs": 8}
    with LLM(base, adapters, max_model_len=128, adapter_memory=4 << 20, num_threads=1, **settings) as opened:
        yield opened


@torch.inference_mode()
def generate(model: PeftModel, prompt: list[int], name: str | None, count: int = NEW_TOKENS) -> list[int]:
    ids = torch.tensor([prompt])
    settings: dict[str, Any] = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    settings |= {"attention_mask": torch.ones_like(ids), "eos_token_id": None, "pad_token_id": 2}
    if name is None:
        with model.disable_adapter():
            return model.generate(input_ids=ids, **settings)[0, len(prompt) :].tolist()  # type: ignore[no-any-return, operator]
    model.set_adapter(name)
    return model.generate(input_ids=ids, **settings)[0, len(prompt) :].tolist()  # type: ignore[no-any-return, operator]


def draw(length: int, seed: int) -> list[int]:
    return torch.randint(3, 300, (length,), generator=torch.Generator().manual_seed(seed)).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("place", [0, 11, 15, 16, 17, 24, 37])
def test_prompts_come_in_chunks_and_start_in_blocks_of_the_base(llm: LLM, reference: PeftModel, place: int) -> None:
    """The activation before, at and after the border of a chunk; base, LoRA and two aLoRAs in one batch."""
    text = draw(40, seed=place)
    prompt = text[:place] + INVOCATIONS["late"] + INVOCATIONS["other"] + text[place:]
    names = [None, "late", "plain", "other"]
    expected = [generate(reference, prompt, name) for name in names]
    assert len({tuple(tokens) for tokens in expected}) == 4
    cold = llm.generate(prompt, GREEDY, adapter="late", use_tqdm=False)
    warm = llm.generate([prompt] * 4, GREEDY, adapter=names, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in [*cold, *warm]] == [expected[1], *expected]
    cached = [output.num_cached_tokens // BLOCK for output in [*cold, *warm]]
    assert cached[:4] == [0, place // BLOCK, 2, 0]


def test_many_at_once_give_way_to_each_other_and_fork(llm: LLM, reference: PeftModel) -> None:
    stem, names = draw(20, seed=99), [None, "late", "other", "plain", "late", "other"]
    prompts = [
        stem + INVOCATIONS.get(name or "", []) + draw(7 * number, seed=number) for number, name in enumerate(names)
    ]
    twice = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, n=2)
    before = llm.status().preemptions
    outputs = llm.generate(prompts, twice, adapter=names, use_tqdm=False)
    assert llm.status().preemptions > before
    for output, prompt, name in zip(outputs, prompts, names, strict=True):
        expected = generate(reference, prompt, name, 40)
        assert [choice.token_ids for choice in output.outputs] == [expected, expected], name


def test_log_probabilities_of_a_prompt_change_where_the_adapter_begins(llm: LLM, reference: PeftModel) -> None:
    prompt = draw(21, seed=7) + INVOCATIONS["late"] + draw(9, seed=8)
    found = {}
    for name in (None, "late"):
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        [output] = llm.generate(prompt, params, adapter=name, use_tqdm=False)
        assert output.prompt_logprobs is not None
        entries = [next(iter(entry.values())).logprob for entry in output.prompt_logprobs if entry]
        found[name] = torch.tensor(entries)
    reference.set_adapter("late")
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([prompt])).logits[0, :-1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    assert (found["late"] - expected).abs().max() < 1e-4
    # The token at 21 is the first that the adapter acts on; it changes what is thought of the next one.
    assert torch.equal(found["late"][:21], found[None][:21])
    assert ((found["late"] - found[None])[21:].abs() > 1e-3).all()


def test_a_prompt_without_the_invocation_is_refused_before_anything_runs(llm: LLM) -> None:
    steps = llm.status().steps
    for adapter in ("late", {"plain": 1.0, "late": 0.5}):
        with pytest.raises(ValueError, match=r"'late' acts from its invocation tokens on.* token ids \[310, 311\]"):
            llm.generate([*draw(9, seed=1), 310, 5, 311], GREEDY, adapter=adapter, use_tqdm=False)
    assert llm.status().steps == steps
