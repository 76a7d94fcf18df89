"""The playground: one prompt to base, adapters and versions side by side. The page calls the OpenAI endpoints."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.errors import AdapterUnavailable, UnknownAdapter
from loraplex.registry.snapshot import Snapshots

from ..endpoints.dependencies import CallerOf, StateOf
from ..settings.settings import Settings
from ..state import State
from .adapters.profile_form import summary
from .page import PageRoute, address_of, is_fragment, page
from .snippets import snippets, use_of

DEFAULT_PROMPT: Final = "A driver called Lina paid 80 euros for 15 white kites in Paris."
PRESELECTED: Final = 2
SEARCH_FROM: Final = 12
MOST_CHOICES: Final = 60

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@dataclass(frozen=True, slots=True)
class ModelOption:
    id: str
    base: bool
    chosen: bool


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """How a model with a serving profile is asked. `fields`: those of the page's form that it has a say on."""

    words: str
    fields: str


@router.get("/playground")
async def playground(
    request: Request,
    state: StateOf,
    caller: CallerOf,
    model: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    prompt: str = DEFAULT_PROMPT,
    search: str = "",
) -> Response:
    """The page, or for htmx the models that match a search, after those that are chosen."""
    references = list(_references(state.snapshots, caller.tenant))
    found = _choices(state.settings, references, model, search, preselect=not is_fragment(request))
    return page(
        request,
        "playground/_models.html" if is_fragment(request) else "playground/page.html",
        "/playground",
        models=found[:MOST_CHOICES],
        profiles=_profiles(state.snapshots, caller.tenant, [one.id for one in found[:MOST_CHOICES] if not one.base]),
        hidden=max(0, len(found) - MOST_CHOICES),
        prompt=prompt,
        chat=state.template is not None,
        many=len(references) > SEARCH_FROM,
        max_tokens=state.max_model_len,
        **_silent_model(request, state, caller.tenant),
    )


def _silent_model(request: Request, state: State, tenant: str) -> dict[str, Any]:
    """Of a base that generates no text: why, and code that asks it for what it answers."""
    info, base = state.engine.info, state.settings.base_name
    if info is None or not info.why_silent:
        return {}
    why = f"{info.why_silent[0].upper()}{info.why_silent[1:]}"
    return {"why_silent": why, "snippets": snippets(address_of(request), base, use_of(state, base, tenant))}


def _profiles(snapshots: Snapshots, tenant: str, models: Sequence[str]) -> dict[str, ProfileSummary]:
    """Of those models that have one."""
    snapshot, asked = snapshots.current, {}
    for model in models:
        with suppress(AdapterUnavailable, UnknownAdapter):
            found = snapshot.resolve(model, tenant)
            if found is not None and found.profile is not None:
                asked[model] = _asked(found.profile)
    return asked


def _asked(profile: ServingProfile) -> ProfileSummary:
    given = profile.given()
    limited = ["max_tokens"] if given.keys() & {"max_tokens", "max_tokens_limit"} else []
    return ProfileSummary(
        summary(profile), " ".join([*limited, *(name for name in ("temperature", "seed") if name in given)])
    )


def _choices(
    settings: Settings, references: Sequence[str], chosen: Collection[str], search: str, preselect: bool
) -> list[ModelOption]:
    """The base first, then what is chosen; unless a page is asked for models that are there, the first few are."""
    base, asked = settings.base_name, set(chosen)
    picked = [one for one in references if one in asked]
    if preselect and not picked:
        picked = list(islice((one for one in references if "@" not in one), PRESELECTED))
    chosen_first = [ModelOption(one, False, True) for one in picked]
    return [ModelOption(base, True, preselect or base in asked), *chosen_first, *_others(references, picked, search)]


def _others(references: Sequence[str], picked: Collection[str], search: str) -> Iterator[ModelOption]:
    wanted = search.strip().lower()
    return (ModelOption(one, False, False) for one in references if wanted in one and one not in picked)


def _references(snapshots: Snapshots, tenant: str) -> Iterator[str]:
    """All that `model` may be beside the base: names, and versions and aliases of those that have several."""
    for adapter, _ in snapshots.current.servable(tenant):
        yield adapter.name
        yield from _versions(adapter)


def _versions(adapter: Adapter) -> Iterator[str]:
    enabled = [version.number for version in adapter.versions if version.enabled and not version.broken]
    if len(enabled) > 1:
        yield from (f"{adapter.name}@{number}" for number in reversed(enabled))
    yield from (f"{adapter.name}@{alias}" for alias, number in sorted(adapter.aliases.items()) if number in enabled)
