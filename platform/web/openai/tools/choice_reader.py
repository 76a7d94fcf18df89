"""ChoiceReader: the text of one choice, taken apart into reasoning, words and calls."""

from collections.abc import Sequence

from ...reasoning.channels import ChannelReader, Piece
from ...reasoning.reader import ReasoningReader, tokens_until
from ...tool_calls.events import Event, Reasoning, Words
from ...tool_calls.formats.harmony import END
from ...tool_calls.reader import CallReader
from .reasoning_use import ReasoningUse


def ended_with(calls: CallReader | None, finish_reason: str) -> str:
    """tool_calls, where there are some and all are whole."""
    return "tool_calls" if finish_reason == "stop" and calls and calls.calls and not calls.broken else finish_reason


class ChoiceReader:
    """How the text is cut changes nothing."""

    def __init__(self, reasoning: ReasoningUse | None, calls: CallReader | None) -> None:
        """None: they are not looked for."""
        self._use, self._calls = reasoning, calls
        self._reasoning = None if reasoning is None else ReasoningReader(reasoning.marks, reasoning.is_open)
        self._token_ids = list[int]()
        """As long as the answer itself has not begun."""
        self.reasoning_tokens = 0
        """Of those that were pushed, the first so many: up to the closing, which is one of them."""

    @property
    def speaks(self) -> bool:
        """What comes now is the answer itself."""
        return self._reasoning is None or self._reasoning.is_over

    def push(self, text: str, token_ids: Sequence[int]) -> list[Event]:
        """`token_ids`: those that the text came with."""
        if self._reasoning is None:
            return self._events("", text)
        spoke = self.speaks
        thought, text = self._reasoning.push(text)
        if not spoke:
            self._count(self._reasoning, token_ids)
        return self._events(thought, text)

    def end(self, finish_reason: str, stop_reason: int | str | None) -> list[Event]:
        """What was held back. An answer that a limit or a stop string has cut may have part of a call."""
        thought, text = ("", "") if self._reasoning is None else self._reasoning.end()
        events = self._events(thought, text)
        is_cut = finish_reason != "stop" or stop_reason is not None
        return events + (self._calls.end(is_cut) if self._calls is not None else [])

    def finish_reason(self, finish_reason: str) -> str:
        """tool_calls, where there are some and all are whole."""
        return ended_with(self._calls, finish_reason)

    def _events(self, thought: str, text: str) -> list[Event]:
        is_shown = self._use is not None and self._use.is_shown
        events: list[Event] = [Reasoning(thought)] if thought and is_shown else []
        if self._calls is not None:
            return events + self._calls.push(text)
        return [*events, Words(text)] if text else events

    def _count(self, reader: ReasoningReader, token_ids: Sequence[int]) -> None:
        assert self._use is not None
        self._token_ids += token_ids
        if reader.thinks:
            self.reasoning_tokens = len(self._token_ids)
        elif reader.thought:
            self.reasoning_tokens = tokens_until(reader.marks.closing, self._token_ids, self._use.tokenizer)


class ChannelChoice:
    """The same of an answer in channels."""

    def __init__(self, use: ReasoningUse, calls: CallReader | None, in_channels: bool) -> None:
        """`in_channels`: calls are messages too, and are not looked for in words."""
        self._use, self._calls, self._in_channels = use, calls, in_channels
        self._reader = ChannelReader(use.is_open)
        self._token_ids = list[int]()
        self.reasoning_tokens = 0

    @property
    def speaks(self) -> bool:
        """What comes now is the answer itself."""
        return self._reader.speaks

    def push(self, text: str, token_ids: Sequence[int]) -> list[Event]:
        spoke, pieces = self.speaks, self._reader.push(text)
        if not spoke:
            self._count(token_ids)
        return self._events(pieces)

    def end(self, finish_reason: str, stop_reason: int | str | None) -> list[Event]:
        is_cut = finish_reason != "stop" or stop_reason is not None
        return self._events(self._reader.end()) + ([] if self._calls is None else self._calls.end(is_cut))

    def finish_reason(self, finish_reason: str) -> str:
        return ended_with(self._calls, finish_reason)

    def _events(self, pieces: Sequence[Piece]) -> list[Event]:
        events: list[Event] = []
        for part, text in pieces:
            if part == "thought":
                events += [Reasoning(text)] if self._use.is_shown else []
            elif self._calls is None or (part == "words" and self._in_channels):
                events.append(Words(text))
            else:
                events += self._calls.push(text)
        return events

    def _count(self, token_ids: Sequence[int]) -> None:
        self._token_ids += token_ids
        thoughts = self._reader.thoughts
        if thoughts and self.speaks:
            self.reasoning_tokens = tokens_until(END, self._token_ids, self._use.tokenizer, thoughts)
        elif thoughts:
            self.reasoning_tokens = len(self._token_ids)
