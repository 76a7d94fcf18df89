"""Constrained answers of a model with random weights, which says nothing sensible by itself."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loraplex import LLM, SamplingParams
from loraplex.engine.offline.outputs import CompletionOutput
from loraplex.engine.structured_outputs import StructuredOutputs
from tests.checkpoints import make_adapter, make_checkpoint

from .schemas import SCHEMAS, closed

PROMPT = "The quick brown fox"
SMALL = closed(a={"enum": [1, 2]}, b={"type": "boolean"})
HOSTILE: list[dict[str, Any]] = [
    {"regex": "("},
    {"regex": "(a)\\1"},
    {"regex": "(?=a)b"},
    {"regex": "(a?){1000}a{1000}"},
    {"regex": "(" * 8000 + "a" + ")" * 8000},
    {"grammar": "start: start"},
    {"grammar": "no grammar at all"},
    {"grammar": 'start: "a" start'},
    {"json": {"$ref": "#"}},
    {"json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
    {"json": {"$ref": "http://127.0.0.1:1/schema.json"}},
    {"json": {"type": "foo"}},
    {"json": {"type": 5}},
    {"json": {"not": {"type": "string"}}},
    {"json": {"type": "array", "uniqueItems": True}},
    {"json": "[1]"},
    {"json": "{"},
    {"json": '{"items":' * 500 + "{}" + "}" * 500},
    {"json": '{"items":' * 9000 + "{}" + "}" * 9000},
    {"json": {"type": "object", "properties": {f"p{index}": {} for index in range(800)}}},
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), max_position_embeddings=1024)


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), base, rank=4)


def open_llm(base: Path, adapters: dict[str, Path] | None = None, **settings: Any) -> LLM:
    return LLM(base, adapters, **({"num_kv_blocks": 1024, "adapter_memory": 4 << 20, "num_threads": 1} | settings))


@pytest.fixture(scope="module")
def llm(base: Path, adapter: Path) -> Iterator[LLM]:
    with open_llm(base, {"mine": adapter}) as opened:
        yield opened


def constrained(seed: int = 0, temperature: float = 1.0, max_tokens: int = 900, **form: Any) -> SamplingParams:
    sampling = {name: form.pop(name) for name in list(form) if name not in StructuredOutputs.__struct_fields__}
    return SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        structured_outputs=StructuredOutputs(**form),
        **sampling,
    )


def answers(llm: LLM, params: list[SamplingParams], adapter: Any = None) -> list[CompletionOutput]:
    outputs = llm.generate([PROMPT] * len(params), params, adapter=adapter, use_tqdm=False, strict=True)
    return [choice for output in outputs for choice in output.outputs]


def test_answers_are_json_of_their_schemas(llm: LLM) -> None:
    asked = [(schema, seed) for schema in SCHEMAS for seed in (1, 2)]
    params = [constrained(seed, json=schema if seed == 1 else json.dumps(schema)) for schema, seed in asked]
    names = ["mine" if seed == 2 else None for _, seed in asked]
    for (schema, _), choice in zip(asked, answers(llm, params, names), strict=True):
        assert choice.finish_reason == "stop", (schema, choice.text)
        jsonschema.Draft202012Validator(schema).validate(json.loads(choice.text))


def test_the_most_likely_tokens_of_a_form_are_taken(llm: LLM) -> None:
    greedy, drawn = answers(llm, [constrained(temperature=0, json=SMALL), constrained(5, 1e-6, json=SMALL)])
    assert json.loads(greedy.text).keys() == {"a", "b"}
    assert greedy.text == drawn.text


def test_regex_choice_and_grammar(llm: LLM) -> None:
    forms: list[dict[str, Any]] = [
        {"regex": r"[a-z]{3,5}-\d{2}"},
        {"regex": r"(yes|no)(, (yes|no)){2}"},
        {"regex": "(a|a)*b"},
        {"choice": ["yes", "no", "yes and no"]},
        {"choice": ['"quoted"\n', "ünï", "a\\b"]},
        {"grammar": 'start: "<" inner ">"\ninner: /[a-c]{2}/ | "<" inner ">"'},
        {"json_object": True},
    ]
    first, second, third, fourth, fifth, sixth, _ = answers(llm, [constrained(3, **form) for form in forms])
    assert re.fullmatch(r"[a-z]{3,5}-\d{2}", first.text)
    assert re.fullmatch(r"(yes|no)(, (yes|no)){2}", second.text) and re.fullmatch("a*b", third.text)
    assert fourth.text in forms[3]["choice"] and fifth.text in forms[4]["choice"]
    assert re.fullmatch(r"<+[a-c]{2}>+", sixth.text) and sixth.text.count("<") == sixth.text.count(">")


def test_an_answer_that_is_cut_is_the_beginning_of_one(llm: LLM) -> None:
    params = [constrained(4, 1.0, count, json=SMALL) for count in (3, 900)]
    short, whole = answers(llm, params)
    assert (short.finish_reason, whole.finish_reason) == ("length", "stop") and len(short.token_ids) == 3
    assert short.token_ids == whole.token_ids[:3]


def test_neighbours_are_left_alone_bit_for_bit(llm: LLM) -> None:
    free = [
        SamplingParams(temperature=t, seed=7, max_tokens=24, ignore_eos=True, logprobs=3, presence_penalty=p)
        for t, p in ((0.0, 0.0), (1.0, 0.0), (0.9, 0.5))
    ]
    alone = [answers(llm, [params])[0] for params in free]
    forms = [constrained(seed, json=SMALL) for seed in range(3)]
    mixed = answers(llm, [forms[0], free[0], free[1], forms[1], free[2], forms[2]])
    assert [mixed[1], mixed[2], mixed[4]] == alone
    assert [mixed[0], mixed[3], mixed[5]] == [answers(llm, [params])[0] for params in forms]


def test_choices_of_one_request_go_their_own_ways(llm: LLM) -> None:
    choices = answers(llm, [constrained(1, n=6, regex="[a-z]{8}")])
    assert len({choice.text for choice in choices}) > 1
    assert all(re.fullmatch("[a-z]{8}", choice.text) for choice in choices)


def test_log_probabilities_are_those_of_the_model(llm: LLM) -> None:
    [choice] = answers(llm, [constrained(temperature=0, choice=["zq"], logprobs=2)])
    [free] = answers(llm, [SamplingParams(temperature=0, max_tokens=1, logprobs=2)])
    assert choice.logprobs is not None and free.logprobs is not None
    first, unmasked = choice.logprobs[0], free.logprobs[0]
    assert {token_id: first[token_id] for token_id in unmasked} == unmasked
    assert first[choice.token_ids[0]].rank > 2


def test_the_form_comes_before_the_least_length_and_before_a_token_that_never_ends(llm: LLM) -> None:
    forms: list[dict[str, Any]] = [
        {"choice": ["ab"], "min_tokens": 40},
        {"choice": ["ab"], "ignore_eos": True},
        {"regex": "a*", "min_tokens": 7, "max_tokens": 9},
        {"regex": "a*", "ignore_eos": True, "max_tokens": 9},
    ]
    short, ended, least, endless = answers(llm, [constrained(2, **form) for form in forms])
    assert (short.text, short.finish_reason) == ("ab", "stop") == (ended.text, ended.finish_reason)
    assert set(least.text) == {"a"} and len(least.token_ids) >= 7
    assert set(endless.text) == {"a"} and endless.finish_reason == "length"


def test_stop_strings_and_tokens_end_it_earlier(llm: LLM) -> None:
    by_text, by_token = answers(
        llm,
        [
            constrained(2, regex="aaaa,bbbb", stop=[","]),
            constrained(2, regex="a|ab{90}", stop_token_ids=[llm.tokenizer.encode("z", False)[0]], ignore_eos=True),
        ],
    )
    assert (by_text.text, by_text.stop_reason) == ("aaaa", ",")
    assert by_token.text in ("a", "a" + "b" * 90) and by_token.finish_reason == "stop"


def test_tiny_steps_and_a_tiny_cache_change_nothing(base: Path, llm: LLM) -> None:
    """Prompts in chunks, choices that give way and are computed again."""
    params = [constrained(seed, n=2, json=SMALL, max_tokens=120) for seed in range(4)]
    plenty = answers(llm, params)
    with open_llm(base, num_kv_blocks=14, max_num_batched_tokens=8, max_num_seqs=8) as tight:
        assert answers(tight, params) == plenty
        assert tight.status().preemptions > 0 and tight.status().integrity_errors == 0


@pytest.mark.parametrize("form", HOSTILE, ids=lambda form: str(form)[:40])
def test_what_cannot_be_compiled_is_refused_in_time(llm: LLM, form: dict[str, Any]) -> None:
    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"structured_outputs cannot be used|cannot be continued"):
        answers(llm, [constrained(**form)])
    assert time.monotonic() - begun < 30
    assert answers(llm, [constrained(choice=["still there"])])[0].text == "still there"


@pytest.mark.parametrize("schema", ['{"const":1e999}', '{"const":NaN}', '{"const":"\\ud800"}'])
def test_what_only_python_takes_for_json_is_refused_and_ends_no_process(llm: LLM, schema: str) -> None:
    with pytest.raises(ValueError, match="the schema is not JSON"):
        answers(llm, [constrained(json=schema)])


def test_alternatives_that_overlap_are_refused_with_a_way_out(llm: LLM) -> None:
    either = {"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}]}
    with pytest.raises(ValueError, match=r"oneOf constraints are not supported\. Write anyOf in its place"):
        answers(llm, [constrained(json=either)])


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "says nothing"),
        ({"json_object": False}, "says nothing"),
        ({"regex": "a", "choice": ["a"]}, "has regex and choice"),
        ({"regex": ""}, "regex is empty"),
        ({"choice": []}, "choice is empty"),
        ({"choice": ["a"] * 3000}, "3000 texts"),
        ({"regex": "a" * 20_000}, "20000 bytes"),
        ({"json": {"enum": ["x" * 200_000]}}, "bytes"),
        ({"choice": ["a"], "allowed_token_ids": [5]}, "exclude each other"),
    ],
    ids=str,
)
def test_what_says_no_form_is_refused_before_anything_runs(llm: LLM, form: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        answers(llm, [constrained(**form)])
