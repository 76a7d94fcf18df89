"""The committed demo files are what docs/demo.md says, and the script that makes them works."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open

from examples.demo.chat import exchange, render
from examples.demo.evaluate import answer, load_base, load_tokenizer
from examples.demo.jobs import JOBS, Job, split
from examples.demo.recipe import FOLDER, NAME, Recipe
from examples.demo.train import SAMPLE_PROMPTS, main

MODEL = FOLDER / "model"
ADAPTERS = FOLDER / "adapters"
MODEL_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
ADAPTER_FILES = {"adapter_config.json", "adapter_model.safetensors"}
MAX_BYTES = 16 << 20

each_job = pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)


@pytest.fixture(scope="module")
def samples() -> dict[str, list[dict[str, str]]]:
    return dict(_read(FOLDER / "prompts.json"))


@pytest.fixture(scope="module")
def served() -> PeftModel:
    """The committed base with every committed adapter."""
    first, *others = (job.name for job in JOBS)
    model = PeftModel.from_pretrained(load_base(MODEL), ADAPTERS / first, adapter_name=first)
    for name in others:
        model.load_adapter(ADAPTERS / name, adapter_name=name)
    return model


def test_the_base_is_standard_files_in_bf16() -> None:
    assert {path.name for path in MODEL.iterdir()} == MODEL_FILES
    assert _dtypes(MODEL / "model.safetensors") == {"BF16"}


@each_job
def test_an_adapter_is_the_two_peft_files_in_bf16_of_its_rank_and_targets(job: Job) -> None:
    folder = ADAPTERS / job.name
    config = _read(folder / "adapter_config.json")
    assert {path.name for path in folder.iterdir()} == ADAPTER_FILES
    assert _dtypes(folder / "adapter_model.safetensors") == {"BF16"}
    assert (config["r"], config["target_modules"]) == (job.rank, list(job.targets))
    assert config["base_model_name_or_path"] == NAME


def test_ranks_differ_and_so_do_targets() -> None:
    assert len({job.rank for job in JOBS}) == len(JOBS) >= 4
    assert len({job.targets for job in JOBS}) >= 3


def test_the_demo_fits_its_share_of_the_repository() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= MAX_BYTES


@each_job
def test_figures_hold_what_is_promised(job: Job) -> None:
    figures = _read(FOLDER / "figures.json")[job.name]
    assert figures["adapter_exact_match"] >= 0.95
    assert figures["base_exact_match"] < 0.10
    assert figures["heldout"] == Recipe().heldout
    assert (figures["rank"], figures["targets"]) == (job.rank, list(job.targets))


@each_job
def test_heldout_questions_are_fixed_by_the_seed_and_never_trained_on(
    job: Job, samples: dict[str, list[dict[str, str]]]
) -> None:
    train, heldout = split(job, Recipe().heldout, Recipe().seed)
    assert len(samples[job.name]) == SAMPLE_PROMPTS
    assert {(sample["prompt"], sample["answer"]) for sample in samples[job.name]} <= set(heldout)
    assert not {question for question, _ in train} & {question for question, _ in heldout}
    assert len(train) == job.train_examples


@each_job
def test_sample_prompts_are_answered_exactly_by_the_adapter_and_not_by_the_base(
    job: Job, served: PeftModel, samples: dict[str, list[dict[str, str]]]
) -> None:
    prompts, right = zip(*(sample.values() for sample in samples[job.name]), strict=True)
    served.set_adapter(job.name)
    assert answer(served, load_tokenizer(MODEL), list(prompts)) == list(right)
    with served.disable_adapter():
        assert answer(served, load_tokenizer(MODEL), list(prompts)) != list(right)


def test_the_chat_template_is_the_text_the_models_were_trained_on() -> None:
    tokenizer = load_tokenizer(MODEL)
    chat = [
        {"role": "system", "content": "Be kind."},
        *exchange(" Hello! ", "Hi!"),
        {"role": "user", "content": "Bye!"},
    ]
    for answer_next in (False, True):
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer_next)
        assert text == render(chat, answer_next=answer_next)


def test_the_tokenizer_takes_any_text_and_begins_it_once() -> None:
    tokenizer = load_tokenizer(MODEL)
    text = "Ünïcode, 混ぜる, 🦜 and\ttabs  12345"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text
    assert tokenizer.encode(text).count(tokenizer.bos_token_id) == 1
    assert tokenizer.encode("x")[0] == tokenizer.bos_token_id


def test_the_script_makes_every_file(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    recipe = Recipe(base_steps=2, base_batch=2, adapter_batch=4, adapter_share=0.002, heldout=3, threads=threads)
    main(recipe, tmp_path, JOBS[2:3])
    assert {path.name for path in (tmp_path / "model").iterdir()} == MODEL_FILES
    assert {path.name for path in (tmp_path / "adapters" / JOBS[2].name).iterdir()} == ADAPTER_FILES
    assert _read(tmp_path / "figures.json")[JOBS[2].name]["heldout"] == 3
    assert list(_read(tmp_path / "prompts.json")) == [JOBS[2].name]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _dtypes(path: Path) -> set[str]:
    with safe_open(path, framework="pt") as file:
        return {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
