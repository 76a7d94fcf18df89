"""Tool calls read out of texts, however they are cut, and the grammars that demand them."""

import itertools
import json
import time
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from loraplex.web.tool_calls.events import Arguments, Begun, Event, Words
from loraplex.web.tool_calls.formats.known import STYLES, style_of
from loraplex.web.tool_calls.grammar import EnforcedTool, allowed, demanded, tool_of_line
from loraplex.web.tool_calls.reader import MOST_HEAD, CallReader
from loraplex.web.tool_calls.schema_check import fault_of_parameters

NAMES: Final = {"f", "look_up"}


def in_harmony(call: str) -> str:
    said = json.loads(call)
    indent = 2 if "\n" in call else None
    arguments = json.dumps(said["arguments"], ensure_ascii=call.isascii(), indent=indent)
    return f"<|channel|>commentary to=functions.{said['name']} <|constrain|>json<|message|>{arguments}"


WRITTEN: Final = {
    "harmony": lambda calls: "<|call|>".join(map(in_harmony, calls)),
    "hermes": lambda calls: "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls),
    "llama3_json": "; ".join,
    "mistral": lambda calls: f"[TOOL_CALLS] [{', '.join(calls)}]",
}
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
CALLS: Final = st.lists(
    st.tuples(st.sampled_from(sorted(NAMES)), st.dictionaries(st.text(), JSON, max_size=3)), min_size=1, max_size=3
)
MARKS: Final = [
    *'{}[]",:;\\ \na',
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<tool",
    "<|channel|>commentary to=functions.f",
    "<|channel|>",
    "<|message|>",
    "<|call|>",
    "<|constrain|>json",
    "é😀",
    "null",
]
STARTS: Final = ['{"name": "f", "arguments": {', '{"name":"f"', '"parameters"', '"arguments":"{}"']
PIECES: Final = st.lists(st.sampled_from([*MARKS, *STARTS, *STARTS]), max_size=14).map("".join)
Read = tuple[str, list[tuple[str, str]], bool]


def read(style: str, pieces: list[str], eager: bool = True, cut: bool = False, calls_alone: bool = False) -> Read:
    """Words, calls and whether one is broken."""
    reader, events = CallReader(STYLES[style], NAMES, eager, calls_alone), list[Event]()
    for piece in pieces:
        events += reader.push(piece)
    events += reader.end(cut)
    words, calls = "", list[tuple[str, str]]()
    for event in events:
        match event:
            case Words():
                words += event.text
            case Begun():
                assert event.number == len(calls), "numbered as they come"
                calls.append((event.name, ""))
            case Arguments():
                assert event.text and event.number == len(calls) - 1
                calls[-1] = calls[-1][0], calls[-1][1] + event.text
    assert reader.broken or reader.calls == len(calls)
    return words, calls, reader.broken


def cuts(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("eager", [True, False])
@settings(max_examples=60)
@given(calls=CALLS, places=st.lists(st.integers(0, 1000), max_size=8), ascii=st.booleans(), indent=st.booleans())
def test_what_is_written_is_read(
    style: str, eager: bool, calls: list[tuple[str, Any]], places: list[int], ascii: bool, indent: bool
) -> None:
    arguments = STYLES[style].arguments
    texts = [
        json.dumps({"name": name, arguments: value}, ensure_ascii=ascii, indent=2 if indent else None)
        for name, value in calls
    ]
    text = WRITTEN[style](texts)
    words, found, broken = read(style, cuts(text, places), eager)
    assert (words, broken) == ("", False)
    assert [(name, json.loads(value)) for name, value in found] == calls


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=300)
@given(text=PIECES, places=st.lists(st.integers(0, 1000), max_size=8), cut=st.booleans(), eager=st.booleans())
def test_no_cut_changes_what_is_read(style: str, text: str, places: list[int], cut: bool, eager: bool) -> None:
    once = read(style, [text], eager, cut)
    assert read(style, cuts(text, places), eager, cut) == read(style, list(text), eager, cut) == once
    words, calls, broken = read(style, [text], False, cut)
    if not calls:
        assert words == text, "what is no call stays as it was written"
    if not broken:
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
    if not once[2]:
        assert once == (words, calls, broken), "streams and whole answers say the same"


