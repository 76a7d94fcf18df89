"""CallReader: the text of one answer as it comes, taken apart into words and calls. How it is cut changes nothing."""

from collections.abc import Collection, Generator
from typing import Final

from .characters import PLAIN, SPACE, Characters, NotACall, beginning_at_end, parsed
from .events import Arguments, Begun, Event, Words
from .formats.style import Style

MOST_HEAD: Final = 1 << 16
"""Characters that are held back of what may become a call, in a stream."""

MOST_PIECE: Final = 1024
"""Characters at once: what is left of a piece is copied for every call."""


class CallReader:
    """`names`: of the tools there are. `eager`: a call is told of from its arguments' first character on, else when it
    is complete; what turns out to be none stays in the words as the model wrote it, unless it was told of.

    White space beside calls belongs to nobody. Time grows with the text, whatever it is.
    """

    def __init__(self, style: Style, names: Collection[str], eager: bool, calls_alone: bool = False) -> None:
        """`calls_alone`: a grammar lets nothing but calls through, so what a cut leaves is never words."""
        self._style, self._names, self._eager, self._calls_alone = style, names, eager, calls_alone
        self._events: list[Event] = []
        self._told_text: list[str] = []
        """Of the arguments: not yet among the events."""
        self._space, self._partial = list[str](), ""
        """Held back of the words: white space, and behind it what may be the beginning of a marker."""
        self._run: Generator[bool, str, None] | None = None
        self._raw: list[str] = []
        """Of the run, since its beginning or its last call: what nobody was told of."""
        self._held = 0
        """Characters of `_raw`, or more."""
        self._takes_runs = False
        self._name, self._argued = "", list[str]()
        """Of the call that is read."""
        self._told = self._run_has_call = self._in_call = self._closed = False
        """Of the call that is read; of the run; whether one has begun and not ended; of the last call."""
        self._untouched, self._after_call = True, False
        self.calls = 0
        """Those with whole arguments."""
        self.broken = False
        """A call was told of whose arguments are not JSON, or not whole."""

    def push(self, text: str) -> list[Event]:
        self._events = []
        for start in range(0, len(text), MOST_PIECE):
            piece = text[start : start + MOST_PIECE]
            while piece:
                piece = self._in_text(piece) if self._run is None else self._in_run(piece)
        self._flush()
        return self._events

    def end(self, cut: bool) -> list[Event]:
        """`cut`: the answer was ended by a limit or a stop string, so that a call may be told of as far as it came."""
        self._events, left = list[Event](), ""
        if self._run is not None:
            if cut and self._name and self._argued and not self._told:
                self._tell()
            if self._told:
                self.broken = True
            elif not (self._run_has_call and (not self._closed or self._is_remainder())):
                left = "".join(self._raw)
            self._run = None
        left += self._held_words() + self._partial
        self._partial = ""
        if not (cut and self._calls_alone):
            self._say(left)
        self._flush()
        return self._events

    def _is_remainder(self) -> bool:
        """Whether nothing but a beginning of what stands between or after calls was read since the last one."""
        raw, style = "".join(self._raw).strip(SPACE), self._style
        return any(text.strip(SPACE).startswith(raw) for text in (style.after + style.closing, style.between))

    def _in_text(self, text: str) -> str:
        """Say what is no call for sure; returns what is left where a run begins."""
        # White space that was held back before is not looked at again: there may be much of it.
        text, self._partial = self._partial + text, ""
        if self._after_call:
            text = text.lstrip(SPACE)
        opening, visible = self._style.opening, text.lstrip(SPACE)
        if self._style.bare and self._untouched and visible.startswith("{"):
            self._begin(self._held_words() + text[: -len(visible)])
            return visible
        at = text.find(opening)
        if at < 0:
            shown = len(text) - beginning_at_end(text, opening)
            self._say_visible(text[:shown])
            self._partial = text[shown:]
            return ""
        self._say_visible(text[:at])
        self._begin(self._held_words() + opening)
        return text[at + len(opening) :]

    def _say_visible(self, text: str) -> None:
        """Holds back the white space at its end."""
        words = text.rstrip(SPACE)
        if words:
            self._say(self._held_words() + words)
        if len(words) < len(text):
            self._space.append(text[len(words) :])

    def _held_words(self) -> str:
        """White space that is held back no longer."""
        text, self._space = "".join(self._space), []
        return text

    def _begin(self, raw: str) -> None:
        """A run, whose beginning is `raw`."""
        self._raw, self._held, self._run_has_call, self._in_call = [raw], len(raw), False, False
        characters = Characters()
        self._run = self._style.read(characters, lambda: self._style.call(characters, self))
        self._takes_runs = next(self._run)

    def _in_run(self, text: str) -> str:
        """Returns what is left where the run ends."""
        assert self._run is not None
        at = 0
        while at < len(text):
            told, piece = self._told, text[at]
            if self._takes_runs and (plain := PLAIN.match(text, at)):
                piece = plain.group()
            if not told:
                self._raw.append(piece)
                self._held += len(piece)
            try:
                self._takes_runs = self._run.send(piece)
            except StopIteration:
                self._run = None
                return text[at + len(piece) :]
            except NotACall:
                if not told:
                    self._raw.pop()
                return self._give_up() + text[at:]
            at += len(piece)
            if self._eager and self._held > MOST_HEAD:
                return self._give_up() + text[at:]
        return ""

    def _give_up(self) -> str:
        """The run is none any more; returns what of it is to be read again, as words. Never a call: one could have
        another one in it, and so on."""
        raw, self._run = "".join(self._raw), None
        self._name, self._argued = "", []
        if self._told:
            self._told, self.broken = False, True
        elif self._run_has_call and self._closed and not self._in_call:
            return raw
        else:
            self._say(raw.lstrip(SPACE) if self._after_call else raw)
        return ""

    def _say(self, text: str) -> None:
        if not text:
            return
        self._untouched = self._after_call = False
        self._flush()
        last = self._events[-1] if self._events else None
        if isinstance(last, Words):
            last.text += text
        else:
            self._events.append(Words(text))

    def _tell(self) -> None:
        self._flush()
        self._events.append(Begun(self.calls, self._name))
        self._told, self._told_text, self._raw, self._held = True, self._argued, [], 0

    def _flush(self) -> None:
        if self._told_text:
            self._events.append(Arguments(self.calls, "".join(self._told_text)))
            self._told_text = []

    # What read_call tells.

    def opened(self) -> None:
        self._in_call = True

    def named(self, name: str) -> None:
        if name not in self._names:
            raise NotACall
        self._name = name
        self._tell_if_eager()

    def argue(self, text: str) -> None:
        (self._told_text if self._told else self._argued).append(text)
        self._tell_if_eager()

    def judge(self, text: str) -> None:
        try:
            parsed(text)
        except NotACall:
            if not self._told:
                raise
            self.broken = True

    def done(self) -> None:
        if not self._told:
            self._tell()
        self._flush()
        self._told, self._name, self._argued, self._raw = False, "", [], []
        self._untouched, self._after_call = False, True
        self._run_has_call, self._closed = True, False
        self.calls += 1

    def closed(self) -> None:
        self._in_call, self._closed, self._raw = False, True, []

    def _tell_if_eager(self) -> None:
        if self._eager and not self._told and self._name and self._argued:
            self._tell()
