"""What `serve` says when it is ready: where everything is, how to log in, and one curl that works as pasted.

Logs keep it, so it has no secret: a terminal shows what was made at the first start, once.
"""

import json
import shlex
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from loraplex.engine.pooling.wanted import PoolingKind
from loraplex.registry.registry import Registry

from ...adapters.engine_door import EngineDoor
from ...observability.engine_memory import memory_words
from ...observability.kv_cache import dtype_words, tokens
from ...settings.settings import Settings
from ...state import State
from .demo import example_question

SHOWN_ADAPTERS = 8


@dataclass(frozen=True, slots=True)
class Login:
    """As it is shown."""

    password: str
    key: str


def print_banner(console: Console, state: State, first_start: bool, seconds: float) -> None:
    """`seconds`: how long the start took. Lines are never wrapped: a wrapped command cannot be pasted."""
    login = _login(state, shown=first_start and console.is_terminal)
    lines = _lines(state, login)
    title, width = f" loraplex is ready after {seconds:.1f} s ", max(map(len, lines)) + 2
    box = [
        f"┌─{title:─<{width - 1}}┐",
        *(f"│ {line:<{width - 1}}│" for line in lines),
        f"└{'─' * width}┘",
    ]
    for line in [*box, _curl(state, login), "", "Ctrl-C stops it."]:
        console.print(line, markup=False, soft_wrap=True)


def _lines(state: State, login: Login) -> list[str]:
    settings = state.settings
    adapters = _adapters(state.registry)
    more = " …" if len(adapters) > SHOWN_ADAPTERS else ""
    return [
        f"Dashboard   {_origin(state.settings)}/",
        f"API         {_origin(state.settings)}/v1",
        *([] if settings.grpc_port is None else [f"gRPC        {settings.host}:{settings.grpc_port}"]),
        f"Login       {state.credentials.admin_user} / {login.password}",
        f"Key         {login.key}",
        f"Kept in     {settings.data_dir / 'credentials.json'}",
        f"Models      {', '.join([state.base.name, *adapters[:SHOWN_ADAPTERS]])}{more}",
        *_cache_line(state.engine),
        *_memory_line(state.engine),
        *_scales_line(state.engine),
        *_quantization_line(state.engine),
    ]


def _login(state: State, shown: bool) -> Login:
    """What an operator has set, or changed since, is known to nobody else."""
    settings, known = state.settings, state.credentials
    password = None if settings.admin_password_text else known.admin_password
    key = None if settings.api_keys else known.api_key
    return Login(_words(password, shown), _words(key, shown))


def _words(secret: str | None, shown: bool) -> str:
    if secret is None:
        return "(known to you)"
    return secret if shown else "(loraplex credentials show)"


def _curl(state: State, login: Login) -> str:
    model = next(iter(_adapters(state.registry)), state.base.name)
    path, question = _example(state, model)
    body = json.dumps({"model": model, **question})
    key = "YOUR_KEY" if login.key.startswith("(") else login.key
    return (
        f"curl {_origin(state.settings)}{path} -H 'Content-Type: application/json' "
        f"-H 'Authorization: Bearer {key}' -d {shlex.quote(body)}"
    )


def _example(state: State, model: str) -> tuple[str, dict[str, Any]]:
    """A path that this model answers, and what to send there."""
    info = state.engine.info
    if info is None or not info.why_silent:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": example_question(model)}]}
    if info.classes is not None and info.classified_by is PoolingKind.ALL:
        return "/pooling", {"input": "Hello"}
    if info.classes is not None and len(info.classes.labels) == 1:
        return "/v1/rerank", {"query": "Hello", "documents": ["Good morning", "Goodbye"]}
    return "/v1/embeddings" if info.classes is None else "/classify", {"input": "Hello"}


def _origin(settings: Settings) -> str:
    host = settings.host
    return f"http://{'localhost' if host in ('0.0.0.0', '::') else host}:{settings.port}"


def _adapters(registry: Registry) -> list[str]:
    return [adapter.name for adapter, _ in registry.snapshots.current.servable()]


def _quantization_line(engine: EngineDoor) -> list[str]:
    info = engine.info
    return [f"Weights     {info.quantization}"] if info is not None and info.quantization else []


def _memory_line(engine: EngineDoor) -> list[str]:
    info = engine.info
    return [] if info is None else [f"Memory      {memory_words(info)}"]


def _scales_line(engine: EngineDoor) -> list[str]:
    info = engine.info
    return [f"KV scales   {info.kv_cache_scales}"] if info is not None and info.kv_cache_scales else []


def _cache_line(engine: EngineDoor) -> list[str]:
    """None of a model that keeps no keys and values."""
    info = engine.info
    if info is None or not info.num_blocks:
        return []
    return [f"KV cache    {tokens(info):,} tokens in {dtype_words(info)} on {info.device}"]
