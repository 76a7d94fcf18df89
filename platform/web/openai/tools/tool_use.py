"""ToolUse: what a request's tools mean for its answer: how calls are read, and what must be enforced."""

import re
from dataclasses import dataclass
from typing import Any, Final, Protocol

from loraplex.engine.structured_outputs import StructuredOutputs

from ...http.errors import ApiError, invalid
from ...text.text_processor import TextProcessor
from ...tool_calls.formats.hermes import HERMES
from ...tool_calls.formats.known import STYLES
from ...tool_calls.formats.style import Style
from ...tool_calls.grammar import ANY_OBJECT, EnforcedTool, allowed, demanded, tool_of_line
from ...tool_calls.reader import CallReader
from ..response_format import GUIDED, JsonObjectFormat, JsonSchemaFormat, ResponseFormat
from .tools import OTHER_CHOICE, Asking, NamedTool, Tool, demands_call, offered_tools

FAULT: Final = re.compile(r"cannot be used: (?:at (?P<line>\d+)\(\d+\): )?(?P<reason>[^\n]*)")


class AskingForm(Asking, Protocol):
    parallel_tool_calls: bool | None
    response_format: ResponseFormat | None
    structured_outputs: Any
    allowed_token_ids: list[int] | None


@dataclass(frozen=True, slots=True)
class ToolUse:
    style: Style
    tools: list[Tool]
    demands: bool
    """The answer is calls and nothing else."""
    single: bool
    """It has one call at most."""
    text_processor: TextProcessor

    def reader(self, eager: bool) -> CallReader:
        """Of one choice."""
        return CallReader(self.style, {tool.function.name for tool in self.tools}, eager, calls_alone=self.demands)

    @property
    def markers(self) -> frozenset[int]:
        """Special tokens that must be seen in the text."""
        tokenizer = self.text_processor.tokenizer
        ids = {tokenizer.token_id(marker) for marker in self.style.markers}
        return frozenset(token for token in ids if token in tokenizer.special_ids)

    def form(self, fields: AskingForm) -> StructuredOutputs | None:
        """What must be enforced; None: nothing, and calls are read as the model writes them. Raises ApiError."""
        grammar = self._grammar(fields.response_format)
        if grammar is None:
            return None
        if fields.allowed_token_ids is not None:
            message = "allowed_token_ids excludes tools whose calls are enforced; leave one of them out."
            raise invalid(message, "allowed_token_ids")
        form = StructuredOutputs(grammar=grammar, field="tools")
        try:
            form.verify()
        except ValueError as error:
            size = str(error).partition(" has ")[2]
            raise invalid(f"The tools' schemas cannot be enforced: their grammar has {size}.", "tools") from None
        return form

    def begins_with_form(self, fields: AskingForm) -> bool:
        """The first token belongs to a call that is demanded, or to a form of the words."""
        return self.demands or _schema_of(fields.response_format) is not None

    def explain_refusal(self, form: StructuredOutputs, error: ApiError) -> ApiError:
        """A refusal of `form`, which is this one's, in terms of the tools."""
        found = FAULT.search(error.message)
        if error.status != 400 or found is None:
            return error
        reason = found["reason"].removeprefix("failed to compile JSON schema: ").rstrip(".")
        line = int(found["line"] or 0)
        number = tool_of_line(form.grammar or "", line)
        if number is not None:
            name = self.tools[number].function.name
            return invalid(f"The parameters of the tool '{name}' cannot be enforced: {reason}.", "tools")
        if line == 1 and not self.demands:
            return invalid(f"The schema of response_format cannot be enforced: {reason}.", "response_format")
        return invalid(f"The tools' schemas cannot be enforced: {reason}.", "tools")

    def _grammar(self, response_format: ResponseFormat | None) -> str | None:
        tools, token_of = self._enforced(), self.text_processor.tokenizer.token_id
        if self.demands:
            return demanded(self.style, tools, self.single, token_of)
        words = _schema_of(response_format)
        if not (self.single or words is not None or any(tool.function.strict for tool in self.tools)):
            return None
        return allowed(self.style, tools, self.single, token_of, words)

    def _enforced(self) -> list[EnforcedTool]:
        """Where calls are demanded all of them, else the strict ones: the others' arguments are any object."""
        return [
            EnforcedTool(tool.function.name, tool.schema() if self.demands or tool.function.strict else ANY_OBJECT)
            for tool in self.tools
        ]


def plan_tools(fields: AskingForm, text_processor: TextProcessor) -> ToolUse | None:
    """None: no tool can be called. Raises ApiError for what cannot be served."""
    tools = offered_tools(fields)
    if not tools:
        return None
    demands, style = demands_call(fields), text_processor.tool_style
    if style is None and demands:
        style = HERMES  # the grammar writes it, and the reader reads it
    if style is None:
        raise invalid(_unknown_style(), "tools", "unknown_tool_format")
    for other in ("structured_outputs", *GUIDED):
        if getattr(fields, other) is not None:
            message = f"{other} and tools both set the response format; send one, or tool_choice: none."
            raise invalid(message, other)
    choice, single = fields.tool_choice, fields.parallel_tool_calls is False
    if isinstance(choice, NamedTool):
        tools, single = [tool for tool in tools if tool.function.name == choice.function.name], True
    return ToolUse(style, tools, demands, single, text_processor)


def _schema_of(response_format: ResponseFormat | None) -> dict[str, Any] | None:
    match response_format:
        case JsonObjectFormat():
            return ANY_OBJECT if response_format.value is None else response_format.value
        case JsonSchemaFormat():
            return response_format.json_schema.schema
    return None


def _unknown_style() -> str:
    return (
        f"This model's chat template does not show its tool call format ({', '.join(STYLES)}). Set tool_call_parser in "
        f"the adapter's serving profile, or ask the operator to set it for the server. {OTHER_CHOICE}"
    )
