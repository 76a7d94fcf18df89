"""LLMEngine step by step, and what LLM adds: chats, adapters that come later, errors beside answers."""

import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from loraplex import LLM, EngineArgs, LLMEngine, LoRARequest, RequestOutputKind, SamplingParams
from loraplex.engine.protocol import RequestFailed
from tests.checkpoints import make_adapter, make_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SETTINGS: dict[str, Any] = {"num_kv_blocks": 64, "adapter_memory": 4 << 20, "num_threads": 1}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), base, rank=4)


@pytest.fixture(scope="module")
def llm(base: Path) -> Iterator[LLM]:
    with LLM(base, **SETTINGS) as opened:
        yield opened


def tokens(llm: LLM, *arguments: Any, **named: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(*arguments, use_tqdm=False, **named)]


def test_sleep_frees_the_engine_and_wake_up_brings_back_model_and_adapters(base: Path, adapter: Path) -> None:
    with LLM(base, {"named": adapter}, **SETTINGS) as llm:
        lora = LoRARequest("asked", 1, str(adapter))
        before = [tokens(llm, "hello", GREEDY, adapter=name) for name in (None, "named")]
        assert tokens(llm, "hello", GREEDY, lora_request=lora) == before[1] != before[0]
        engine = weakref.ref(llm.llm_engine.engine.core)
        llm.sleep(level=2)
        llm.sleep()
        assert engine() is None and llm.llm_engine.is_sleeping()
        with pytest.raises(ValueError, match="sleeps; call wake_up"):
            llm.generate("hello", GREEDY)
        llm.wake_up()
        llm.wake_up(tags=["kv_cache", "weights"])
        assert [tokens(llm, "hello", GREEDY, adapter=name) for name in (None, "named")] == before
        assert tokens(llm, "hello", GREEDY, lora_request=lora) == before[1]
        with pytest.raises(ValueError, match="level must be 1 or 2"):
            llm.sleep(3)
        with pytest.raises(ValueError, match="wake up together"):
            llm.wake_up(tags=["weights"])
        llm.llm_engine.add_request("running", "hello", GREEDY)
        with pytest.raises(ValueError, match="requests are running"):
            llm.sleep()
    with pytest.raises(ValueError, match="is closed"):
        llm.sleep()


def test_one_that_sleeps_can_be_closed(base: Path) -> None:
    engine = LLMEngine(EngineArgs(base, **SETTINGS))
    engine.sleep()
    engine.close()
    with pytest.raises(ValueError, match="is closed"):
        _ = engine.info


def test_threads_that_call_one_llm_get_the_answers_they_would_get_alone(llm: LLM) -> None:
    asked = [[f"hello {caller} {number}" for number in range(8)] for caller in range(3)]
    alone = [tokens(llm, prompts, GREEDY) for prompts in asked]
    with ThreadPoolExecutor(4) as threads:
        embedding = threads.submit(llm.embed, asked[0], use_tqdm=False)
        answers = list(threads.map(lambda prompts: tokens(llm, prompts, GREEDY), asked * 4))
    assert answers == alone * 4
    before = [output.outputs.embedding for output in llm.embed(asked[0], use_tqdm=False)]
    assert [output.outputs.embedding for output in embedding.result()] == before


def test_threads_may_add_requests_while_one_steps(base: Path, llm: LLM) -> None:
    prompts = [f"hello {number}" for number in range(24)]
    found: dict[str, list[int]] = {}
    with LLMEngine(EngineArgs(base, **SETTINGS)) as engine, ThreadPoolExecutor(3) as threads:
        added = [threads.submit(engine.add_request, prompt, prompt, GREEDY) for prompt in prompts]
        while len(found) < len(prompts):
            for output in engine.step():
                if output.finished:
                    found[output.request_id] = output.outputs[0].token_ids
        assert all(future.exception() is None for future in added)
    assert [found[prompt] for prompt in prompts] == tokens(llm, prompts, GREEDY)


def test_a_delta_has_only_the_choices_that_something_came_of(base: Path, llm: LLM) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 3, "n": 3, "max_tokens": 12, "ignore_eos": True}
    free = llm.generate("hello", SamplingParams(**fields), use_tqdm=False)[0]
    fields["stop"] = free.outputs[1].text[3:5]
    [whole] = llm.generate("hello", SamplingParams(**fields), use_tqdm=False)
    parts: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    with LLMEngine(EngineArgs(base, **SETTINGS)) as engine:
        engine.add_request("one", "hello", SamplingParams(output_kind=RequestOutputKind.DELTA, **fields))
        while engine.has_unfinished_requests():
            for output in engine.step():
                assert output.outputs
                for choice in output.outputs:
                    parts[choice.index].append(choice)
    for index, told in parts.items():
        assert all(part.token_ids or part.finished() for part in told)
        assert [part.finished() for part in told] == [False] * (len(told) - 1) + [True]
        assert "".join(part.text for part in told) == whole.outputs[index].text
        assert told[-1].finish_reason == whole.outputs[index].finish_reason
    assert len(parts[1]) < len(parts[0])


