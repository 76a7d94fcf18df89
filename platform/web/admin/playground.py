"""The playground: one prompt to base and adapters side by side. The page calls the OpenAI endpoints itself."""

from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..dependencies import CallerOf, StateOf
from .page import PageRoute, page

DEFAULT_PROMPT: Final = "A driver called Lina paid 80 euros for 15 white kites in Paris."
PRESELECTED: Final = 2
FILTER_FROM: Final = 12

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@dataclass(frozen=True, slots=True)
class Choice:
    id: str
    base: bool
    chosen: bool


@router.get("/playground")
async def playground(
    request: Request, state: StateOf, caller: CallerOf, model: str = "", prompt: str = DEFAULT_PROMPT
) -> Response:
    servable = [adapter.name for adapter, _ in state.registry.snapshots.current.servable(caller.tenant)]
    chosen = {model} if model in servable else set(servable[:PRESELECTED])
    models = [Choice(state.settings.base_name, True, True)]
    models += [Choice(name, False, name in chosen) for name in sorted(servable, key=lambda name: name not in chosen)]
    return page(
        request,
        "playground.html",
        "/playground",
        models=models,
        prompt=prompt,
        chat=state.template is not None,
        many=len(models) > FILTER_FROM,
        max_tokens=state.max_model_len,
    )
