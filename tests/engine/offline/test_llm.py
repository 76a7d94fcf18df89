from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM, SamplingParams
from tests.checkpoints import make_adapter, make_checkpoint, reference_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), base, rank=4)


def open_llm(base: Path, adapters: dict[str, Path] | None = None, seed: int = 0, **settings: int) -> LLM:
    settings = {"num_kv_blocks": 64, "adapter_memory": 4 << 20, "num_threads": 1} | settings
    return LLM(base, adapters, seed=seed, **settings)


@pytest.fixture(scope="module")
def llm(base: Path, adapter: Path) -> Iterator[LLM]:
    with open_llm(base, {"mine": adapter}) as opened:
        yield opened


def test_text_ids_and_mappings_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode("hello")
    prompts = ["hello", ids, {"prompt": "hello"}, {"prompt_token_ids": ids}]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["hello", None, "hello", None]
    assert all(output.prompt_token_ids == ids and output.finished for output in outputs)
    assert llm.generate(ids, GREEDY, use_tqdm=False)[0].outputs == outputs[0].outputs


def test_outputs_come_in_prompt_order_with_their_own_params_and_adapter(llm: LLM) -> None:
    lengths = [7, 1, 4]
    params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
    outputs = llm.generate(["a", "b", "c"], params, adapter=[None, "mine", "mine"], use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert [output.adapter for output in outputs] == [None, "mine", "mine"]
    assert [output.prompt for output in outputs] == ["a", "b", "c"]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}


def test_the_text_is_that_of_the_tokens(llm: LLM) -> None:
    choice = llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0]
    assert choice.text == llm.tokenizer.decode(choice.token_ids)
    assert choice.logprobs is None and choice.cumulative_logprob is None


def test_an_adapter_changes_the_tokens(llm: LLM) -> None:
    base, mine = llm.generate(["hello", "hello"], GREEDY, adapter=[None, "mine"], use_tqdm=False)
    assert base.outputs[0].token_ids != mine.outputs[0].token_ids


def test_logprobs_belong_to_the_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    output = llm.generate("hello there", params, use_tqdm=False)[0]
    choice = output.outputs[0]
    assert choice.logprobs is not None and output.prompt_logprobs is not None
    assert [next(iter(entry)) for entry in choice.logprobs] == choice.token_ids
    assert all(len(entry) == 2 and next(iter(entry.values())).rank == 1 for entry in choice.logprobs)
    assert choice.cumulative_logprob == sum(next(iter(entry.values())).logprob for entry in choice.logprobs)
    assert output.prompt_logprobs[0] is None
    judged = [next(iter(entry)) for entry in output.prompt_logprobs[1:] if entry]
    assert judged == output.prompt_token_ids[1:]


def test_a_stop_string_ends_one_choice_and_leaves_the_others(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=1, n=3, max_tokens=12, ignore_eos=True)
    free = llm.generate("hello", params, use_tqdm=False)[0]
    stop = free.outputs[1].text[3:5]
    params = SamplingParams(temperature=1.0, seed=1, n=3, max_tokens=12, ignore_eos=True, stop=[stop])
    count = llm.status().generation_tokens
    stopped = llm.generate("hello", params, use_tqdm=False)[0]
    made = llm.status().generation_tokens - count
    assert made == sum(len(choice.token_ids) for choice in stopped.outputs) < 36
    assert (stopped.outputs[1].stop_reason, stopped.outputs[1].finish_reason) == (stop, "stop")
    for before, after in zip(free.outputs, stopped.outputs, strict=True):
        assert after.text == before.text.split(stop)[0]


def test_a_stop_string_may_stand_alone_and_stops_as_a_whole(llm: LLM) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 24, "ignore_eos": True}
    free = llm.generate("hello", SamplingParams(**fields), use_tqdm=False)[0].outputs[0].text
    pairs = (free[place : place + 2] for place in range(1, len(free) - 1))
    stop = next(pair for pair in pairs if free.find(pair[0]) < free.find(pair))
    for given in (stop, [stop], (stop,)):
        stopped = llm.generate("hello", SamplingParams(stop=given, **fields), use_tqdm=False)[0].outputs[0]  # type: ignore[arg-type]
        assert (stopped.text, stopped.stop_reason) == (free.split(stop)[0], stop)


def test_no_stop_is_none_or_an_empty_list(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, stop=None, stop_token_ids=None)  # type: ignore[arg-type]
    assert (
        llm.generate("hello", params, use_tqdm=False)[0].outputs
        == llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs
    )