def test_a_loop_of_ones_own_gives_what_generate_gives(base: Path, llm: LLM) -> None:
    kinds = {"delta": RequestOutputKind.DELTA, "so far": RequestOutputKind.CUMULATIVE, "end": 2}
    engine = LLMEngine.from_engine_args(EngineArgs(base, **SETTINGS))
    params = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, "logprobs": 1}
    for name, kind in kinds.items():
        engine.add_request(name, "hello", SamplingParams(output_kind=kind, **params))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a request 'end' is running"):
        engine.add_request("end", "hello", GREEDY)
    news: dict[str, list[Any]] = {name: [] for name in kinds}
    while engine.has_unfinished_requests():
        for output in engine.step():
            news[output.request_id].append(output.outputs[0])
    engine.close()
    [whole] = llm.generate("hello", SamplingParams(**params), use_tqdm=False)  # type: ignore[arg-type]
    expected = whole.outputs[0]
    assert len(news["end"]) == 1 and news["end"][0] == news["so far"][-1] == expected
    assert "".join(part.text for part in news["delta"]) == expected.text
    assert [token for part in news["delta"] for token in part.token_ids] == expected.token_ids
    assert [entry for part in news["delta"] for entry in part.logprobs] == expected.logprobs
    assert all(expected.text.startswith(part.text) for part in news["so far"]) and len(news["so far"]) > 3
    assert [part.finished() for part in news["delta"]] == [False] * (len(news["delta"]) - 1) + [True]


def test_an_aborted_request_is_gone(base: Path) -> None:
    with LLMEngine(EngineArgs(base, **SETTINGS)) as engine:
        engine.add_request("one", "hello", SamplingParams(max_tokens=200, ignore_eos=True))
        engine.step()
        assert engine.get_num_unfinished_requests() == 1
        engine.abort_request(["one", "nobody"])
        assert engine.get_num_unfinished_requests() == 0
        while engine.has_unfinished_requests():
            assert engine.step() == []
        assert engine.status().running == 0


