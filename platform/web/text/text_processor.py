"""TextProcessor: how chats and texts become token ids and back, for the base or for one adapter's version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from loraplex.engine.protocol import AddedToken
from loraplex.engine.text.tokenizer import Tokenizer

from ..chat_templates.chat_template import ChatTemplate
from ..chat_templates.job import RenderJob
from ..chat_templates.pool import TemplateWorkers
from ..http.off_loop import INLINE_CHARS, off_loop
from ..reasoning.marks import Marks, marks_of
from ..tool_calls.formats.harmony import ENDS, HARMONY
from ..tool_calls.formats.known import AUTO, style_of
from ..tool_calls.formats.style import Style
from .token_text import TokenText

Messages = Sequence[Mapping[str, Any]]
Variables = Mapping[str, Any]


class Template(Protocol):
    @property
    def source(self) -> str: ...

    async def render(
        self, messages: Messages, add_generation_prompt: bool, continue_final_message: bool, variables: Variables
    ) -> str:
        """The prompt's text. Raises TemplateFailure; ApiError where nobody can render now."""


@dataclass(frozen=True, slots=True)
class TextProcessor:
    """A request keeps the one that it began with."""

    tokenizer: Tokenizer
    token_text: TokenText
    template: Template | None
    """None: the model has no chat template, and so no chat endpoint."""
    tool_template: Template | None = None
    """Of chats with tools, where that is another one."""
    end_token_id: int | None = None
    """Ends answers like the end tokens that the engine knows; None: no more than those."""
    system_prompt: str | None = None
    """Put before messages that bring none."""
    added_tokens: tuple[AddedToken, ...] = ()
    """Of the tokenizer, beyond the base's."""
    tool_call_parser: str = AUTO
    """The setting, or the profile's."""
    reasoning_parser: str = AUTO
    """Likewise."""

    @property
    def reasoning_marks(self) -> Marks | None:
        """The marks around the model's reasoning; None: reasoning is not told apart."""
        return marks_of(self.reasoning_parser, "" if self.template is None else self.template.source)

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end answers besides those that the engine knows: of the adapter's own tokenizer, and of a format
        whose marks do, wherever the checkpoint does not say so."""
        own = frozenset[int]() if self.end_token_id is None else frozenset([self.end_token_id])
        in_channels = self.reasoning_marks is not None and self.reasoning_marks.in_channels
        if not (in_channels or self.tool_style is HARMONY):
            return own
        ends = (self.tokenizer.token_id(mark) for mark in ENDS)
        return own | {end for end in ends if end is not None and end in self.tokenizer.special_ids}

    @property
    def tool_style(self) -> Style | None:
        """How the model writes tool calls; None: nobody has said it, and the template does not show it."""
        template = self.tool_template or self.template
        return style_of(self.tool_call_parser, "" if template is None else template.source)

    async def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids, without holding up the event loop for long."""
        return await off_loop(lambda: self.tokenizer.encode(text, add_special_tokens=add_special_tokens), len(text))

    async def encode_pair(self, first: str, second: str, most: int | None = None) -> list[int]:
        """As encode(), of two texts in one prompt. `most`: cut to so many tokens."""
        return await off_loop(lambda: self.tokenizer.encode_pair(first, second, most), len(first) + len(second))


class TrustedTemplate:
    """The operator's: rendered in this process."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    @property
    def source(self) -> str:
        return self._template.source

    async def render(
        self, messages: Messages, add_generation_prompt: bool, continue_final_message: bool, variables: Variables
    ) -> str:
        # The schemas of tools may be large.
        chars = INLINE_CHARS + 1 if variables.get("tools") else sum(len(message["content"]) for message in messages)
        render = partial(self._template.render, messages, add_generation_prompt, continue_final_message, variables)
        return await off_loop(render, chars)


class UntrustedTemplate:
    """An adapter's: rendered by a worker. `owner` is the digest of its tokenizer."""

    def __init__(
        self, workers: TemplateWorkers, owner: str, source: str, named_tokens: Mapping[str, str], max_chars: int
    ) -> None:
        self._workers, self._owner = workers, owner
        self._source, self._named_tokens, self._max_chars = source, dict(named_tokens), max_chars

    @property
    def source(self) -> str:
        return self._source

    async def render(
        self, messages: Messages, add_generation_prompt: bool, continue_final_message: bool, variables: Variables
    ) -> str:
        job = RenderJob(
            source=self._source,
            named_tokens=self._named_tokens,
            max_chars=self._max_chars,
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=dict(variables),
        )
        return await self._workers.render(self._owner, job)


def base_text_processor(
    tokenizer: Tokenizer,
    max_chars: int,
    tool_call_parser: str = AUTO,
    reasoning_parser: str = AUTO,
    template_source: str | None = None,
) -> TextProcessor:
    """Of the base, with its own template, or with `template_source`. ValueError when that is not a template."""
    if template_source is not None:
        tokenizer.chat_template, tokenizer.tool_template = template_source, None
    template, tool_template = trusted_templates(tokenizer, max_chars)
    return TextProcessor(
        tokenizer,
        TokenText(tokenizer),
        template,
        tool_template,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
    )


def trusted_templates(tokenizer: Tokenizer, max_chars: int) -> tuple[TrustedTemplate | None, TrustedTemplate | None]:
    """The base's templates, of all chats and of those with tools, with this tokenizer's named tokens."""
    plain, with_tools = (
        None if source is None else TrustedTemplate(ChatTemplate(source, tokenizer.named_tokens, max_chars))
        for source in (tokenizer.chat_template, tokenizer.tool_template)
    )
    return plain, with_tools
