"""What SamplingParams and StructuredOutputs take, field by field, and what they refuse in words."""

import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from loraplex import RequestOutputKind, SamplingParams, VLLMValidationError
from loraplex.engine.protocol import GenerateRequest, ToEngine
from loraplex.engine.sampling_params import UNAVAILABLE
from loraplex.engine.structured_outputs import StructuredOutputs

FORM = StructuredOutputs(regex="a+")
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
INTEGERS = ("n", "top_k", "min_tokens")
OPTIONAL_INTEGERS = ("seed", "max_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens")
FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize")
ALLOWED = (
    dict.fromkeys(NUMBERS, "a finite number")
    | dict.fromkeys(INTEGERS, "an integer")
    | dict.fromkeys(OPTIONAL_INTEGERS, "an integer or None")
    | dict.fromkeys(FLAGS, "True or False")
    | {
        "logit_bias": "a dict of token ids and finite numbers or None",
        "allowed_token_ids": "a list of token ids or None",
        "stop": "a string, a list of strings or None",
        "bad_words": "a string, a list of strings or None",
        "stop_token_ids": "a list of token ids or None",
        "structured_outputs": "StructuredOutputs or a dict of its fields or None",
        "output_kind": "a RequestOutputKind",
    }
)
WRONG: dict[str, list[Any]] = (
    {name: ["1", True, None, math.nan, math.inf, 10**400, [1.0], 1j] for name in NUMBERS}
    | {name: ["5", True, None, 1.0, math.nan, [1]] for name in INTEGERS}
    | {name: ["5", False, 1.0, math.nan, [1]] for name in OPTIONAL_INTEGERS}
    | {name: [1, "yes", None] for name in FLAGS}
    | {
        "logit_bias": [[5], "5", {"5": 1.0}, {5: "1"}, {5: math.nan}, {True: 1.0}],
        "allowed_token_ids": [5, "5", ["5"], [1.0], [True], range(3), {5}],
        "stop": [b"man", 5, ["a", 5], [None], {"a"}, {"a": 1}],
        "bad_words": [b"man", 5, ["a", 5]],
        "stop_token_ids": [5, "5", ["5"], [1.0], [True], {5}],
        "structured_outputs": [["a+"], "a+", 5],
        "output_kind": ["DELTA", None, 3, True],
    }
)


def test_the_lists_above_have_every_field() -> None:
    assert set(WRONG) == set(ALLOWED) == set(SamplingParams.__struct_fields__) - set(UNAVAILABLE)


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_type_is_refused_as_the_object_is_made(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(ValueError) as refused:
            SamplingParams(**{name: value})
        words = str(refused.value)
        assert isinstance(refused.value, VLLMValidationError) and refused.value.parameter == name
        assert words.startswith(f"{name} must be {ALLOWED[name]}, got "), words
        assert len(words) < 200


def test_the_message_shows_what_was_given() -> None:
    with pytest.raises(ValueError, match=r"^max_tokens must be an integer or None, got '5' \(str\)$"):
        SamplingParams(max_tokens="5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got 7 \(int\) in it$"):
        SamplingParams(stop=["a", 7])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"stop": "man"}, ["man"]),
        ({"stop": ("a", "b")}, ["a", "b"]),
        ({"stop": None}, []),
        ({"stop_token_ids": None}, []),
        ({"stop_token_ids": (1, 2)}, [1, 2]),
        ({"allowed_token_ids": (1, 2)}, [1, 2]),
        ({"allowed_token_ids": None}, None),
        ({"temperature": 1}, 1.0),
        ({"temperature": np.float32(0.5)}, 0.5),
        ({"max_tokens": np.int64(5)}, 5),
        ({"max_tokens": None}, None),
        ({"stop_token_ids": [np.int32(5)]}, [5]),
        ({"logit_bias": {np.int64(5): 2}}, {5: 2.0}),
        ({"structured_outputs": FORM}, FORM),
        ({"structured_outputs": {"regex": "a+"}}, FORM),
        ({"seed": -1}, None),
        ({"output_kind": 1}, RequestOutputKind.DELTA),
    ],
)
def test_what_is_allowed_is_kept_in_one_way(given: dict[str, Any], kept: Any) -> None:
    [name] = given
    value = getattr(SamplingParams(**given), name)
    assert value == kept and type(value) is type(kept)
    assert not isinstance(value, list) or [type(item) for item in value] == [type(item) for item in kept]


