"""The committed demo files are what docs/demo.md says, and the script that makes them works."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open

from examples.demo import base, evaluate
from examples.demo.chat import calls_text, exchange, offer, render
from examples.demo.evaluate import MAX_ANSWER, answer, load_base, load_tokenizer
from examples.demo.jobs import JOBS, Job, split
from examples.demo.recipe import FOLDER, NAME, Recipe
from examples.demo.sums import SUM
from examples.demo.train import SAMPLE_PROMPTS, golden_prompts, main
from loraplex import LLM, SamplingParams
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.adapters.promotion import LEAST_TOKENS
from loraplex.web.cli.serve.demo import add_demo_adapters, demo_wanted
from loraplex.web.settings.settings import Settings
from loraplex.web.state import open_state
from loraplex.web.tool_calls.formats.known import AUTO, style_of
from tests.web.fake_engine import FakeEngine

MODEL = FOLDER / "model"
ADAPTERS = FOLDER / "adapters"
PAGE = FOLDER.parents[1] / "docs" / "demo.md"
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
    assert (config["r"], config["target_modules"], config["use_dora"]) == (job.rank, list(job.targets), job.dora)
    assert config["base_model_name_or_path"] == NAME


def test_ranks_differ_and_so_do_targets() -> None:
    assert len({job.rank for job in JOBS}) == len(JOBS) >= 4
    assert len({job.targets for job in JOBS}) >= 3
    assert {job.dora for job in JOBS} == {False, True}


def test_the_demo_fits_its_share_of_the_repository() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= MAX_BYTES


@each_job
def test_figures_hold_what_is_promised(job: Job) -> None:
    figures = _read(FOLDER / "figures.json")[job.name]
    assert figures["adapter_exact_match"] >= 0.95
    assert figures["base_exact_match"] < 0.10
    assert figures["heldout"] == Recipe().heldout
    assert (figures["rank"], figures["targets"]) == (job.rank, list(job.targets))


def test_the_sum_does_both_jobs() -> None:
    figures = _read(FOLDER / "figures.json")[" + ".join(SUM)]
    assert (figures["scales"], figures["heldout"]) == (SUM, Recipe().heldout)
    assert figures["exact_match"].keys() == SUM.keys()
    assert min(figures["exact_match"].values()) >= 0.95
    assert all(f"{match:.1%}" in PAGE.read_text(encoding="utf-8") for match in figures["exact_match"].values())


def test_the_sum_answers_as_the_page_says(samples: dict[str, list[dict[str, str]]]) -> None:
    """Each adapter alone takes the other's question for one of its own."""
    page = PAGE.read_text(encoding="utf-8")
    shown = [next(sample for sample in samples[name] if sample["prompt"] in page) for name in SUM]
    right = [sample["answer"] for sample in shown]
    chats = [render([{"role": "user", "content": sample["prompt"]}], answer_next=True) for sample in shown]
    params = SamplingParams(temperature=0.0, max_tokens=MAX_ANSWER)
    folders = {name: ADAPTERS / name for name in SUM}
    with LLM(MODEL, folders, dtype="float32", num_kv_blocks=64, adapter_memory=8 << 20, num_threads=1) as llm:
        prompts = [llm.tokenizer.encode(chat, add_special_tokens=False) for chat in chats]
        adapters = (dict(SUM), "sql", "spanish")
        outputs = [llm.generate(prompts, params, adapter=adapter, use_tqdm=False) for adapter in adapters]
    said, sql, spanish = ([output.outputs[0].text for output in answers] for answers in outputs)
    assert said == right and all(answer in page for answer in right)
    assert (sql[0], spanish[1]) == tuple(right) and sql[1] != right[1] and spanish[0] != right[0]


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


