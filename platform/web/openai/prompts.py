"""From messages and texts to token ids."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..chat_templates.chat_template import TemplateFailure
from ..http.errors import invalid
from ..inference.spec import check_chars
from ..settings.settings import Settings
from ..text.text_processor import Template, TextProcessor
from .schemas import ChatMessage, ChatRequest, CompletionRequest
from .tools.tool_messages import as_written, not_told, plain_calls, with_names_of_chance
from .tools.tools import FunctionDefinition, Tool, demands_call, offered_tools

SYSTEM = ("system", "developer")
ROLES = (*SYSTEM, "user", "assistant", "tool")
OWN_VARIABLES = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"),
        *("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"),
        "additional_special_tokens",
    }
)
"""What the server itself tells the chat template."""
REASONING: Final = ("reasoning_content", "reasoning")
ONLY_TEXT: Final = (
    "{field}: only parts of type text are supported. Images and sound are not read, whatever the model's "
    "checkpoint has for them. Leave the part out, or say in text what it shows."
)
NO_TEMPLATE: Final = (
    "This model has no chat template. Send the text as prompt instead, for an answer to /v1/completions."
)
ASKING: Final[list[dict[str, Any]]] = [{"role": "user", "content": "Hello"}]
"""Some templates tell of tools only where a user has the last word."""
NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}}
PROBE: Final = Tool(type="function", function=FunctionDefinition(name="f", description="A probe", parameters=NOTHING))


async def chat_prompt(text_processor: TextProcessor, chat: ChatRequest, max_chars: int) -> list[int]:
    """Token ids of the rendered chat. Raises ApiError that names the message at fault."""
    return await text_processor.encode(await chat_text(text_processor, chat, max_chars), chat.add_special_tokens)


async def chat_text(text_processor: TextProcessor, chat: ChatRequest, max_chars: int) -> str:
    """The rendered chat. Raises ApiError that names the message at fault."""
    tools = offered_tools(chat)
    template = (text_processor.tool_template if tools else None) or text_processor.template
    if template is None:
        raise invalid(NO_TEMPLATE, "messages", "no_chat_template")
    _check_variables(chat.chat_template_kwargs)
    style = text_processor.tool_style
    call_id = str if style is None else style.call_id
    messages = [_plain(message, number, template, call_id) for number, message in enumerate(chat.messages)]
    continued = _check_continuation(chat, messages)
    if text_processor.system_prompt is not None and all(message["role"] not in SYSTEM for message in messages):
        messages.insert(0, {"role": "system", "content": text_processor.system_prompt})
    add_prompt = not continued if chat.add_generation_prompt is None else chat.add_generation_prompt
    check_chars(_size(messages), max_chars, "messages")
    variables = chat.chat_template_kwargs
    if tools:
        variables = {**variables, "tools": [tool.as_json() for tool in tools]}
        check_chars(len(msgspec.json.encode(variables["tools"])), max_chars, "tools")
    try:
        text = await _rendered(template, messages, chat, (add_prompt, continued, variables))
    except TemplateFailure as error:
        raise invalid(f"{error}.", "messages", "chat_template_error") from None
    # A call that is demanded follows the grammar, whatever the model was told.
    if tools and not demands_call(chat) and not await _tells_of(tools, template, variables, [ASKING, messages]):
        raise not_told(tools)
    return text


async def _rendered(
    template: Template, messages: list[dict[str, Any]], chat: ChatRequest, rest: tuple[bool, bool, dict[str, Any]]
) -> str:
    """With contents as texts, which most templates want. Some read lists of parts alone: they leave out what users
    say in a text, or fail on it. Raises TemplateFailure."""
    failure, text = None, ""
    try:
        text = await template.render(as_written(messages, template.source), *rest)
    except TemplateFailure as error:
        failure = error
    if failure is None and all(it["content"].strip() in text for it in messages if it["role"] == "user"):
        return text
    in_parts = _in_parts(messages, chat)
    parts = [part for message in in_parts if message["role"] == "user" for part in message["content"]]
    try:
        other = await template.render(as_written(in_parts, template.source), *rest)
    except TemplateFailure:
        other = ""
    # One that cuts or changes a text would write the list itself down.
    is_read = not any(str(part) in other for part in parts)
    if parts and is_read and all(part["text"].strip() in other for part in parts):
        return other
    if failure is not None:
        raise failure
    return text


def _in_parts(messages: list[dict[str, Any]], chat: ChatRequest) -> list[dict[str, Any]]:
    """The same messages with contents as lists of parts, as they were sent where they were lists."""
    sent = [None] * (len(messages) - len(chat.messages)) + [message.content for message in chat.messages]
    return [
        message
        | {
            "content": [
                {"type": "text", "text": part if isinstance(part, str) else part.text}
                for part in (content if isinstance(content, list) else [message["content"]])
            ]
        }
        for message, content in zip(messages, sent, strict=True)
    ]


async def takes_tools(text_processor: TextProcessor) -> bool:
    """Whether the chat template tells the model of tools."""
    template = text_processor.tool_template or text_processor.template
    return template is not None and await _tells_of([PROBE], template, {}, [ASKING])


async def _tells_of(
    tools: list[Tool], template: Template, variables: dict[str, Any], chats: list[list[dict[str, Any]]]
) -> bool:
    """Whether the template names every tool in one of the chats: those that do not know tools ignore them."""
    renamed = with_names_of_chance(tools)
    variables = {**variables, "tools": [tool.as_json() for tool in renamed]}
    for chat in chats:
        try:
            text = await template.render(chat, True, False, variables)
        except TemplateFailure:
            continue
        if all(tool.function.name in text for tool in renamed):
            return True
    return False


def _size(messages: list[dict[str, Any]]) -> int:
    """Characters of the texts, and of the calls."""
    calls = sum(len(msgspec.json.encode(message["tool_calls"])) for message in messages if "tool_calls" in message)
    return calls + sum(len(message.get(name, "")) for message in messages for name in ("content", *REASONING))


async def text_prompt(
    text_processor: TextProcessor, text: str, add_special_tokens: bool, max_chars: int, field: str = "prompt"
) -> list[int]:
    check_chars(len(text), max_chars, field)
    return await text_processor.encode(text, add_special_tokens)


async def completion_prompts(
    text_processor: TextProcessor, completion: CompletionRequest, settings: Settings
) -> list[list[int]]:
    """One list of ids for each prompt of the request."""
    prompt, max_chars = completion.prompt, settings.max_prompt_chars
    if isinstance(prompt, list):
        check_chars(sum(len(one) for one in prompt if isinstance(one, str)), max_chars, "prompt")
    return await listed_prompts(
        text_processor, prompt, "prompt", settings.max_prompts, settings, completion.add_special_tokens
    )


async def listed_prompts(
    text_processor: TextProcessor,
    given: str | list[str | list[int] | int],
    field: str,
    most: int,
    settings: Settings,
    add_special_tokens: bool = True,
) -> list[list[int]]:
    """One list of ids for each prompt: a text, a list of ids, or a list of either. `field` names them in errors."""
    prompts, max_chars = _split(given, field), settings.max_prompt_chars
    if not prompts:
        raise invalid(f"{field} is an empty list; send a string, a list of strings or lists of token ids.", field)
    if len(prompts) > most:
        raise invalid(f"{field} has {len(prompts)} entries; this server takes at most {most} in one request.", field)
    return [
        await text_prompt(text_processor, prompt, add_special_tokens, max_chars, field)
        if isinstance(prompt, str)
        else prompt
        for prompt in prompts
    ]


def _split(prompt: str | list[str | list[int] | int], field: str) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    ids = [entry for entry in prompt if isinstance(entry, int)]
    others = [entry for entry in prompt if not isinstance(entry, int)]
    if ids and others:
        raise invalid(f"{field} mixes token ids with strings or lists; send one kind.", field)
    return [ids] if ids else others


def _plain(message: ChatMessage, number: int, template: Template, call_id: Callable[[str], str]) -> dict[str, Any]:
    """The message as the template sees it; `call_id`: ids of calls as it wants them."""
    path = f"messages[{number}]"
    if message.role not in ROLES:
        raise invalid(f"{path}.role must be one of {', '.join(ROLES)}; got {message.role[:40]!a}.", f"{path}.role")
    for member in ("prefix", "partial"):
        if getattr(message, member):
            words = f"{path}.{member} is not supported; send continue_final_message: true beside messages."
            raise invalid(words, f"{path}.{member}", "unsupported")
    if message.tool_calls and message.role != "assistant":
        raise invalid(f"{path}.tool_calls: only assistant messages can have tool calls.", f"{path}.tool_calls")
    # Templates written before the developer role know it as system.
    role = "system" if message.role == "developer" and "developer" not in template.source else message.role
    plain = {"role": role, "content": _text(message, path)}
    extra: dict[str, Any] = {name: getattr(message, name) for name in ("name", *REASONING)}
    if message.tool_call_id is not None:
        extra["tool_call_id"] = call_id(message.tool_call_id)
    if message.tool_calls:
        extra["tool_calls"] = plain_calls(message.tool_calls, path, template.source, call_id)
    return plain | {name: value for name, value in extra.items() if value is not None}


def _text(message: ChatMessage, path: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is None and message.tool_calls:
        return ""
    if message.content is None:
        raise invalid(f"{path}.content is missing; it must be a string or a list of text parts.", f"{path}.content")
    for number, part in enumerate(message.content):
        field = f"{path}.content[{number}]"
        if part.type not in ("text", "input_text"):
            raise invalid(ONLY_TEXT.format(field=field), f"{field}.type", "unsupported")
        if part.text is None:
            raise invalid(f"{field} is of type text and needs a text.", f"{field}.text")
    return "\n".join(part.text or "" for part in message.content)


def _check_variables(variables: dict[str, Any]) -> None:
    name = next((name for name in variables if name in OWN_VARIABLES), None)
    if name is not None:
        raise invalid(
            f"chat_template_kwargs must not set {name}, which the server sets itself. Leave it out.",
            "chat_template_kwargs",
        )


def _check_continuation(chat: ChatRequest, messages: list[dict[str, Any]]) -> bool:
    if chat.continue_final_message and chat.add_generation_prompt:
        raise invalid(
            "continue_final_message and add_generation_prompt cannot be combined; leave out add_generation_prompt.",
            "continue_final_message",
        )
    if chat.continue_final_message and messages[-1]["role"] != "assistant":
        raise invalid(
            "continue_final_message needs an assistant message as the last message.", "continue_final_message"
        )
    return chat.continue_final_message