@pytest.mark.parametrize(
    ("style", "text", "words", "calls"),
    [
        ("hermes", 'I look.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n', "I look.", [("f", "{}")]),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"ü\\"}"}</tool_call>',
            "",
            [("f", '{"a": "ü"}')],
        ),
        ("hermes", '<tool_call>{"name": "f", "parameters": {}, "id": 5}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}} bye', "bye", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "f"}', "", [("f", "{}")] * 2),
        *[
            ("hermes", text, text, [])
            for text in (
                "  plain \n",
                "a < b <tool",
                "<tool_call> is a marker </tool_call>",
                '\n<tool_call>\n{"name": "f"',
                '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
                '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
                '<tool_call>{"name": "f", "arguments": "a"}</tool_call>',
                '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>',
                '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
                '<tool_call>{"name": "f",}</tool_call>',
                '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
                '<tool_call>{"surname": "f", "name": "f"}</tool_call>',
            )
        ],
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}', "", [("f", '{"a": 1}')]),
        ("llama3_json", ' {"name": "f", "parameters": {}}\n', "", [("f", "{}")]),
        ("llama3_json", '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
        ("llama3_json", 'Yes: {"name": "f", "parameters": {}}', 'Yes: {"name": "f", "parameters": {}}', []),
        ("llama3_json", '{"name": "Bob", "age": 5}', '{"name": "Bob", "age": 5}', []),
        ("mistral", 'Well.[TOOL_CALLS][{"name":"f","arguments":{},"id":"123456789"}]', "Well.", [("f", "{}")]),
        ("mistral", '[TOOL_CALLS] [{"name":"f"}, oops]', ", oops]", [("f", "{}")]),
        (
            "harmony",
            'Well.<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "<|call|>"}<|call|>',
            "Well.",
            [("f", '{"a": "<|call|>"}')],
        ),
        ("harmony", "<|channel|>commentary to=functions.f<|message|> {}\n", "", [("f", "{}")]),
        ("harmony", "<|channel|>commentary to=functions.f code<|message|>{} so", "so", [("f", "{}")]),
        *[
            ("harmony", text, text, [])
            for text in (
                "<|channel|>commentary to=functions.g <|constrain|>json<|message|>{}<|call|>",
                "<|channel|>commentary to=functions.f <|constrain|>json<|message|>[1]<|call|>",
                '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": }<|call|>',
                "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
                "<|channel|>commentary to=browser.open<|message|>{}<|call|>",
                "<|channel|>commentary to=functions.<|message|>{}<|call|>",
                f"<|channel|>commentary to=functions.f {'x' * 80}<|message|>{{}}<|call|>",
                f"<|channel|>commentary to=functions.{'f' * 300}<|message|>{{}}<|call|>",
            )
        ],
        (
            "mistral",
            '[TOOL_CALLS][{"name":"f"} , {"arguments": {[TOOL_CALLS][{"name":"f"}]}}]',
            ', {"arguments": {[TOOL_CALLS][{"name":"f"}]}}]',
            [("f", "{}")],
        ),
    ],
)
def test_how_models_write(style: str, text: str, words: str, calls: list[tuple[str, str]]) -> None:
    assert read(style, [text], eager=False)[:2] == (words, calls)


def test_words_that_are_json_are_not_held_back() -> None:
    """Where calls are bare JSON, an answer in JSON is seen to be none at its first member."""
    reader = CallReader(STYLES["llama3_json"], NAMES, eager=True)
    assert reader.push('{"answer"') == []
    assert reader.push(": 4") == [Words('{"answer": 4')]


def test_arguments_come_as_they_are_written_and_a_cut_call_is_told_of() -> None:
    reader = CallReader(STYLES["hermes"], NAMES, eager=True)
    assert reader.push('Hm <tool_call>{"name": "f", "argum') == [Words("Hm")]
    assert reader.push('ents": {"a"') == [Begun(0, "f"), Arguments(0, '{"a"')]
    assert reader.push(": 1") == [Arguments(0, ": 1")]
    assert reader.end(cut=True) == [] and reader.broken and reader.calls == 0
    text = '<tool_call>{"name": "f", "arguments": {"a": 1'
    assert read("hermes", [text], eager=False, cut=True) == ("", [("f", '{"a": 1')], True)
    assert read("hermes", [text], eager=False, cut=False) == (text, [], False)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("eager", [True, False])
