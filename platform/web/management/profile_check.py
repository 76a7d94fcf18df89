"""Is this a serving profile that requests can be served with? Its defaults are judged as a request's own fields."""

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loraplex.engine.constraints.check import check_constraint
from loraplex.registry.adapters.profiles import ServingProfile, check_texts

from ..chat_templates.chat_template import TemplateFailure
from ..http.errors import invalid
from ..http.json_body import convert
from ..http.refusals import as_api_error
from ..inference.spec import parameters_checked
from ..openai.profile_defaults import DEFAULTS
from ..openai.response_format import FORMS, schema_form
from ..openai.schemas import GenerationFields
from ..text.text_processor import Template, TextProcessor
from ..text.text_processor_cache import TextProcessorCache
from .profile_parsers import PARSERS

OTHER_FORMS: Final = frozenset({"schema", "structural_tag", "regex", "choice", "grammar", *FORMS})
CHECKS: Final = threading.Semaphore(2)
"""Schemas at once, each in a process of its own."""
MOST_TOKENS: Final = 2**31
ANY_VOCABULARY: Final = 2**31
"""A profile has no token ids."""
USER: Final = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True, slots=True)
class ProfileTrial:
    """Where a profile is tried out. `owner`: whose templates rest when one was too slow."""

    text_processors: TextProcessorCache
    tokenizer_digest: str | None
    owner: str
    max_model_len: int
    folder: Path
    """Of the base's checkpoint."""


def read_profile(document: Mapping[str, Any]) -> ServingProfile:
    """The profile that a JSON object says. Raises ApiError that names the field."""
    for name in document:
        if name in OTHER_FORMS:
            message = f"{name} is not supported in profiles: set the response format with json_schema, a JSON Schema."
            raise invalid(message, name, "unsupported")
    profile = convert(_tidy(document), ServingProfile)
    with as_api_error():
        check_texts(profile)
    for field, known in PARSERS.items():
        parser = getattr(profile, field)
        if parser is not None and parser not in known:
            raise invalid(f"{field} must be one of {', '.join(known)}; got {parser[:40]!a}.", field)
    _check_limits(profile)
    _check_sampling(profile)
    return profile


async def try_profile(profile: ServingProfile, bench: ProfileTrial) -> None:
    """Render a simple conversation as it would be, and compile the schema. Raises ApiError that names the field."""
    if profile.chat_template is not None and not bench.text_processors.allowed:
        message = "chat_template is refused: this server does not allow chat templates from adapters. The operator can"
        raise invalid(
            f"{message} allow them with adapter_tokenizers or LORAPLEX_ADAPTER_TOKENIZERS=true.", "chat_template"
        )
    base = await bench.text_processors.of(bench.tokenizer_digest)
    if profile.json_schema is not None:
        await asyncio.to_thread(_try_schema, profile.json_schema, bench.folder, base)
    if profile.chat_template is None and profile.system_prompt is None:
        return
    text_processor = bench.text_processors.with_profile(base, profile, bench.owner, trial=True)
    if text_processor.template is None:
        raise invalid("system_prompt needs a chat template, and this model has none. Set one.", "system_prompt")
    text = await _rendered(text_processor.template, profile)
    tokens = len(await text_processor.encode(text, add_special_tokens=False))
    if tokens >= bench.max_model_len:
        message = f"{_cause(profile)} makes {tokens} tokens of a simple conversation; this model takes fewer than"
        raise invalid(f"{message} {bench.max_model_len} of prompt and answer. Shorten it.", _cause(profile))


def _try_schema(schema: dict[str, Any], folder: Path, text_processor: TextProcessor) -> None:
    form = schema_form(schema)
    try:
        with CHECKS:
            check_constraint(folder, form, text_processor.added_tokens)
    except ValueError as error:
        raise invalid(f"json_schema cannot be used: {error}.", "json_schema") from None


async def _rendered(template: Template, profile: ServingProfile) -> str:
    field, system = _cause(profile), [{"role": "system", "content": profile.system_prompt}]
    try:
        text = await template.render([*(system if profile.system_prompt else []), *USER], True, False, {})
        plain = await template.render(USER, True, False, {}) if profile.system_prompt else None
    except TemplateFailure as error:
        raise invalid(f"{field} cannot be used on a simple conversation: {error}.", field) from None
    if not text.strip():
        raise invalid("chat_template renders a simple conversation as empty text.", field)
    if text == plain:
        raise invalid("system_prompt would have no effect: the chat template ignores system messages.", "system_prompt")
    return text


def _cause(profile: ServingProfile) -> str:
    return "system_prompt" if profile.chat_template is None else "chat_template"


def _tidy(document: Mapping[str, Any]) -> dict[str, Any]:
    """Without texts and lists that are empty, which say nothing; `stop` may be one string, as in requests."""
    fields = {name: value for name, value in document.items() if value not in ("", [])}
    return fields | ({"stop": [fields["stop"]]} if isinstance(fields.get("stop"), str) else {})


def _check_sampling(profile: ServingProfile) -> None:
    given = profile.given()
    fields = convert({"model": "-"} | {name: given[name] for name in DEFAULTS if name in given}, GenerationFields)
    with parameters_checked():
        fields.sampling(profile.max_tokens, None, None).verify(ANY_VOCABULARY)


def _check_limits(profile: ServingProfile) -> None:
    default, limit = profile.max_tokens, profile.max_tokens_limit
    for field, value in (("max_tokens", default), ("max_tokens_limit", limit)):
        if value is not None and not 1 <= value < MOST_TOKENS:
            raise invalid(f"{field} must be between 1 and {MOST_TOKENS - 1}.", field)
    if default is not None and limit is not None and default > limit:
        raise invalid(f"max_tokens {default} is above max_tokens_limit {limit}.", "max_tokens")
