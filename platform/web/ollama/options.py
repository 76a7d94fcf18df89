"""Ollama's options and members: which are refused, which are ignored by name, and what the others become."""

from collections.abc import Mapping
from typing import Any, Final

from ..http.errors import invalid
from .schemas import Asked, Options

RENAMED: Final = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
}
"""Ollama's option -> the field of a chat."""
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "typical_p": (0, 1),
    "tfs_z": (1,),
    "mirostat": (0,),
    "penalize_newline": (True,),
}
"""Options that are not supported, with the values at which they change nothing."""
INSTEAD: Final = {
    "context": "send the turns so far to /api/chat",
    "suffix": "no served model fills in the middle of a text",
    "template": "set a chat template in the serving profile, or send raw: true with the whole prompt",
    "images": "models read text alone",
    "_debug_render_only": "POST /tokenize shows the tokens of a chat",
}
EMPTY: Final[tuple[Any, ...]] = (None, "", [], False, {})


def ignored_members(body: Mapping[str, Any], known: tuple[str, ...]) -> list[str]:
    """Names of what is ignored. ApiError 400 names the first member or option that would change the answer."""
    for name, words in INSTEAD.items():
        if name in body and body[name] not in EMPTY:
            raise invalid(f"{name} is not supported: {words}.", name, "unsupported")
    _refuse_images(body.get("messages"))
    options = body.get("options")
    given: Mapping[str, Any] = options if isinstance(options, dict) else {}
    for name, values in NEUTRAL.items():
        if given.get(name) is not None and given[name] not in values:
            path = f"options.{name}"
            raise invalid(f"{path} is not supported and would change the output. Leave it out.", path, "unsupported")
    others = [name for name in body if name not in known and name not in INSTEAD]
    of_options = [name for name in given if name not in (*Options.__struct_fields__, *NEUTRAL)]
    return [*others, *(f"options.{name}" for name in of_options)]


def sampling_of(fields: Asked) -> dict[str, Any]:
    """Fields of a chat or a completion. Raises ApiError."""
    options = fields.options
    given = {ours: getattr(options, theirs) for theirs, ours in RENAMED.items()}
    if options.repeat_last_n == 0:
        given["repetition_penalty"] = None
    elif options.repeat_last_n not in (None, -1) and options.repeat_penalty not in (None, 1):
        words = "options.repeat_last_n: the penalty is for the whole text here. Send -1, or leave it out."
        raise invalid(words, "options.repeat_last_n", "unsupported")
    if options.num_predict is not None and options.num_predict >= 0:
        given["max_tokens"] = options.num_predict
    return {name: value for name, value in given.items() if value is not None}


def _refuse_images(messages: Any) -> None:
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict) and message.get("images"):
            path = f"messages[{number}].images"
            raise invalid(f"{path} is not supported: models read text alone.", path, "unsupported")