def test_a_demanded_call_that_is_cut_leaves_no_words(style: str, eager: bool) -> None:
    """Wherever it is cut, and however the text comes."""
    parameters = STYLES[style].arguments
    text = WRITTEN[style]([json.dumps({"name": name, parameters: {"a": [1, "b"]}}) for name in sorted(NAMES)])
    for end in range(len(text) + 1):
        for pieces in ([text[:end]], list(text[:end])):
            words, calls, _ = read(style, pieces, eager, cut=True, calls_alone=True)
            assert words == "" and [name for name, _ in calls] == sorted(NAMES)[: len(calls)], text[:end]
    assert len(calls) == 2
    assert read(style, [text[:9]], eager, cut=True)[0] == text[:9], "where words are allowed they are words"


@pytest.mark.parametrize(
    ("style", "unit", "end"),
    [
        ("hermes", " " * 8, ""),
        ("mistral", '[TOOL_CALLS][{"name": "f"}, {"arguments": {', "}]}"),
        ("llama3_json", '<|python_tag|>{"name": "f"}; {"arguments": {', "}}"),
        ("harmony", '<|channel|>commentary to=functions.f<|message|>{"a": {', "}}"),
    ],
)
def test_time_grows_with_the_text(style: str, unit: str, end: str) -> None:
    """Whatever it is: eight times the text takes nothing like 64 times as long."""

    def seconds(units: int) -> float:
        began = time.process_time()
        read(style, ["x", *[unit] * units, *[end] * units], eager=True)
        return time.process_time() - began

    assert min(seconds(4800) for _ in range(3)) < 30 * min(seconds(600) for _ in range(3))


def test_a_stream_holds_back_no_more_than_its_bound() -> None:
    text = '<tool_call>{"arguments": {"a": "' + "x" * (MOST_HEAD + 5000) + '"}, "name": "f"}</tool_call>'
    reader, held = CallReader(STYLES["hermes"], NAMES, eager=True), 0
    for start in range(0, len(text), 1000):
        said = sum(len(event.text) for event in reader.push(text[start : start + 1000]) if isinstance(event, Words))
        held += len(text[start : start + 1000]) - said
        assert held <= MOST_HEAD + 1000
    assert read("hermes", [text], eager=True) == (text, [], False)
    assert read("hermes", [text], eager=False)[1][0][0] == "f"


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ('<tool_call>\n{"name": <function-name>, "arguments": <object>}\n</tool_call>', "hermes"),
        ("<tool_call>\n<function=name>\n<parameter=x> arguments", None),
        ('<|start_header_id|> {\\"name\\": name, \\"parameters\\": object}', "llama3_json"),
        ('<|header_start|> {"name": name, "parameters": object}', None),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS] [{{ call.function | tojson }}]", "mistral"),
        ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", None),
        ("[TOOL_CALLS] or <tool_call> with arguments", None),
        ("<|start|>assistant to=functions.{{ name }}<|channel|>commentary json<|message|>{}<|call|>", "harmony"),
        ("<|start|>assistant<|channel|>final<|message|>", None),
        ("{{ messages }}", None),
    ],
)
def test_the_style_of_a_template(template: str, style: str | None) -> None:
    found = style_of("auto", template)
    assert (None if found is None else found.name) == style
    assert all(style_of(name, template) is STYLES[name] for name in STYLES)


def test_mistral_gets_ids_that_its_templates_take() -> None:
    call_id = STYLES["mistral"].call_id
    assert call_id("aB3456789") == "aB3456789"
    made = {call_id(text) for text in ("call_1", "call_2", "é23456789", "x" * 40)}
    assert len(made) == 4 and all(len(text) == 9 and text.isalnum() and text.isascii() for text in made)
    assert call_id("call_1") == call_id("call_1")


SMALL: Final = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS: Final = [EnforcedTool("f", SMALL), EnforcedTool("look_up", {"type": "object"})]
GOOD: Final = {
    style: WRITTEN[style]([json.dumps({"name": "f", STYLES[style].arguments: {"a": 1}})]) for style in STYLES
}


