"""The body of a request as a schema. Members that no schema here has are refused when they would change the output,
else ignored by name."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fastapi import Request

from ..http.errors import invalid
from ..http.json_body import convert, read_json
from ..observability.refusal_log import MODEL
from .schemas import ChatMessage, GenerationFields

IGNORED_HEADER = "x-loraplex-ignored-fields"
MAX_NAMED = 16
Fields = TypeVar("Fields", bound=GenerationFields)

HARMLESS: dict[str, tuple[object, ...]] = {
    "metadata": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "parallel_tool_calls": (True, False),
    "request_id": (),
    "guided_decoding_backend": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "prediction": (),
    "spaces_between_special_tokens": (True,),
    "stream_options": (),
}
"""Known members that cannot change the text, with the values at which nothing is missing."""

HARMLESS_IN_MESSAGES = frozenset({"id", "refusal", "annotations", "cache_control"})
"""What clients send back of an answer, or for billing."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "bad_words": ([],),
    "documents": ([],),
    "suffix": ("",),
    "best_of": (1,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "include_reasoning": (True,),
    "logits_processors": ([],),
    "num_beams": (1,),
    "diversity_penalty": (0,),
    "detokenize": (True,),
    "echo": (False,),
    "typical_p": (1,),
    "top_a": (0,),
    "tfs": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "smoothing_factor": (0,),
    "no_repeat_ngram_size": (0,),
    "mirostat": (0,),
    "mirostat_tau": (5,),
    "mirostat_eta": (0.1,),
    "dry_multiplier": (0,),
    "dry_base": (1.75,),
    "dry_allowed_length": (2,),
    "xtc_probability": (0,),
    "xtc_threshold": (0.1,),
    "repeat_penalty": (1,),
    "typical": (1,),
    "top_n_sigma": (-1, 0),
    "min_new_tokens": (0,),
    "no_stop_trim": (False,),
    "stop_sequences": ([],),
    "bad_words_ids": ([],),
}
"""Known members that are not supported, with the values at which they change nothing.

Settings of a sampler that is off (mirostat, DRY, XTC) may have their usual defaults.
"""

REFUSED = frozenset(
    {
        *("guided_whitespace_pattern", "structural_tag", "chat_template", "audio"),
        *(
            "web_search_options",
            "truncate_prompt_tokens",
            "prompt_embeds",
            "mm_processor_kwargs",
            "logits_processor_args",
        ),
        *("lora_request", "kv_transfer_params", "vllm_xargs", "thinking_token_budget", "reasoning"),
        "repetition_detection",
        *("regex", "ebnf", "stop_regex", "lora_path", "max_new_tokens", "custom_logit_processor"),
        *("grammar", "json_schema", "n_predict"),
    }
)
"""Known members that change the output at any value."""


def check_fields(body: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """Names of the members that are ignored, those of messages too. ApiError 400 names the first that is known and not
    supported."""
    others = [name for name in body if name not in known]
    for name in others:
        _refuse_unsupported(name, body)
    ignored = (name for name in others if name not in NEUTRAL and not is_among(body[name], HARMLESS.get(name, ())))
    return [*ignored, *_ignored_in_messages(body.get("messages"))]


def _ignored_in_messages(messages: Any) -> list[str]:
    """What templates are not handed; members that say nothing are left out."""
    listed = [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
    said = {name for message in listed for name, value in message.items() if value not in (None, [], {}, "")}
    return sorted(f"messages.{name}" for name in said.difference(ChatMessage.__struct_fields__, HARMLESS_IN_MESSAGES))


def ignored_header(names: list[str]) -> dict[str, str]:
    """A response header that names what was ignored; empty when nothing was."""
    safe = [re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:64] for name in names[:MAX_NAMED]]
    return {IGNORED_HEADER: ", ".join(safe)} if safe else {}


def _refuse_unsupported(name: str, body: Mapping[str, Any]) -> None:
    value = body[name]
    if name in ("tools", "functions"):
        choice = "tool_choice" if name == "tools" else "function_call"
        if value != [] and body.get(choice) != "none":
            raise invalid(f"{name} are for chats; send messages to /v1/chat/completions.", name, "unsupported")
    elif name == "best_of":
        if value != body.get("n", 1):
            raise invalid("best_of is not supported; use n and choose among the responses.", name, "unsupported")
    elif name in REFUSED or (name in NEUTRAL and not is_among(value, NEUTRAL[name])):
        raise invalid(
            f"{name} is not supported by this server and would change the output. Leave it out.", name, "unsupported"
        )


def is_among(value: object, neutral: tuple[object, ...]) -> bool:
    """Equality that tells false from 0."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)


async def read_fields(
    request: Request,
    body_timeout: float,
    schema: type[Fields],
    prepared: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> tuple[Fields, frozenset[str], dict[str, str]]:
    """The body as `schema`, the names of its members, and response headers that name what was ignored. `prepared` may
    refuse members and leave others out."""
    body = prepared(await read_json(request, body_timeout))
    ignored = check_fields(body, schema.__struct_fields__)
    fields = convert(body, schema)
    note_model(request, fields.model)
    if fields.stream_options is not None and not fields.stream:
        raise invalid("stream_options is only for streams; set stream to true, or leave it out.", "stream_options")
    return fields, frozenset(body), ignored_header(ignored)


def note_model(request: Request, model: str) -> None:
    """What the request asks for, for the log of requests."""
    request.scope["state"][MODEL] = model
