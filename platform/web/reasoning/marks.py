"""Marks: what stands around a model's reasoning."""

from dataclasses import dataclass
from typing import Final, Literal, get_args


@dataclass(frozen=True, slots=True)
class Marks:
    opening: str
    closing: str
    in_channels: bool = False
    """An answer has messages in channels, of which some are reasoning: ChannelReader tells them apart. `closing` stands
    before the last one."""

    def are_open(self, prompt: str) -> bool:
        """Whether a prompt ends with the opening, so that the answer begins within the reasoning."""
        return prompt.rstrip().endswith(self.opening)

    def are_open_within(self, text: str) -> bool:
        """Whether an answer that is to be continued has come to its reasoning and not beyond."""
        return text.rfind(self.opening) > text.rfind(self.closing)


ReasoningParser = Literal["auto", "none", "think", "mistral", "harmony"]
PARSERS: Final[tuple[str, ...]] = get_args(ReasoningParser)
MARKS: Final = {
    "think": Marks("<think>", "</think>"),
    "mistral": Marks("[THINK]", "[/THINK]"),
    "harmony": Marks("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", in_channels=True),
}
AUTO: Final = "auto"


def marks_of(parser: str, template: str) -> Marks | None:
    """Those of this name; with auto the only ones whose end is in the chat template; None: nothing is looked for."""
    if parser != AUTO:
        return MARKS.get(parser)
    matching = [marks for marks in MARKS.values() if marks.closing in template]
    return matching[0] if len(matching) == 1 else None