def test_an_end_token_is_an_id_but_no_text(llm: LLM) -> None:
    token_id = llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids[2]
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, stop_token_ids=[token_id])
    choice = llm.generate("hello", params, use_tqdm=False)[0].outputs[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", token_id)
    assert choice.token_ids[-1] == token_id
    assert choice.text == llm.tokenizer.decode(choice.token_ids[:-1])


def test_a_seed_makes_the_whole_program_repeatable(base: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True)

    def program(seed: int) -> list[list[int]]:
        with open_llm(base, seed=seed) as llm:
            outputs = llm.generate(["a", "a"], params, use_tqdm=False) + llm.generate("a", params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    first = program(7)
    assert first == program(7)
    assert first != program(8)
    assert len({tuple(token_ids) for token_ids in first}) == 3


@pytest.mark.parametrize(
    ("prompts", "params", "names", "words"),
    [
        ([1.5], None, None, "prompt 0: a prompt must be a text or a non-empty list of token ids, got float"),
        (["a", []], None, None, "prompt 1: a prompt must be a text or a non-empty list of token ids"),
        (["a", [1, 999]], None, None, "prompt 1: the prompt has token id 999, outside the vocabulary of 320"),
        (
            ["a", "b"],
            [GREEDY],
            None,
            "sampling_params must be one SamplingParams for all prompts, or one for each of the 2",
        ),
        (["a"], None, "nobody", "there is no adapter 'nobody'; there are: mine"),
        (
            ["a"],
            None,
            ["mine", None],
            "adapter must be one name or dict of scales for all prompts, or one for each of the 1",
        ),
        ("a", SamplingParams(stop_token_ids=[400]), None, "prompt 0: stop_token_ids has token id 400, outside"),
        (["a"], {"temperature": 0}, None, "sampling_params must be one SamplingParams for all prompts"),
        (["a" * 600], None, None, "tokens, but prompt and output together may have 256"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    llm: LLM, prompts: object, params: object, names: object, words: str
) -> None:
    steps = llm.status().steps
    with pytest.raises(ValueError, match=words):
        llm.generate(prompts, params, adapter=names, use_tqdm=False)  # type: ignore[arg-type]
    assert llm.status().steps == steps
    assert (llm.status().running, llm.status().waiting) == (0, 0)


def test_an_adapter_that_cannot_be_used_is_refused_at_the_start(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"adapter 'bad': .* has no adapter_config\.json and no adapter_model"):
        open_llm(base, {"bad": tmp_path})
    other = make_checkpoint(tmp_path / "other", hidden_size=32)
    misfit = make_adapter(tmp_path / "misfit", other)
    with pytest.raises(ValueError, match="adapter 'misfit': "):
        open_llm(base, {"misfit": misfit})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 257}, "max_model_len must be between 2 and 256"),
        ({"device": "tpu"}, "device 'tpu' is not supported"),
        ({"dtype": "int4"}, "dtype 'int4' is not supported"),
        ({"num_kv_blocks": 1}, "the KV cache needs 2 blocks"),
        ({"flux": 1}, "unknown argument 'flux'; see EngineConfig"),
        ({"max_modellen": 1}, "unknown argument 'max_modellen'; did you mean 'max_model_len'"),
    ],
)
def test_settings_that_cannot_be_are_refused(base: Path, settings: dict[str, int], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        open_llm(base, **settings)


def test_a_closed_llm_says_so(base: Path) -> None:
    llm = open_llm(base)
    llm.close()
    llm.close()
    with pytest.raises(ValueError, match="this engine is closed"):
        llm.generate("a", use_tqdm=False)


def test_a_progress_bar_counts_the_prompts(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    assert "2/2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dtype", "heads"),
    [
        ("bfloat16", {}),
        # As test_fused.py has them in this dtype: other heads compile for half a minute.
        ("float16", {"hidden_size": 448, "num_attention_heads": 7, "num_key_value_heads": 1}),
    ],
)
def test_short_dtypes_stay_close_to_the_checkpoint(tmp_path: Path, dtype: str, heads: dict[str, int]) -> None:
    base = make_checkpoint(tmp_path, **heads)
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with LLM(base, dtype=dtype, num_kv_blocks=8, adapter_memory=1 << 20, num_threads=1) as short:
        [rounded] = short.generate("The quick brown fox", params, use_tqdm=False)
        assert short.info.dtype == dtype
    ids = rounded.prompt_token_ids
    with torch.inference_mode():
        exact = reference_model(base)(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    entries = [entry for entry in rounded.prompt_logprobs or [] if entry]
    assert len(entries) == len(ids) - 1 > 3
    errors = [abs(entry[i].logprob - float(row[i])) for i, entry, row in zip(ids[1:], entries, exact[:-1], strict=True)]
    assert 1e-6 < max(errors) < 0.15
