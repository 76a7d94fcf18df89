"""The playground: one prompt to base and adapters side by side. The page calls /v1/chat/completions itself."""

from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..dependencies import CallerOf, StateOf
from .page import page

DEFAULT_PROMPT: Final = "Tell me about the weather in Paris."
PRESELECTED: Final = 3

router = APIRouter(include_in_schema=False)


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
    chosen = {model} if model in servable else set(servable[: PRESELECTED - 1])
    models = [Choice(state.settings.base_name, True, True)]
    models += [Choice(name, False, name in chosen) for name in servable]
    return page(request, "playground.html", "/playground", models=models, prompt=prompt)
