"""ChannelReader: messages in channels, as gpt-oss writes them. How the text comes changes nothing."""

import itertools
import time
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loraplex.web.reasoning.channels import ChannelReader
from loraplex.web.tool_calls.formats.harmony import OPENING

THOUGHT: Final = "<|channel|>analysis<|message|>why"
TURN: Final = "<|end|><|start|>assistant"
FINAL: Final = "<|channel|>final<|message|>so"
CALL: Final = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
TOLD: Final = f"{OPENING}f<|message|>"
"""How a call is told whose recipient stood elsewhere."""
SPELLED: Final = '{"a": "<|call|><|start|>assistant<|channel|>final<|message|>no"}'
Read = tuple[str, str, str]


def read(pieces: list[str], is_open: bool = False) -> Read:
    """Reasoning, words, calls."""
    reader = ChannelReader(is_open)
    told = [piece for text in pieces for piece in reader.push(text)] + reader.end()
    assert all(piece.text for piece in told)
    thought, words, call = ("".join(text for part, text in told if part == one) for one in ("thought", "words", "call"))
    return thought, words, call


CASES: Final = [
    (f"{THOUGHT}{TURN}{FINAL}", ("why", "so", "")),
    (f"{THOUGHT}{TURN}{FINAL}<|end|>", ("why", "so", "")),
    (FINAL, ("", "so", "")),
    (f"{FINAL} \n", ("", "so \n", "")),
    (f"<|start|>assistant{FINAL}", ("", "so", "")),
    ("<|channel|>final<|message|>", ("", "", "")),
    ("so", ("", "so", "")),
    (" so", ("", " so", "")),
    (" \n", ("", " \n", "")),
    ("", ("", "", "")),
    ("to be <| or not", ("", "to be <| or not", "")),
    ("to=me", ("", "to=me", "")),
    ("<|chan", ("", "<|chan", "")),
    ("<|channel|>fin", ("", "", "")),
    ("<|channel|>fi\nnal", ("", "<|channel|>fi\nnal", "")),
    ("<|channel|>final!<|message|>so", ("", "<|channel|>final!<|message|>so", "")),
    (f"{THOUGHT} \n", ("why", "", "")),
    (f"{THOUGHT}<|end|>", ("why", "", "")),
    (f"{THOUGHT}<|end|><|st", ("why", "", "")),
    (f"{THOUGHT} <|end|> not{TURN}{FINAL}", ("why <|end|> not", "so", "")),
    (f"{THOUGHT}{TURN}", ("why", "", "")),
    (f"{THOUGHT}{TURN}<|channel|>comm", ("why", "", "")),
    (f"{THOUGHT}{TURN}{THOUGHT}{TURN}{FINAL}", ("why\nwhy", "so", "")),
    (f"{THOUGHT}{TURN}<|channel|>commentary<|message|> First. {TURN}{FINAL}", ("why", "First.\nso", "")),
    (f"{THOUGHT}{TURN}{CALL}", ("why", "", CALL)),
    (f"{THOUGHT}{TURN}{CALL}<|call|>", ("why", "", CALL)),
    (f"{THOUGHT}{TURN}{CALL}\n<|end|>", ("why", "", CALL)),
    (f"{THOUGHT}{TURN}<|channel|>commentary<|message|>First.{TURN}{CALL}", ("why", "First.", CALL)),
    (f"{CALL}<|call|><|start|>assistant{FINAL}", ("", "so", CALL)),
    (f"{CALL}{TURN}{THOUGHT}{TURN}{CALL}", ("why", "", CALL + CALL)),
    (f"{CALL} so{TURN}{FINAL}", ("", "", f"{CALL}so{TURN}{FINAL}")),
    (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', ("", "", f'{TOLD}{{"a": 1}}')),
    (f"{THOUGHT}{TURN} to=functions.f<|channel|>analysis<|message|>{{}}", ("why", "", f"{TOLD}{{}}")),
    (f"{TOLD}{SPELLED}<|call|>", ("", "", f"{TOLD}{SPELLED}")),
    (f"{TOLD}no{TURN}{FINAL}", ("", "", f"{TOLD}no{TURN}{FINAL}")),
    (f"{TOLD} \n", ("", "", f"{TOLD} \n")),
    ("<|channel|>commentary to=python<|message|>1", ("", "<|channel|>commentary to=python<|message|>1", "")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_every_cut_says_the_same(text: str, expected: Read) -> None:
    assert read([text]) == expected
    assert read(list(text)) == expected
    for one, other in itertools.combinations(range(0, len(text) + 1, 1 + len(text) // 60), 2):
        assert read([text[:one], text[one:other], text[other:]]) == expected, (one, other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"why{TURN}{FINAL}", ("why", "so", "")),
        (f" why{TURN}{CALL}<|call|>", ("why", "", CALL)),
        (f"{THOUGHT}{TURN}{FINAL}", ("why", "so", "")),
        ("why", ("why", "", "")),
        ("", ("", "", "")),
    ],
)
def test_a_prompt_may_have_the_first_header(text: str, expected: Read) -> None:
    assert read([text], is_open=True) == read(list(text), is_open=True) == expected


PIECES: Final = st.lists(
    st.sampled_from(
        [
            *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|constrain|>", "assistant", "final"),
            *("analysis", "commentary", " to=functions.f", " to=x", " ", "\n", "{", "}", '"', "\\", "a", "é<|"),
            *(THOUGHT, TURN, TURN, FINAL, CALL),
        ]
    ),
    max_size=14,
).map("".join)


@settings(max_examples=400)
@given(text=PIECES, places=st.lists(st.integers(0, 1000), max_size=8), is_open=st.booleans())
def test_no_cut_changes_what_is_read(text: str, places: list[int], is_open: bool) -> None:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    assert read(pieces, is_open) == read(list(text), is_open) == read([text], is_open)


def test_what_can_be_told_is_told_at_once() -> None:
    reader = ChannelReader(is_open=False)
    assert reader.push("<|channel|>analysis<|mess") == [] and not reader.thoughts
    assert reader.push("age|>why ") == [("thought", "why")] and reader.thoughts == 1
    assert reader.push("not<|end") == [("thought", " not")] and not reader.speaks
    assert reader.push("|><|start|>assistant<|channel|>commentary to=functions.f<|message|>") == [("call", TOLD)]
    assert reader.speaks
    assert reader.push('{"a"') == [("call", '{"a"')]
    assert reader.push(": 1}<|ca") == [("call", ": 1}")]


@pytest.mark.parametrize("piece", ["x", " ", "\n", "<", "<|end|>", "<|end|><|start|>", '{"a'])
@pytest.mark.parametrize("opening", ["", THOUGHT, f"{TOLD}", f"{TOLD}{{}}"])
def test_time_grows_with_the_text(piece: str, opening: str) -> None:
    def seconds(count: int) -> float:
        reader = ChannelReader(is_open=False)
        started = time.process_time()
        reader.push(opening)
        for _ in range(count):
            reader.push(piece)
        reader.end()
        return time.process_time() - started

    few, many = min(seconds(1_000) for _ in range(3)), min(seconds(16_000) for _ in range(2))
    assert many < 64 * few + 0.05, "16 times the text"
