"""From messages and texts to token ids."""

from typing import Any

from ..chat_template import TemplateFailure
from ..errors import invalid
from ..serving import check_chars
from ..state import State
from ..wording import Template, Wording
from .schemas import ChatMessage, ChatRequest, CompletionRequest

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


async def chat_prompt(state: State, wording: Wording, chat: ChatRequest) -> list[int]:
    """Token ids of the rendered chat. Raises ApiError that names the message at fault."""
    return await wording.encode(await chat_text(state, wording, chat), chat.add_special_tokens)


async def chat_text(state: State, wording: Wording, chat: ChatRequest) -> str:
    """The rendered chat. Raises ApiError that names the message at fault."""
    template = wording.template
    if template is None:
        raise invalid("This model has no chat template; use /v1/completions.", "messages", "no_chat_template")
    _check_variables(chat.chat_template_kwargs)
    messages = [_plain(message, number, template) for number, message in enumerate(chat.messages)]
    continued = _check_continuation(chat, messages)
    if wording.system_prompt is not None and all(message["role"] not in SYSTEM for message in messages):
        messages.insert(0, {"role": "system", "content": wording.system_prompt})
    add_prompt = not continued if chat.add_generation_prompt is None else chat.add_generation_prompt
    chars = sum(len(message["content"]) for message in messages)
    check_chars(chars, state, "messages")
    try:
        return await template.render(messages, add_prompt, continued, chat.chat_template_kwargs)
    except TemplateFailure as error:
        raise invalid(f"{error}.", "messages", "chat_template_error") from None


async def text_prompt(state: State, wording: Wording, text: str, add_special_tokens: bool) -> list[int]:
    check_chars(len(text), state, "prompt")
    return await wording.encode(text, add_special_tokens)


async def completion_prompts(state: State, wording: Wording, completion: CompletionRequest) -> list[list[int]]:
    """One list of ids for each prompt of the request: a text, a list of ids, or a list of either."""
    prompts = _split(completion.prompt)
    if not prompts:
        raise invalid("prompt is an empty list; send a string, a list of strings or lists of token ids.", "prompt")
    if len(prompts) > state.settings.max_prompts:
        limit = state.settings.max_prompts
        raise invalid(f"prompt has {len(prompts)} entries; this server takes at most {limit} in one request.", "prompt")
    check_chars(sum(len(prompt) for prompt in prompts if isinstance(prompt, str)), state, "prompt")
    return [
        await text_prompt(state, wording, prompt, completion.add_special_tokens) if isinstance(prompt, str) else prompt
        for prompt in prompts
    ]


def _split(prompt: str | list[str | list[int] | int]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    ids = [entry for entry in prompt if isinstance(entry, int)]
    others = [entry for entry in prompt if not isinstance(entry, int)]
    if ids and others:
        raise invalid("prompt mixes token ids with strings or lists; send one kind.", "prompt")
    return [ids] if ids else others


def _plain(message: ChatMessage, number: int, template: Template) -> dict[str, Any]:
    """The message as the template sees it."""
    path = f"messages[{number}]"
    if message.role not in ROLES:
        raise invalid(f"{path}.role must be one of {', '.join(ROLES)}; got {message.role[:40]!a}.", f"{path}.role")
    if message.tool_calls or message.function_call is not None:
        field = "tool_calls" if message.tool_calls else "function_call"
        raise invalid(f"{path}.{field} is not supported by this server yet.", f"{path}.{field}", "unsupported")
    # Templates written before the developer role know it as system.
    role = "system" if message.role == "developer" and "developer" not in template.source else message.role
    plain = {"role": role, "content": _text(message, path)}
    extra = {"name": message.name, "tool_call_id": message.tool_call_id}
    return plain | {name: value for name, value in extra.items() if value is not None}


def _text(message: ChatMessage, path: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        raise invalid(f"{path}.content is missing; it must be a string or a list of text parts.", f"{path}.content")
    for number, part in enumerate(message.content):
        if part.type not in ("text", "input_text") or part.text is None:
            field = f"{path}.content[{number}]"
            raise invalid(
                f"{field}: only parts of type text with a text are supported.", f"{field}.type", "unsupported"
            )
    return "\n".join(part.text or "" for part in message.content)


def _check_variables(variables: dict[str, Any]) -> None:
    name = next((name for name in variables if name in OWN_VARIABLES), None)
    if name is not None:
        raise invalid(
            f"chat_template_kwargs must not set {name}, which the server gives to the chat template. Leave it out.",
            "chat_template_kwargs",
        )


def _check_continuation(chat: ChatRequest, messages: list[dict[str, Any]]) -> bool:
    if chat.continue_final_message and chat.add_generation_prompt:
        raise invalid(
            "continue_final_message and add_generation_prompt exclude each other; leave the latter out.",
            "continue_final_message",
        )
    if chat.continue_final_message and messages[-1]["role"] != "assistant":
        raise invalid("continue_final_message needs a last message of the assistant.", "continue_final_message")
    return chat.continue_final_message
