"""What `serve` says when it is ready: where everything is, how to log in, and one curl that works as pasted.

Containers keep it in their logs: what an operator has set as a secret is not in it.
"""

import json
import shlex

from rich.console import Console

from ..engine_memory import memory_words
from ..kv_cache import dtype_words, tokens
from ..state import State
from .demo import example_question

SHOWN_ADAPTERS = 8


def print_banner(console: Console, state: State) -> None:
    """Lines are never wrapped: a wrapped command cannot be pasted."""
    lines = _lines(state)
    width = max(map(len, lines)) + 2
    box = [
        f"┌─ loraplex is ready {'─' * (width - 20)}┐",
        *(f"│ {line:<{width - 1}}│" for line in lines),
        f"└{'─' * width}┘",
    ]
    for line in [*box, _curl(state), "", "Ctrl-C stops it."]:
        console.print(line, markup=False, soft_wrap=True)


def _lines(state: State) -> list[str]:
    settings = state.settings
    password, key = _made_by_us(state)
    adapters = _adapters(state)
    more = " …" if len(adapters) > SHOWN_ADAPTERS else ""
    return [
        f"Dashboard   {_origin(state)}/",
        f"API         {_origin(state)}/v1",
        f"Login       {state.credentials.admin_user} / {password or '(known to you)'}",
        f"Key         {key or '(known to you)'}",
        f"Kept in     {settings.data_dir / 'credentials.json'}",
        f"Models      {', '.join([state.base.name, *adapters[:SHOWN_ADAPTERS]])}{more}",
        f"KV cache    {_cache_words(state)}",
        *_memory_line(state),
        *_scales_line(state),
        *_quantization_line(state),
    ]


def _made_by_us(state: State) -> tuple[str | None, str | None]:
    """Password and key, where nobody else can tell them; what an operator has set is no matter for a log."""
    settings, known = state.settings, state.credentials
    password = None if settings.admin_password_text else known.admin_password
    return password, None if settings.api_key_text else known.api_key


def _curl(state: State) -> str:
    _, key = _made_by_us(state)
    model = next(iter(_adapters(state)), state.base.name)
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": example_question(model)}]})
    return (
        f"curl {_origin(state)}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-H 'Authorization: Bearer {key or 'YOUR_KEY'}' -d {shlex.quote(body)}"
    )


def _origin(state: State) -> str:
    host = state.settings.host
    return f"http://{'localhost' if host in ('0.0.0.0', '::') else host}:{state.settings.port}"


def _adapters(state: State) -> list[str]:
    return [adapter.name for adapter, _ in state.registry.snapshots.current.servable()]


def _quantization_line(state: State) -> list[str]:
    info = state.engine.info
    return [f"Weights     {info.quantization}"] if info is not None and info.quantization else []


def _memory_line(state: State) -> list[str]:
    info = state.engine.info
    return [] if info is None else [f"Memory      {memory_words(info)}"]


def _scales_line(state: State) -> list[str]:
    info = state.engine.info
    return [f"KV scales   {info.kv_cache_scales}"] if info is not None and info.kv_cache_scales else []


def _cache_words(state: State) -> str:
    info = state.engine.info
    return "" if info is None else f"{tokens(info):,} tokens in {dtype_words(info)} on {info.device}"
