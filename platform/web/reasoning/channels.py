"""ChannelReader: an answer of messages in channels, as gpt-oss writes it (harmony), taken apart as it comes.

A message is a header and a body: `<|start|>assistant<|channel|>NAME<|message|>...`, with `<|start|>assistant` in the
prompt already for the first one. A header may name a recipient, `to=functions.NAME`, in either half: that is a call.
"""

import re
from typing import Final, Literal, NamedTuple

from ..tool_calls.characters import PLAIN, SPACE, NestedText, beginning_at_end
from ..tool_calls.formats.harmony import CALL, CHANNEL, END, FUNCTIONS, MESSAGE, OPENING, START

Part = Literal["thought", "words", "call"]
TURN: Final = END + START
"""Between two messages."""
AFTER_CALL: Final = (CALL + START, TURN, START)
FIRST: Final = (CHANNEL, START, "to=")
"""How the first header may begin, after white space."""
THINKS: Final = "analysis"
MOST_HEADER: Final = 512
_HEADER: Final = re.compile(
    r"\s*(?:assistant)?(?:\s*to=(?P<role_to>[^\s<]+))?\s*"
    r"(?:<\|channel\|>\s*(?P<channel>[a-z]+)(?:\s+to=(?P<to>[^\s<]+))?\s*(?:<\|constrain\|>)?\s*[a-z]*\s*)?"
)


class Piece(NamedTuple):
    part: Part
    """call: text for a CallReader, with its opening as that has it."""
    text: str


class ChannelReader:
    """How the text is cut changes nothing. White space around a message belongs to nobody, but for what ends the
    answer. What has no header of this kind is words as it was written, and so is a message to somebody else."""

    def __init__(self, is_open: bool) -> None:
        """`is_open`: the prompt has the header of a reasoning already."""
        self._is_open = is_open
        self._in: Part | None = None
        """What the body is that is read; None: a header."""
        self._is_first, self._text = True, ""
        self._space = list[str]()
        """Held back: white space before the first header, or behind words."""
        self._arguments = NestedText()
        """Of the call that is read."""
        self._has_arguments = self._is_behind = self._is_raw = False
        """Of the call that is read: its arguments have begun; they have ended; more than a mark came then, and all that
        follows is text."""
        self._strips = self._is_next = False
        """White space before the body's first word is left out; another of its kind had words."""
        self._pieces: list[Piece] = []
        self._said = set[Part]()
        self.thoughts = 0
        """Messages of reasoning, up to the first other one."""
        self.speaks = False
        """What comes now is the answer itself."""

    def push(self, text: str) -> list[Piece]:
        self._pieces, self._text = [], self._text + text
        while self._step():
            pass
        return self._pieces

    def end(self) -> list[Piece]:
        """What was held back. Marks are left out, and a header that was cut."""
        self._pieces, text = [], self._text
        if self._in is None:
            if not self._is_first or CHANNEL in text or START in text:
                return []
            self._begin("thought" if self._is_open else "words", strips=self._is_open)
        text = "" if text.startswith((END, CALL)) else text
        if self._in == "words" or (self._in == "thought" and text):
            text = "".join(self._space) + text
        self._say(text)
        return self._pieces

    def _step(self) -> bool:
        """Whether something was read, so that more may be."""
        match self._in:
            case None:
                return self._header()
            case "call":
                return self._call()
        return self._body()

    def _header(self) -> bool:
        text = self._text
        if self._is_first:
            text = text.lstrip(SPACE)
            self._space.append(self._text[: len(self._text) - len(text)])
            self._text = text
            if not any(text.startswith(one) or one.startswith(text) for one in FIRST):
                self._begin("thought" if self._is_open else "words", strips=self._is_open)
                return True
        before, found, rest = text.partition(MESSAGE)
        size = len(before) - (0 if found else beginning_at_end(text, MESSAGE))
        is_none = size > MOST_HEADER or "\n" in before
        header = _HEADER.fullmatch(before.removeprefix(START)) if found and not is_none else None
        if header is not None:
            written = "".join(self._space) + before + found
            self._text, self._space = rest, []
            self._open(header, written)
        elif found or is_none:
            self._begin("words", strips=False)
        return bool(found or is_none)

    def _open(self, header: re.Match[str], written: str) -> None:
        """The body behind a header, `written` with its mark."""
        recipient = header["to"] or header["role_to"]
        name = None if recipient is None else recipient.removeprefix(FUNCTIONS)
        if recipient is None:
            self._begin("thought" if header["channel"] == THINKS else "words", strips=True)
        elif name == recipient:
            self._begin("words", strips=False)
            self._say(written)
        else:
            self._begin("call", strips=False)
            self._arguments = NestedText()
            self._has_arguments = self._is_behind = self._is_raw = False
            channel = written[max(0, written.find(CHANNEL)) :]
            self._say(channel if channel.startswith(OPENING) else f"{OPENING}{name}{MESSAGE}")

    def _begin(self, part: Part, strips: bool) -> None:
        self._in, self._strips, self._is_first = part, strips, False
        self._is_next = part in self._said and part != "call"
        self.speaks |= part != "thought"
        self.thoughts += not self.speaks

    def _body(self) -> bool:
        """Words or reasoning, up to the next message."""
        body, found, rest = self._text.partition(TURN)
        shown = body if found else body[: len(body) - beginning_at_end(body, TURN)]
        words = shown.rstrip(SPACE)
        if words:
            held, self._space = "".join(self._space), []
            self._say(held + words)
        self._space.append(shown[len(words) :])
        self._text = rest if found else body[len(shown) :]
        if found:
            self._in, self._space = None, []
        return bool(found)

    def _call(self) -> bool:
        """Arguments are read to their end, whatever marks stand in their texts."""
        if self._is_behind:
            return self._behind_call()
        at = 0
        while at < len(self._text) and not self._is_behind:
            plain = PLAIN.match(self._text, at) if self._has_arguments else None
            piece = self._text[at] if plain is None else plain.group()
            self._has_arguments |= piece == "{"
            if self._has_arguments:
                self._arguments.add(piece)
                self._is_behind = self._arguments.ended
            elif piece not in SPACE:
                self._is_behind = True
                break
            at += len(piece)
        said, self._text = self._text[:at], self._text[at:]
        self._say(said)
        return self._is_behind and bool(self._text)

    def _behind_call(self) -> bool:
        if not self._is_raw:
            self._text = self._text.lstrip(SPACE)
            mark = next((mark for mark in AFTER_CALL if self._text.startswith(mark)), None)
            if mark is not None:
                self._text, self._in = self._text.removeprefix(mark), None
                return True
            self._is_raw = not any(mark.startswith(self._text) for mark in AFTER_CALL)
        if self._is_raw:
            self._say(self._text)
            self._text = ""
        return False

    def _say(self, text: str) -> None:
        assert self._in is not None
        if self._strips:
            text = text.lstrip(SPACE)
            self._strips = not text
        if not text:
            return
        if self._is_next:
            text, self._is_next = "\n" + text, False
        self._said.add(self._in)
        self._pieces.append(Piece(self._in, text))