def test_a_field_that_is_set_later_is_checked_again() -> None:
    params = SamplingParams()
    params.stop = "man"  # type: ignore[assignment]
    params.check()
    assert params.stop == ["man"]
    params.max_tokens = "5"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="max_tokens must be an integer or None"):
        params.check()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"choice": "yes"}, "structured_outputs.choice must be a list of strings or None, got 'yes' (str)"),
        ({"choice": ["yes", 5]}, "structured_outputs.choice must be a list of strings or None, got 5 (int) in it"),
        (
            {"json": ["a"]},
            "structured_outputs.json must be a JSON Schema as a dict or a string or None, got ['a'] (list)",
        ),
        ({"regex": b"a"}, "structured_outputs.regex must be a string or None, got b'a' (bytes)"),
        ({"grammar": 1}, "structured_outputs.grammar must be a string or None, got 1 (int)"),
        ({"json_object": 1}, "structured_outputs.json_object must be True or False or None, got 1 (int)"),
    ],
)
def test_the_form_of_an_answer_is_checked_too(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        StructuredOutputs(**given)
    assert str(refused.value) == words


def test_greedy_sampling_forgets_what_it_does_not_use() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=3, min_p=0.1)
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


@pytest.mark.parametrize(
    ("given", "parameter", "words"),
    [
        ({"n": 0}, "n", "n must be between 1 and 16, got 0"),
        ({"temperature": -1}, "temperature", "temperature must be between 0.0 and 100.0, got -1.0"),
        ({"top_p": 0}, "top_p", "top_p must be greater than 0 and at most 1, got 0"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be between 1 and 2147483647, got 0"),
        ({"min_tokens": 17}, "min_tokens", "min_tokens 17 is above max_tokens 16"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "must be between 1 and"),
        ({"stop": "a", "detokenize": False}, "stop", "set detokenize to True, or use stop_token_ids"),
        ({"stop": ""}, "stop", "each stop string must have 1 to 256 characters, got 0"),
        ({"logprobs": 21}, "logprobs", "logprobs must be between 0 and 20, got 21"),
        ({"logit_bias": {1: 101}}, "logit_bias", "logit_bias must be between -100.0 and 100.0, got 101.0"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "allowed_token_ids must not be empty"),
        ({"structured_outputs": {}}, "structured_outputs", "structured_outputs says nothing"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs", "has no field 'regexp'; it has json, regex"),
        (
            {"structured_outputs": {"regex": "a"}, "allowed_token_ids": [1]},
            "structured_outputs",
            "structured_outputs and allowed_token_ids exclude each other",
        ),
        ({"bad_words": [" "]}, "bad_words", "each of bad_words must have 1 to 256 characters, got ' '"),
        ({"bad_words": ["a"] * 129}, "bad_words", "bad_words takes at most 128, got 129"),
        ({"logits_processors": [print]}, "logits_processors", "is not supported: use logit_bias"),
        ({"extra_args": {"a": 1}}, "extra_args", "is not supported: nothing here reads it"),
    ],
)
def test_a_value_out_of_bounds_is_refused_as_the_object_is_made(
    given: dict[str, Any], parameter: str, words: str
) -> None:
    with pytest.raises(VLLMValidationError) as refused:
        SamplingParams(**given)
    assert words in str(refused.value) and refused.value.parameter == parameter


def test_defaults_of_vllms_other_fields_are_taken() -> None:
    assert SamplingParams(**{name: defaults[0] for name, (defaults, _) in UNAVAILABLE.items()}) == SamplingParams()


def test_a_copy_shares_nothing() -> None:
    params = SamplingParams(stop=["a"])
    copied = params.clone()
    copied.stop.append("b")
    assert params.stop == ["a"] and copied != params


@pytest.mark.parametrize("seed", range(20))
def test_what_was_made_arrives_unchanged_in_the_engine(seed: int) -> None:
    source = random.Random(seed)
    fields: dict[str, Any] = {
        "n": 3,
        "temperature": source.choice([0, 0.5, 2]),
        "top_k": source.choice([-1, 7]),
        "logit_bias": source.choice([None, {3: 1, 5: -2.5}]),
        "max_tokens": source.choice([None, 5]),
        "stop": source.choice([None, "man", ("a", "b"), []]),
        "stop_token_ids": source.choice([None, (4,), [5, 6]]),
        **source.choice([{}, {"structured_outputs": FORM}, {"allowed_token_ids": (1, 2)}]),
    }
    params = SamplingParams(**{name: fields[name] for name in fields if source.random() < 0.8})
    sent: list[ToEngine] = [GenerateRequest(request_id="r", prompt_token_ids=[1], params=params)]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=list[ToEngine]) == sent
