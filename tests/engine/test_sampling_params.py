"""What SamplingParams and StructuredOutputs take, field by field, and what they refuse in words."""

import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from loraplex import SamplingParams
from loraplex.engine.protocol import GenerateRequest, ToEngine
from loraplex.engine.structured_outputs import StructuredOutputs

FORM = StructuredOutputs(regex="a+")
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
INTEGERS = ("n", "top_k", "min_tokens")
OPTIONAL_INTEGERS = ("seed", "max_tokens", "logprobs", "prompt_logprobs")
FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
ALLOWED = (
    dict.fromkeys(NUMBERS, "a finite number")
    | dict.fromkeys(INTEGERS, "an integer")
    | dict.fromkeys(OPTIONAL_INTEGERS, "an integer or None")
    | dict.fromkeys(FLAGS, "True or False")
    | {
        "logit_bias": "a dict of token ids and finite numbers or None",
        "allowed_token_ids": "a list of token ids or None",
        "stop": "a string, a list of strings or None",
        "stop_token_ids": "a list of token ids or None",
        "structured_outputs": "StructuredOutputs or None",
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
        "stop_token_ids": [5, "5", ["5"], [1.0], [True], {5}],
        "structured_outputs": [{"regex": "a+"}, "a+", {}],
    }
)


def test_the_lists_above_have_every_field() -> None:
    assert set(WRONG) == set(ALLOWED) == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_type_is_refused_as_the_object_is_made(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(ValueError) as refused:
            SamplingParams(**{name: value})
        words = str(refused.value)
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
    params.check_types()
    assert params.stop == ["man"]
    params.max_tokens = "5"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="max_tokens must be an integer or None"):
        params.check_types()


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


@pytest.mark.parametrize("seed", range(20))
def test_what_was_made_arrives_unchanged_in_the_engine(seed: int) -> None:
    source = random.Random(seed)
    fields: dict[str, Any] = {
        "n": 3,
        "temperature": source.choice([0, 0.5, 2]),
        "top_k": source.choice([-1, 7]),
        "logit_bias": source.choice([None, {3: 1, 5: -2.5}]),
        "allowed_token_ids": source.choice([None, (1, 2)]),
        "max_tokens": source.choice([None, 5]),
        "stop": source.choice([None, "man", ("a", "b"), []]),
        "stop_token_ids": source.choice([None, (4,), [5, 6]]),
        "structured_outputs": source.choice([None, FORM]),
    }
    params = SamplingParams(**{name: fields[name] for name in fields if source.random() < 0.8})
    sent: list[ToEngine] = [GenerateRequest(request_id="r", prompt_token_ids=[1], params=params)]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=list[ToEngine]) == sent
