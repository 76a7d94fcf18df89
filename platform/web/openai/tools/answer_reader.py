"""AnswerReader: the reasoning, the words and the calls in what a model writes, choice by choice."""

from dataclasses import dataclass, replace

from ...inference.generation import Completion, Delta
from ...quotas.meters import Usage
from ...tool_calls.events import Event
from ...tool_calls.formats.harmony import HARMONY
from .choice_reader import ChannelChoice, ChoiceReader
from .reasoning_use import ReasoningUse
from .tool_use import ToolUse


@dataclass(frozen=True, slots=True)
class Reading:
    """How all choices of one answer are read. None: nothing of the kind is looked for; with neither, all is words."""

    reasoning: ReasoningUse | None = None
    tools: ToolUse | None = None

    @property
    def is_plain(self) -> bool:
        """All is words."""
        return self.reasoning is None and self.tools is None

    @property
    def shown_tokens(self) -> frozenset[int]:
        """Special tokens that must be seen in the text."""
        uses = [use for use in (self.reasoning, self.tools) if use is not None]
        return frozenset[int]().union(*(use.markers for use in uses))

    def reader(self, eager: bool) -> ChoiceReader | ChannelChoice:
        """Of one choice. `eager`: of a stream."""
        calls = None if self.tools is None else self.tools.reader(eager)
        if self.reasoning is not None and self.reasoning.marks.in_channels:
            return ChannelChoice(self.reasoning, calls, self.tools is not None and self.tools.style is HARMONY)
        return ChoiceReader(self.reasoning, calls)


class AnswerReader:
    """Of one answer, whole or as a stream."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._readers: dict[int, ChoiceReader | ChannelChoice] = {}

    @property
    def speaks(self) -> bool:
        """What comes now is the answer itself, in every choice."""
        return all(reader.speaks for reader in self._readers.values())

    @property
    def reasoning_tokens(self) -> int:
        """Of all choices."""
        return sum(reader.reasoning_tokens for reader in self._readers.values())

    def counted(self, usage: Usage) -> Usage:
        """With the reasoning tokens."""
        tokens = self.reasoning_tokens
        return replace(usage, reasoning_tokens=tokens) if tokens else usage

    def push(self, delta: Delta) -> tuple[list[Event], str | None]:
        """What is new of a choice of a stream, and how it ended, once it has."""
        return self._parts(delta.index, delta, eager=True)

    def read(self, index: int, choice: Completion) -> tuple[list[Event], str | None]:
        """A whole choice, and how it ended."""
        return self._parts(index, choice, eager=False)

    def _parts(self, index: int, said: Delta | Completion, eager: bool) -> tuple[list[Event], str | None]:
        if index not in self._readers:
            self._readers[index] = self._reading.reader(eager)
        reader = self._readers[index]
        parts = reader.push(said.text, said.token_ids)
        if said.finish_reason is None:
            return parts, None
        parts += reader.end(said.finish_reason, said.stop_reason)
        return parts, reader.finish_reason(said.finish_reason)
