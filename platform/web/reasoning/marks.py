"""Marks: what stands around a model's reasoning."""

from dataclasses import dataclass
from typing import Final, Literal, get_args


@dataclass(frozen=True, slots=True)
class Marks:
    opening: str
    closing: str

    def are_open(self, prompt: str) -> bool:
        """Whether a prompt ends with the opening, so that the answer begins within the reasoning."""
        return prompt.rstrip().endswith(self.opening)

    def are_open_within(self, text: str) -> bool:
        """Whether an answer that is to be continued has come to its reasoning and not beyond."""
        return text.rfind(self.opening) > text.rfind(self.closing)


ReasoningParser = Literal["auto", "none", "think", "mistral"]
PARSERS: Final[tuple[str, ...]] = get_args(ReasoningParser)
MARKS: Final = {"think": Marks("<think>", "</think>"), "mistral": Marks("[THINK]", "[/THINK]")}
AUTO: Final = "auto"


def marks_of(parser: str, template: str) -> Marks | None:
    """Those of this name; with auto the only ones that the chat template closes; None: reasoning is not looked for."""
    if parser != AUTO:
        return MARKS.get(parser)
    matching = [marks for marks in MARKS.values() if marks.closing in template]
    return matching[0] if len(matching) == 1 else None