class Bytes:
    """A tokenizer that reads texts byte by byte, and markers as tokens of their own where it has them."""

    def __init__(self, checkpoint: Path, markers: tuple[str, ...]) -> None:
        document = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))
        first, plain = len(document["model"]["vocab"]), document["added_tokens"][0]
        self.ids = {marker: first + n for n, marker in enumerate(markers)}
        end = first + len(markers)
        for text, token in {**self.ids, "<|the end|>": end}.items():
            document["added_tokens"].append({**plain, "id": token, "content": text, "special": True})
        self.tokenizer = LLTokenizer(json.dumps(document), eos_token=end)

    def encode(self, text: str) -> list[int]:
        for marker, token in self.ids.items():
            if marker in text:
                before, _, after = text.partition(marker)
                return [*self.encode(before), token, *self.encode(after)]
        return [token for byte in text.encode() for token in self.tokenizer.tokenize_bytes(bytes([byte]))]

    def takes(self, grammar: str, text: str) -> bool:
        matcher = LLMatcher(self.tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = self.encode(text)
        return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("own_tokens", [True, False])
@pytest.mark.parametrize("single", [True, False])
def test_grammars(checkpoint: Path, style: str, own_tokens: bool, single: bool) -> None:
    taught, good = STYLES[style], GOOD[style]
    tokenizer = Bytes(checkpoint, taught.markers if own_tokens else ())
    both = WRITTEN[style]([json.dumps({"name": name, taught.arguments: {"a": 1}}) for name in ("f", "look_up")])
    several = not single and taught.several

    demand = demanded(taught, TOOLS, single, tokenizer.ids.get)
    verdicts = {good: True, both: several, "": False, "Hm": False, good + "!": False, good.replace("1", '"x"'): False}
    other = good.replace('"f"', '"g"').replace("functions.f", "functions.g")
    verdicts[other] = verdicts[good.replace('"a": 1', '"a":  1')] = False
    assert {text: tokenizer.takes(demand, text) for text in verdicts} == verdicts

    free = allowed(taught, TOOLS, single, tokenizer.ids.get, None)
    before = "" if taught.bare else "Hm. "
    verdicts = {"": True, "Hm <tool {}": True, before + good: True, before + both: several}
    verdicts |= {before + good.replace("1", '"x"'): False, before + other: False}
    assert {text: tokenizer.takes(free, text) for text in verdicts} == verdicts

    formed = allowed(taught, TOOLS, single, tokenizer.ids.get, SMALL | {"x-guidance": {"coerce_one_of": True}})
    verdicts = {'{"a": 1}': True, good: True, "Hm": False, "": False, '{"b": 1}': False}
    assert {text: tokenizer.takes(formed, text) for text in verdicts} == verdicts


def test_a_grammar_says_which_tool_is_in_a_line() -> None:
    grammar = demanded(STYLES["hermes"], TOOLS, False, {}.get)
    lines = grammar.split("\n")
    assert [tool_of_line(grammar, at + 1) for at, line in enumerate(lines) if line.startswith("tool_")] == [0, 1]
    assert tool_of_line(grammar, 1) is tool_of_line(grammar, 0) is tool_of_line(grammar, 99) is None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, None),
        (SMALL, None),
        ({"properties": {"a": True, "b": {"anyOf": [{"type": ["null", "string"]}], "enum": [1], "items": [{}]}}}, None),
        ({"type": "array"}, "type must be object"),
        ({"properties": {"a": {"type": "foo"}}}, "properties.a.type must be one of"),
        ({"properties": {"a": {"items": {"type": 5}}}}, "properties.a.items.type"),
        ({"properties": []}, "properties must be an object"),
        ({"properties": {"a": 5}}, "properties.a must be a JSON Schema"),
        ({"required": "a"}, "required must be an array"),
        ({"required": [5]}, "required must be a list of member names"),
        ({"anyOf": []}, "anyOf must be an array of schemas"),
        ({"anyOf": [5]}, "anyOf[0] must be a JSON Schema"),
        ({"$ref": 5}, "$ref must be a string"),
        ({"additionalProperties": "no"}, "additionalProperties must be a JSON Schema"),
    ],
)
def test_what_is_no_schema(schema: dict[str, Any], words: str | None) -> None:
    fault = fault_of_parameters(schema)
    assert fault is None if words is None else fault is not None and words in fault, fault
