"""GET /api/tags, /api/ps, /api/version and POST /api/show: what there is, as Ollama lists it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter, Request

import loraplex
from loraplex.registry.adapters.routes import Asker

from ..access.caller import Caller
from ..endpoints.dependencies import CallerOf, StateOf
from ..http.errors import invalid
from ..http.json_body import convert, read_json
from ..inference.resolve import find_model, find_served
from ..openai.prompts import takes_tools
from ..state import State
from ..text.text_processor import TextProcessor
from .as_chat import name_of
from .schemas import Show

router = APIRouter(tags=["Ollama"])
RESIDENT: Final = "resident"
NO_END: Final = "9999-12-31T23:59:59Z"
"""Models stay while there is room."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A name that `model` may be. The base may have several."""

    name: str
    digest: str
    size: int
    """Bytes of its files, or of the base's weights in memory."""
    created: datetime
    is_base: bool = False


@router.get("/api/version")
async def version() -> dict[str, Any]:
    """The version of this server."""
    return {"version": loraplex.__version__}


@router.get("/api/tags")
async def list_models(state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """All that `model` may be for this key, the base first."""
    return {"models": [_model(state, one) for one in _found(state, caller)]}


@router.get("/api/ps")
async def list_running(state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Those in memory now."""
    status = state.engine.status
    resident = (
        {adapter.digest for adapter in status.adapters if adapter.state == RESIDENT} if status is not None else set()
    )
    info = state.engine.info
    if info is None:
        return {"models": []}
    on_gpu = info.device.startswith("cuda")
    models = []
    for one in _found(state, caller):
        if one.is_base or one.digest in resident:
            model = _model(state, one)
            del model["modified_at"]
            in_vram = one.size if on_gpu else 0
            models.append(model | {"expires_at": NO_END, "size_vram": in_vram, "context_length": state.max_model_len})
    return {"models": models}


@router.post("/api/show")
async def show(request: Request, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """What is known of one model."""
    body = convert(await read_json(request, state.settings.body_timeout), Show)
    asked = body.model or body.name
    if asked is None:
        raise invalid("model is missing; name an adapter or the base.", "model")
    name, asker = name_of(asked), Asker(caller.actor)
    found = find_model(state.snapshots, caller, name, asker)
    served = await find_served(state, caller, name, None, asker)
    text, model = served.text_processor, state.model
    moment = datetime.fromtimestamp(state.created, UTC) if found is None else found.created_at
    architecture = model.architecture
    return {
        "modelfile": f"FROM {state.base.name}\n" + ("" if found is None else f"ADAPTER {found.name}@{found.version}\n"),
        "parameters": "",
        "template": "" if text.template is None else text.template.source,
        "system": text.system_prompt or "",
        "details": _details(state, "" if found is None else state.base.name),
        "model_info": {
            "general.architecture": architecture,
            f"{architecture}.context_length": state.max_model_len,
            f"{architecture}.embedding_length": model.hidden_size,
            f"{architecture}.block_count": model.num_layers,
            f"{architecture}.attention.head_count": model.attention.num_heads,
            f"{architecture}.attention.head_count_kv": model.attention.num_kv_heads,
        },
        "capabilities": await _capabilities(state, text),
        "modified_at": _moment(moment),
    }


async def _capabilities(state: State, text: TextProcessor) -> list[str]:
    """In Ollama's words. What the engine does is not known while it is away."""
    info = state.engine.info
    has = {
        "completion": info is None or not info.why_silent,
        "embedding": info is not None and info.pooling is not None,
        "tools": text.tool_style is not None and await takes_tools(text),
        "thinking": text.reasoning_marks is not None,
    }
    return [name for name, there in has.items() if there]


def _found(state: State, caller: Caller) -> list[Listed]:
    snapshot = state.registry.snapshots.current
    servable = snapshot.servable(caller.tenant, caller.only, Asker(caller.actor))
    found = [Listed(adapter.name, version.digest, version.size, version.created_at) for adapter, version in servable]
    if caller.only is None or state.base.name in caller.only:
        info = state.engine.info
        size, created = 0 if info is None else info.weight_bytes, datetime.fromtimestamp(state.created, UTC)
        names = (state.base.name, *state.settings.also_served_as)
        bases = [Listed(name, state.base.signature.fingerprint, size, created, is_base=True) for name in names]
        return [*bases, *found]
    return found


def _model(state: State, listed: Listed) -> dict[str, Any]:
    return {
        "name": listed.name,
        "model": listed.name,
        "modified_at": _moment(listed.created),
        "size": listed.size,
        "digest": listed.digest,
        "details": _details(state, "" if listed.is_base else state.base.name),
    }


def _details(state: State, parent: str) -> dict[str, Any]:
    info = state.engine.info
    quantization = "" if info is None else info.quantization or info.dtype
    family = state.model.architecture.removesuffix("ForCausalLM").lower()
    return {
        "parent_model": parent,
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": quantization,
    }


def _moment(moment: datetime) -> str:
    """Times of the database have no zone: they are UTC."""
    known = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return known.astimezone(UTC).isoformat().replace("+00:00", "Z")
