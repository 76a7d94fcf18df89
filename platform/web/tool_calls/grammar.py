"""Grammars, in llguidance's dialect of Lark, of answers that call tools as the schemas of these say."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .formats.style import Style

WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{1,40}"
"""Between two marks of JSON: as `engine/constraints/grammars.py` has it."""
SPACED: Final = {"whitespace_pattern": WHITESPACE}
TIGHT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As json.dumps writes: a model that was not trained on calls may never end its white space."""
ANY_OBJECT: Final = {"type": "object"}
TokenOf = Callable[[str], int | None]
"""The id of the token that a marker is in a tokenizer; None: it is ordinary text."""


@dataclass(frozen=True, slots=True)
class EnforcedTool:
    """A tool as a grammar has it. `schema`: of its arguments, an object."""

    name: str
    schema: dict[str, Any]


def demanded(style: Style, tools: Sequence[EnforcedTool], single: bool, token_of: TokenOf) -> str:
    """Of answers that are calls and nothing else: one of them, or one and more."""
    return _grammar("start: calls", style, tools, single, token_of, options=TIGHT)


def allowed(
    style: Style, tools: Sequence[EnforcedTool], single: bool, token_of: TokenOf, words: dict[str, Any] | None
) -> str:
    """Of answers in words with calls among them, or none; whatever begins as a call is one. `words`: the schema of
    answers that are no calls; None: any text."""
    if words is not None:
        return _grammar(f"start: calls | {_json(words)}", style, tools, single, token_of)
    token = token_of(style.opening)
    if style.bare:
        # A brace at the beginning begins a call.
        start = "start: calls | PLAIN?" + ("" if token is None else f" | PLAIN? <[{token}]> run")
        plain = r"PLAIN: /[ \t\r\n]*[^ \t\r\n{](.|\n)*/"
        return _grammar(f"{start}\n{plain}", style, tools, single, token_of)
    if token is None and any(token_of(mark) is not None for mark in style.marks):
        return _grammar(_among_marks(style, token_of), style, tools, single, token_of)
    leads = ["trigger"] if token is None else ["trigger", f"TEXT <[{token}]>"]
    once = single or style.next_run is None
    start = "start: TEXT | lead run" if once else "start: (lead run)* TEXT"
    rules = [start, "lead: " + " | ".join(leads), f"trigger[lazy]: TEXT {_text(style.opening)}"]
    return _grammar("\n".join(rules), style, tools, single, token_of, text=True)


def _among_marks(style: Style, token_of: TokenOf) -> str:
    """`start` of words and marks. What names who is called stands at the beginning of a call alone."""
    marks = [token for token in map(token_of, style.marks) if token is not None]
    called = re.escape(style.opening.rpartition(" ")[2])
    rules = [
        "start: WORDS part* | WORDS part* lead run",
        "part: (" + " | ".join(f"<[{mark}]>" for mark in marks) + ") WORDS",
        f"lead: {_written(style.opening, style, token_of)}",
        rf"WORDS: /(.|\n)*/ & ~/(.|\n)*{called}(.|\n)*/",
    ]
    return "\n".join(rules)


def _grammar(
    start: str,
    style: Style,
    tools: Sequence[EnforcedTool],
    single: bool,
    token_of: TokenOf,
    text: bool = False,
    options: Mapping[str, Any] = SPACED,
) -> str:
    """`start` and the rules it may use: calls (of one run or more), run (what follows an opening), TEXT. `options`: of
    the JSON in calls."""
    opening, closing = (_written(marker, style, token_of) for marker in (style.opening, style.closing))
    several = not single and style.several
    more = f" ({_text(style.between)} call)*" if several and style.next_run is None else ""
    opened = "run" if style.bare else f"{opening} run"
    again = f" ({_text(style.next_run)} {opened})*" if several and style.next_run is not None else ""
    rules = [
        start,
        *([r"TEXT: /(.|\n)*/"] if text else []),
        f"calls: {opened}{again}",
        f"run: {_text(style.before)} call{more} {_text(style.after)} {closing}",
        "call: " + " | ".join(f"tool_{number}" for number in range(len(tools))),
        *(_tool(number, tool, style, token_of, options) for number, tool in enumerate(tools)),
    ]
    return "\n".join(rule.rstrip() for rule in rules)


def _tool(number: int, tool: EnforcedTool, style: Style, token_of: TokenOf, options: Mapping[str, Any] = SPACED) -> str:
    """A rule on a line of its own: errors name the line."""
    pieces = [_written(piece, style, token_of) for piece in style.call_pieces(tool.name, style.arguments)]
    return f"tool_{number}: {' '.join(pieces)} {_json(tool.schema, options)} {_text(style.call_end)}"


def _json(schema: dict[str, Any], options: Mapping[str, Any] = SPACED) -> str:
    """The schema's own options would overrule ours."""
    return "%json " + json.dumps({**schema, "x-guidance": dict(options)})


def _written(text: str, style: Style, token_of: TokenOf) -> str:
    """Markers in it as the tokens that they are, where the tokenizer has them."""
    found = "|".join(map(re.escape, style.markers))
    return " ".join(_marker(piece, style, token_of) for piece in re.split(f"({found})", text) if piece)


def _marker(piece: str, style: Style, token_of: TokenOf) -> str:
    token = token_of(piece) if piece in style.markers else None
    return _text(piece) if token is None else f"<[{token}]>"


def _text(text: str) -> str:
    return json.dumps(text) if text else ""


def tool_of_line(grammar: str, line: int) -> int | None:
    """The number of the tool whose rule is in this line, counted from 1."""
    lines = grammar.split("\n")
    rule = lines[line - 1].partition(":")[0] if 0 < line <= len(lines) else ""
    return int(rule.removeprefix("tool_")) if rule.startswith("tool_") else None
