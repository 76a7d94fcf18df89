"""AnswerReader: the words and the calls in what a model writes, choice by choice."""

from ...inference.generation import Completion, Delta
from ...tool_calls.events import Event, Words
from ...tool_calls.reader import CallReader
from .tool_answers import finish_reason_of, is_cut
from .tool_use import ToolUse


class AnswerReader:
    """Of one answer, whole or as a stream. `tools` None: no tool can be called, and all is words."""

    def __init__(self, tools: ToolUse | None) -> None:
        self._tools = tools
        self._readers: dict[int, CallReader] = {}
        """Of a stream's choices."""

    def push(self, delta: Delta) -> tuple[list[Event], str | None]:
        """What is new of a choice of a stream, and how it ended, once it has."""
        finish_reason = delta.finish_reason
        if self._tools is None:
            return [Words(delta.text)] if delta.text or delta.logprobs else [], finish_reason
        reader = self._readers.setdefault(delta.index, self._tools.reader(eager=True))
        parts = reader.push(delta.text)
        if finish_reason is not None:
            parts += reader.end(is_cut(finish_reason, delta.stop_reason))
        return parts, finish_reason_of(reader, finish_reason)

    def read(self, choice: Completion) -> tuple[list[Event], str | None]:
        """A whole choice, and how it ended."""
        finish_reason = choice.finish_reason
        if self._tools is None:
            return [Words(choice.text)], finish_reason
        reader = self._tools.reader(eager=False)
        parts = reader.push(choice.text) + reader.end(is_cut(finish_reason, choice.stop_reason))
        return parts, finish_reason_of(reader, finish_reason)
