"""ChatTemplate: the operator's Jinja template, rendered as transformers does, in a sandbox and within bounds."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SECONDS = 2.0
TIME_CHECKS = 64
"""The clock is read once in so many pieces of output."""
CONTINUATION = "\x00the last message ends here\x00 "
"""Its last space shows whether the template trims messages."""


class TemplateFailure(ValueError):
    """The template refused these messages, in its own words."""


class GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render_body"), [], [], body).set_lineno(line)

    def _render_body(self, caller: Macro) -> str:
        return str(caller())


class ChatTemplate:
    def __init__(self, source: str, named_tokens: Mapping[str, str], max_chars: int) -> None:
        """`named_tokens` are bos_token and the like. ValueError when the source is not a template."""
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the model's chat template is broken in line {error.lineno}: {error.message}") from None
        self.source = source
        self._named_tokens = dict(named_tokens)
        self._max_chars = max_chars

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Raises TemplateFailure when the template refuses or a bound is exceeded."""
        if continue_final_message:
            messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + CONTINUATION}]
        context = {
            **self._named_tokens,
            **(variables or {}),
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._render_within_bounds({"tools": None, "documents": None, **context})
        return _cut_continuation(text) if continue_final_message else text

    def _render_within_bounds(self, context: dict[str, Any]) -> str:
        deadline, pieces, size = time.monotonic() + MAX_SECONDS, [], 0
        try:
            for count, piece in enumerate(self._template.generate(context)):
                pieces.append(piece)
                size += len(piece)
                if size > self._max_chars:
                    raise TemplateFailure(f"the chat is longer than {self._max_chars} characters; send fewer messages")
                if count % TIME_CHECKS == 0 and time.monotonic() > deadline:
                    raise TemplateFailure(f"the chat took longer than {MAX_SECONDS} s to render; send fewer messages")
        except jinja2.TemplateError as error:
            raise TemplateFailure(f"the model's chat template refused the messages: {error.message}") from None
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            if isinstance(error, TemplateFailure):
                raise
            raise TemplateFailure(f"the model's chat template failed on these messages: {error}") from None
        return "".join(pieces)


def _environment() -> ImmutableSandboxedEnvironment:
    """As transformers sets it up; templates rely on its whitespace rules and its few functions."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    functions: dict[str, Callable[..., Any]] = {"raise_exception": _raise_exception, "strftime_now": _now}
    environment.globals.update(functions)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter would escape HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _cut_continuation(text: str) -> str:
    """Everything before the end of the last message, so that generation goes on inside it."""
    end = text.rfind(CONTINUATION.rstrip())
    if end < 0:
        raise TemplateFailure("continue_final_message is set, but the chat template drops the last message")
    trimmed = not text.startswith(CONTINUATION, end)
    return text[:end].rstrip() if trimmed else text[:end]