def test_an_adapter_may_come_later_by_name_or_with_the_request(base: Path, adapter: Path) -> None:
    with LLM(base, {"first": adapter}, **SETTINGS) as whole:
        plain, adapted = (tokens(whole, "hello", GREEDY, adapter=name) for name in (None, "first"))
    assert plain != adapted
    with LLM(base, **SETTINGS) as llm:
        request = LoRARequest("mine", 1, str(adapter))
        assert tokens(llm, "hello", GREEDY, lora_request=request) == adapted
        outputs = llm.generate(["hello", "hello"], GREEDY, lora_request=[None, request], use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == plain + adapted
        assert [output.lora_request for output in outputs] == [None, request]
        assert outputs[1].adapter == "mine"
        llm.add_adapter("later", adapter)
        assert tokens(llm, "hello", GREEDY, adapter="later") == adapted
        with pytest.raises(ValueError, match="there is an adapter 'later' already"):
            llm.add_adapter("later", adapter)
        with pytest.raises(ValueError, match=r"adapter 'bad': .* has no adapter_config"):
            llm.generate("hello", GREEDY, lora_request=LoRARequest("bad", 2, str(base)), use_tqdm=False)
        with pytest.raises(ValueError, match="lora_request and adapter name two adapters"):
            llm.generate("hello", GREEDY, lora_request=request, adapter="later")


@pytest.mark.parametrize(
    ("given", "words"),
    [(("", 1, "x"), "lora_name"), (("a", 0, "x"), "lora_int_id"), (("a", 1), "lora_path of 'a' is empty")],
)
def test_a_lora_request_is_checked_as_it_is_made(given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LoRARequest(*given)


def test_a_chat_is_what_transformers_template_makes_of_it(base: Path, llm: LLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    output, other = llm.chat([CHAT, CHAT[1:]], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == ids != other.prompt_token_ids
    assert output.outputs[0].token_ids == tokens(llm, ids, GREEDY)[0]
    [one] = llm.chat(CHAT, GREEDY, use_tqdm=False)
    assert one.outputs == output.outputs
    [own] = llm.chat(CHAT, GREEDY, chat_template="{{ messages[1].content }}!", use_tqdm=False)
    assert own.prompt_token_ids == tokenizer("hello!", add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("messages", "template", "words"),
    [
        ([], None, "messages is empty"),
        ([CHAT, ["hello"]], None, "conversation 1 must be a list of messages"),
        ([{"content": "hello"}], None, "conversation 0 must be a list of messages, each a dict with role"),
        (CHAT, "{{ raise_exception('no system') }}", "the chat template refuses conversation 0: no system"),
        (CHAT, "{{ ''.__class__.__mro__ }}", "the chat template refuses conversation 0"),
    ],
)
def test_a_chat_that_cannot_be_is_refused(llm: LLM, messages: Any, template: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        llm.chat(messages, GREEDY, chat_template=template)


def test_a_failed_request_comes_back_beside_the_others(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    core = llm.llm_engine.engine.core
    step, failed = core.step, list[str]()

    def failing_step() -> list[Any]:
        messages = step()
        if not failed:
            failed.append(next(iter(llm.llm_engine._live)))
            core.abort(failed[0])
            messages.append(RequestFailed(request_id=failed[0], kind="internal", message="the device failed"))
        return messages

    monkeypatch.setattr(core, "step", failing_step)
    bad, good = llm.generate(["hello", "hello"], GREEDY, use_tqdm=False)
    assert (bad.outputs[0].finish_reason, bad.error, bad.finished) == ("error", "the device failed", True)
    assert (good.outputs[0].finish_reason, good.error) == ("length", None)
    assert good.outputs[0].token_ids == tokens(llm, "hello", GREEDY)[0]
    failed.clear()
    with pytest.raises(RuntimeError, match="the device failed"):
        llm.generate(["hello", "hello"], GREEDY, use_tqdm=False, strict=True)
    assert llm.llm_engine.get_num_unfinished_requests() == 0


def test_a_prompt_is_cut_at_its_beginning(llm: LLM) -> None:
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
    ids = llm.tokenizer.encode("The quick brown fox jumps")
    for most, expected in ((3, ids[-3:]), (1000, ids)):
        [output] = llm.generate(ids, SamplingParams(truncate_prompt_tokens=most, **fields), use_tqdm=False)
        assert output.prompt_token_ids == expected
        assert output.outputs[0].token_ids == tokens(llm, expected, SamplingParams(**fields))[0]
    [output] = llm.generate([5] * 900, SamplingParams(truncate_prompt_tokens=-1, **fields), use_tqdm=False)
    assert len(output.prompt_token_ids) == 252 and len(output.outputs[0].token_ids) == 4


def test_without_text_the_tokens_are_the_same(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, detokenize=False)
    [output] = llm.generate("hello", params, use_tqdm=False)
    assert output.outputs[0].text == ""
    assert [output.outputs[0].token_ids] == tokens(llm, "hello", GREEDY)


def test_metrics_tell_when_tokens_came(llm: LLM) -> None:
    metrics = llm.generate("hello", GREEDY, use_tqdm=False)[0].metrics
    assert metrics.num_generation_tokens == 6
    assert metrics.first_token_ts is not None and metrics.last_token_ts is not None
    assert metrics.queued_ts < metrics.first_token_ts < metrics.last_token_ts
    assert metrics.first_token_latency == metrics.first_token_ts - metrics.queued_ts


def test_a_bar_may_be_the_callers_own(llm: LLM) -> None:
    bars = []

    class Bar:
        def __init__(self, **named: Any) -> None:
            self.named, self.count, self.closed, self.postfix = named, 0, False, ""
            bars.append(self)

        def update(self, count: int) -> None:
            self.count += count

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            self.postfix = text

        def close(self) -> None:
            self.closed = True

    llm.generate(["a", "b"], GREEDY, use_tqdm=Bar)
    [bar] = bars
    assert (bar.named["total"], bar.count, bar.closed) == (2, 2, True) and bar.postfix.endswith(" tokens/s")


def test_defaults_are_the_models_own(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    said = '{"temperature": 0.5, "top_k": 7, "top_p": null, "max_new_tokens": 3, "do_sample": true}'
    (base / "generation_config.json").write_text(said)
    with LLM(base, **SETTINGS) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5, top_k=7, max_tokens=3)
        assert len(llm.generate("hello", use_tqdm=False)[0].outputs[0].token_ids) <= 3


def test_a_lower_priority_value_runs_first(base: Path) -> None:
    with LLM(base, max_num_seqs=1, **SETTINGS) as llm:
        outputs = llm.generate(["a", "b", "c"], GREEDY, priority=[5, 1, 3], use_tqdm=False)
    first = [output.metrics.first_token_ts or 0.0 for output in outputs]
    assert first[1] < first[2] < first[0]


def test_another_tokenizer_reads_the_prompts(base: Path, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", vocab_size=300)
    with LLM(base, tokenizer=other, **SETTINGS) as llm:
        [output] = llm.generate("The quick brown fox", GREEDY, use_tqdm=False)
        assert output.prompt_token_ids == AutoTokenizer.from_pretrained(other)("The quick brown fox")["input_ids"]
        assert llm.get_tokenizer().name_or_path == str(other)