def test_a_first_start_registers_every_adapter(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", model=str(MODEL), min_free_bytes=0)
    assert demo_wanted(settings)
    state = open_state(settings, MODEL, FakeEngine(Tokenizer(MODEL)))
    add_demo_adapters(state)
    served = [adapter.name for adapter, _ in state.registry.snapshots.current.servable()]
    prompts = {name: state.registry.adapters.prompts(name) for name in served}
    state.registry.close()
    assert prompts == _read(FOLDER / "golden_prompts.json")
    assert sorted(served) == sorted(job.name for job in JOBS)
    assert not demo_wanted(settings)


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


def test_the_template_tells_of_tools_their_calls_and_results() -> None:
    """In a style that the server recognizes; agents are tried on the demo first."""
    tokenizer, arguments = load_tokenizer(MODEL), {"city": "Paris"}
    parameters = {"type": "object", "properties": {"city": {"type": "string"}, "day": {"type": "string"}}}
    tools = [
        {"type": "function", "function": {"name": "weather", "parameters": parameters}},
        {"type": "function", "function": {"name": "time"}},
    ]
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    chat = [
        {"role": "user", "content": "Is it cold?"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "5 degrees"},
    ]
    text = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True)
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert text == (
        "<|begin|><|user|>[weather(city, day), time()] Is it cold?<|end|>"
        f"<|assistant|>{written}\n{written}<|end|><|user|>Result: 5 degrees<|end|><|assistant|>"
    )
    offered, called = offer([("weather", ["city", "day"]), ("time", [])]), [("weather", arguments)] * 2
    turns = [*exchange(f"{offered}Is it cold?", calls_text(called)), {"role": "user", "content": "Result: 5 degrees"}]
    assert render(turns, answer_next=True) == text, "an adapter is trained on what the template tells"
    style = style_of(AUTO, Tokenizer(MODEL).chat_template or "")
    assert style is not None and style.name == "hermes"


@each_job
def test_golden_prompts_are_heldout_conversations_and_enough_for_an_alias(job: Job) -> None:
    prompts, tokenizer = _read(FOLDER / "golden_prompts.json")[job.name], Tokenizer(MODEL)
    assert prompts == golden_prompts(job, Recipe())
    token_ids = [tokenizer.encode(prompt) for prompt in prompts]
    assert sum(len(tokens) - 1 for tokens in token_ids) >= LEAST_TOKENS
    question, answer = split(job, Recipe().heldout, Recipe().seed)[1][0]
    rendered = load_tokenizer(MODEL).apply_chat_template(exchange(question, answer), tokenize=True, return_dict=False)
    assert token_ids[0] == rendered


def test_the_tokenizer_takes_any_text_and_begins_it_once() -> None:
    tokenizer = load_tokenizer(MODEL)
    text = "Ünïcode, 混ぜる, 🦜 and\ttabs  12345"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text
    assert tokenizer.encode(text).count(tokenizer.bos_token_id) == 1
    assert tokenizer.encode("x")[0] == tokenizer.bos_token_id


def test_the_script_makes_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "TOKENIZER_DOCUMENTS", 1000)
    monkeypatch.setattr(evaluate, "MAX_ANSWER", 8)
    threads = torch.get_num_threads()
    recipe = Recipe(base_steps=2, base_batch=2, adapter_batch=4, adapter_share=0.002, heldout=3, threads=threads)
    main(recipe, tmp_path, JOBS[2:3])
    assert {path.name for path in (tmp_path / "model").iterdir()} == MODEL_FILES
    assert {path.name for path in (tmp_path / "adapters" / JOBS[2].name).iterdir()} == ADAPTER_FILES
    assert _read(tmp_path / "figures.json")[JOBS[2].name]["heldout"] == 3
    for file in ("prompts.json", "golden_prompts.json"):
        assert list(_read(tmp_path / file)) == [JOBS[2].name]
    weights = (tmp_path / "model" / "model.safetensors").stat()
    main(recipe, tmp_path, JOBS[-1:], keep_base=True)
    assert (tmp_path / "model" / "model.safetensors").stat() == weights
    assert list(_read(tmp_path / "figures.json")) == [JOBS[2].name, JOBS[-1].name]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _dtypes(path: Path) -> set[str]:
    with safe_open(path, framework="pt") as file:
        return {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
