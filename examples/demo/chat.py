"""The chat format: special tokens, the template users' software runs, and the same in Python for training text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = [PAD, BEGIN, END, *(f"<|{role}|>" for role in ROLES)]

RESULT = "Result: "
"""What a tool has answered comes as a user's turn."""

TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'tool' -%}{{- '<|user|>Result: ' -}}"
    "{%- else -%}{{- '<|' + message['role'] + '|>' -}}{%- endif -%}"
    "{%- if tools and message['role'] == 'user' -%}{{- '[' -}}"
    "{%- for tool in tools -%}"
    "{{- tool.function.name + '(' + ((tool.function.parameters or {}).properties or {}) | join(', ') + ')' -}}"
    "{{- ', ' if not loop.last -}}"
    "{%- endfor -%}{{- '] ' -}}{%- endif -%}"
    "{{- (message['content'] or '') | trim -}}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{- '\\n' if message['content'] or not loop.first -}}"
    "{{- '<tool_call>\\n{\"name\": ' + call.function.name | tojson + ', \"arguments\": ' -}}"
    "{{- call.function.arguments | tojson + '}\\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- eos_token -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

Message = dict[str, str]


def render(messages: list[Message], *, answer_next: bool = False) -> str:
    """What TEMPLATE gives for these messages, the begin token included."""
    turns = [f"<|{message['role']}|>{message['content'].strip()}{END}" for message in messages]
    return BEGIN + "".join(turns) + ("<|assistant|>" if answer_next else "")


def exchange(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def offer(tools: Sequence[tuple[str, Sequence[str]]]) -> str:
    """What stands before a user's words: each tool's name and the names of its parameters."""
    signatures = (f"{name}({', '.join(parameters)})" for name, parameters in tools)
    return f"[{', '.join(signatures)}] "


def calls_text(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """An answer that calls tools with these arguments."""
    texts = (f'{{"name": {json.dumps(name)}, "arguments": {json.dumps(arguments)}}}' for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)
