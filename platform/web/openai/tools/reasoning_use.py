"""ReasoningUse: what the model's reasoning means for a request's answer: how it is read, and whether it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass

from loraplex.engine.text.tokenizer import Tokenizer

from ...reasoning.marks import Marks
from ...reasoning.prompt_end import prompt_end
from ...text.text_processor import TextProcessor
from ...tool_calls.formats.harmony import HARMONY
from ..schemas import ChatMessage, ChatRequest


@dataclass(frozen=True, slots=True)
class ReasoningUse:
    marks: Marks
    is_open: bool
    """The prompt ends within it."""
    is_shown: bool
    tokenizer: Tokenizer

    @property
    def markers(self) -> frozenset[int]:
        """Special tokens that must be seen in the text."""
        text = self.marks.opening + self.marks.closing + ("".join(HARMONY.marks) if self.marks.in_channels else "")
        return frozenset(self.tokenizer.encode(text, add_special_tokens=False)) & self.tokenizer.special_ids


def plan_reasoning(fields: ChatRequest, text_processor: TextProcessor, prompt: Sequence[int]) -> ReasoningUse | None:
    """None: it is not looked for. `prompt`: its token ids."""
    marks, tokenizer = text_processor.reasoning_marks, text_processor.tokenizer
    if marks is None or not fields.separate_reasoning:
        return None
    if fields.continue_final_message:
        is_open = marks.are_open_within(_text(fields.messages[-1]))
    else:
        is_open = marks.are_open(prompt_end(prompt, len(marks.opening), tokenizer))
    return ReasoningUse(marks, is_open, fields.include_reasoning, tokenizer)


def _text(message: ChatMessage) -> str:
    content = message.content or ""
    return content if isinstance(content, str) else "".join(part.text or "" for part in content)
