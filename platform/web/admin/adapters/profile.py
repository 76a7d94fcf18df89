"""The serving profile on an adapter's page: a form, and the prompt that it makes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.adapters.profiles import MAX_BYTES, ServingProfile
from loraplex.registry.adapters.views import Adapter, Version
from loraplex.registry.names import parse_reference

from ...access.caller import Caller
from ...endpoints.authentication import form_fields
from ...endpoints.dependencies import CallerOf, StateOf
from ...http.errors import ApiError
from ...http.json_body import convert
from ...management.profile_change import bench_of, clear_profile, find_profile, set_profile
from ...management.profile_check import read_profile, try_profile
from ...management.profile_parsers import PARSERS
from ...openai.prompts import chat_text
from ...openai.schemas import ChatRequest
from ...state import State
from ...text.text_processor_cache import TextProcessorCache
from ...units import count_words
from ..page import PageRoute, go_to, is_fragment, page
from .profile_form import NUMBERS, as_document, as_fields, summary

SECTION: Final = "/adapters"
router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@dataclass(frozen=True, slots=True)
class ProfileView:
    """`fields`: what stands in the form. `problem`: why it was not saved, and `param` which field that is about."""

    name: str
    number: int
    words: str
    fields: Mapping[str, str]
    templates: bool
    """Whether the operator allows chat templates of adapters."""
    problem: str = ""
    param: str = ""
    done: str = ""
    numbers = NUMBERS
    limits = MAX_BYTES
    parsers = PARSERS


@dataclass(frozen=True, slots=True)
class Preview:
    """The text that a chat of one message becomes."""

    text: str
    tokens: str


def profile_view(state: State, adapter: Adapter, version: Version) -> ProfileView:
    """Of the version that the page shows, from memory."""
    return _view(
        state.text_processors, adapter.name, version, state.snapshots.current.profiles.get(version.profile_digest)
    )


@router.get("/{reference}/profile")
async def show(request: Request, reference: str, state: StateOf, caller: CallerOf) -> Response:
    """A fragment: the form of one version."""
    version, profile = await find_profile(state, caller, reference)
    return _section(request, _view(state.text_processors, parse_reference(reference).name, version, profile))


@router.post("/{reference}/profile")
async def save(request: Request, reference: str, state: StateOf, caller: CallerOf) -> Response:
    """An empty form removes the profile. What is refused stays in the form."""
    fields, (version, profile) = await form_fields(request), await find_profile(state, caller, reference)
    name = parse_reference(reference).name
    pinned = f"{name}@{version.number}"
    try:
        document = as_document(fields)
        await (set_profile(state, caller, pinned, document) if document else clear_profile(state, caller, pinned))
    except ApiError as error:
        if not is_fragment(request):
            raise
        refused = _view(
            state.text_processors, name, version, profile, fields, problem=error.message, param=error.param or ""
        )
        return _section(request, refused, 400)
    if not is_fragment(request):
        return go_to(request, f"{SECTION}/{name}?done=profile")
    done = "Saved. It applies to new requests." if document else "Removed. Requests use their own settings."
    version, profile = await find_profile(state, caller, pinned)
    return _section(request, _view(state.text_processors, name, version, profile, done=done))


@router.post("/{reference}/profile/preview")
async def preview(request: Request, reference: str, state: StateOf, caller: CallerOf) -> Response:
    """A fragment: what a message becomes with what stands in the form, saved or not."""
    fields, (version, _) = await form_fields(request), await find_profile(state, caller, reference)
    try:
        found, problem, status = await _preview(state, caller, version, fields), "", 200
    except ApiError as error:
        found, problem, status = None, error.message, error.status
    return page(request, "adapters/_profile_preview.html", SECTION, status, preview=found, problem=problem)


async def _preview(state: State, caller: Caller, version: Version, fields: Mapping[str, str]) -> Preview:
    document, text_processor = as_document(fields), await state.text_processors.of(version.tokenizer_digest)
    if document:
        bench = bench_of(state, caller, version)
        profile = read_profile(document)
        await try_profile(profile, bench)
        text_processor = state.text_processors.with_profile(text_processor, profile, bench.owner, trial=True)
    message = {"role": "user", "content": fields.get("message", "").replace("\r\n", "\n")}
    chat = convert({"model": "-", "messages": [message]}, ChatRequest)
    text = await chat_text(text_processor, chat, state.settings.max_prompt_chars)
    tokens = len(await text_processor.encode(text, add_special_tokens=False))
    return Preview(text, count_words(tokens, "token"))


def _view(
    text_processors: TextProcessorCache,
    name: str,
    version: Version,
    profile: ServingProfile | None,
    typed: Mapping[str, str] | None = None,
    problem: str = "",
    param: str = "",
    done: str = "",
) -> ProfileView:
    return ProfileView(
        name=name,
        number=version.number,
        words="" if profile is None else summary(profile),
        fields=as_fields(profile) if typed is None else typed,
        templates=text_processors.allowed,
        problem=problem,
        param=param,
        done=done,
    )


def _section(request: Request, view: ProfileView, status: int = 200) -> Response:
    return page(request, "adapters/_profile.html", SECTION, status, profile=view)
