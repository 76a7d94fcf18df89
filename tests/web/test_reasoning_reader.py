"""ReasoningReader: where reasoning ends does not depend on how the text comes."""

import time
from itertools import combinations

import pytest
from tokenizers import AddedToken

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.web.reasoning.marks import MARKS, Marks, marks_of
from loraplex.web.reasoning.prompt_end import prompt_end
from loraplex.web.reasoning.reader import ReasoningReader, tokens_until
from loraplex.web.state import State

THINK = MARKS["think"]


def read(pieces: list[str], is_open: bool, marks: Marks = THINK) -> tuple[str, str]:
    """The reasoning and the rest; whatever is told is told once, and in this order."""
    reader = ReasoningReader(marks, is_open)
    told = [reader.push(piece) for piece in pieces] + [reader.end()]
    thought, rest = "".join(one for one, _ in told), "".join(one for _, one in told)
    first = next((number for number, (_, words) in enumerate(told) if words), len(told))
    assert not any(words for words, _ in told[first + 1 :])
    assert reader.thought or not thought
    return thought, rest


CASES = [
    ("<think>why</think>so", False, ("why", "so")),
    ("\n<think>\n why \n\nnot\n</think>\n\n so \n", False, ("why \n\nnot", "so \n")),
    ("why</think>so", True, ("why", "so")),
    ("<think>why</think>so", True, ("why", "so")),
    ("\n <think>a</think>", True, ("a", "")),
    ("<think></think>so", False, ("", "so")),
    ("<think> \n </think> so", False, ("", "so")),
    ("</think>so", True, ("", "so")),
    ("<think>why", False, ("why", "")),
    ("<think>why </thi", False, ("why </thi", "")),
    ("<think>why \n", False, ("why", "")),
    ("why", True, ("why", "")),
    ("<thi", True, ("<thi", "")),
    ("<thi", False, ("", "<thi")),
    (" \n<thinking>", False, ("", " \n<thinking>")),
    (" so", False, ("", " so")),
    (" \n", False, ("", " \n")),
    ("", False, ("", "")),
    ("", True, ("", "")),
    ("so <think>why</think>", False, ("", "so <think>why</think>")),
    ("so</think>", False, ("", "so</think>")),
    ("<think>a<think>b</think>c</think>d", False, ("a<think>b", "c</think>d")),
    ("<think>a</think><think>b</think>", False, ("a", "<think>b</think>")),
    ("<think>a</</think></thin k>b", False, ("a</", "</thin k>b")),
    ("<think>ä 1 < 2 </ think></think>ö", False, ("ä 1 < 2 </ think>", "ö")),
]


@pytest.mark.parametrize(("text", "is_open", "expected"), CASES)
def test_every_cut_says_the_same(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    assert read([text], is_open) == expected
    assert read(list(text), is_open) == expected
    for one, other in combinations(range(len(text) + 1), 2):
        assert read([text[:one], text[one:other], text[other:]], is_open) == expected, (one, other)


def test_what_can_be_told_is_told_at_once() -> None:
    reader = ReasoningReader(THINK, is_open=True)
    assert reader.push("so") == ("so", "") and reader.thinks and not reader.is_over
    assert reader.push(" \n</th") == ("", "")
    assert reader.push("e") == (" \n</the", "")
    assert reader.push("</think>") == ("", "") and reader.is_over
    assert reader.push("\n") == ("", "")
    assert reader.push("words ") == ("", "words ")


@pytest.mark.parametrize("piece", ["x", " ", "\n", "<", "</think", "<think>"])
@pytest.mark.parametrize("opening", ["<think>", ""])
def test_time_grows_with_the_text(piece: str, opening: str) -> None:
    def seconds(count: int) -> float:
        reader = ReasoningReader(THINK, is_open=False)
        started = time.process_time()
        reader.push(opening)
        for _ in range(count):
            reader.push(piece)
        reader.end()
        return time.process_time() - started

    few, many = min(seconds(4_000) for _ in range(3)), min(seconds(64_000) for _ in range(3))
    assert many < 64 * few + 0.05, "16 times the text"


def test_the_template_says_which_marks() -> None:
    qwen = "{{ content.split('</think>')[-1] }}"
    assert marks_of("auto", qwen) == MARKS["think"]
    assert marks_of("auto", "[THINK]{{ x }}[/THINK]") == MARKS["mistral"]
    assert marks_of("auto", '"<|start|>assistant<|channel|>final<|message|>" ~ message.content') == MARKS["harmony"]
    assert marks_of("auto", "{{ content }}") is None
    assert marks_of("auto", "</think>[/THINK]") is None, "both, so neither"
    assert marks_of("none", qwen) is None
    assert marks_of("mistral", qwen) == MARKS["mistral"]


def test_tokens_until(state: State) -> None:
    tokenizer: Tokenizer = state.tokenizer
    ids = tokenizer.encode("The quick</think> brown</think>", add_special_tokens=False)
    count = tokens_until("</think>", ids, tokenizer)
    assert tokenizer.decode(ids[:count]).startswith("The quick</think>")
    assert "</think>" not in tokenizer.decode(ids[: count - 1])
    assert tokens_until("[/THINK]", ids, tokenizer) == len(ids)
    assert tokens_until("</think>", [], tokenizer) == 0
    with_mark = tokenizer.extended([AddedToken("</think>", special=True)], {})
    mark = with_mark.token_id("</think>")
    assert mark is not None
    assert tokens_until("</think>", [5, 6, mark, 7, mark], with_mark) == 3


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("Hello<think>", True),
        ("Hello<think>" + " \n\t" * 60, True),
        ("é<think>\n", True),
        ("<think>", True),
        ("<think>why", False),
        ("think>", False),
        ("Hello" * 40, False),
        (" \n" * 60, False),
        ("", False),
    ],
)
def test_a_prompt_may_end_within_the_reasoning(state: State, prompt: str, is_open: bool) -> None:
    for tokenizer in (state.tokenizer, state.tokenizer.extended([AddedToken("<think>", special=True)], {})):
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        end = prompt_end(ids, len(THINK.opening), tokenizer)
        assert THINK.are_open(end) is is_open
        assert prompt.rstrip().endswith(end.lstrip("\ufffd"))
