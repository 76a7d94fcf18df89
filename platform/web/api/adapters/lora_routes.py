"""The routes that load and unload adapters: vLLM's under /v1, SGLang's without it. For operators only."""

from collections.abc import Awaitable

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse

from loraplex.registry.registry import Registry

from ...access.caller import Caller
from ...endpoints.dependencies import CallerOf, StateOf
from ...http.errors import ApiError
from ...http.json_body import convert, read_json
from ..answers import RuntimeLora
from .runtime_lora import LoadOrder, UnloadOrder, load_adapter, unload_adapter

router = APIRouter(tags=["Adapters"])


@router.post("/v1/load_lora_adapter")
async def load_as_vllm(request: Request, state: StateOf, caller: CallerOf) -> PlainTextResponse:
    """Make `lora_name` mean the adapter at `lora_path`, a folder or owner/name@commit; answers when it is loaded."""
    order = convert(await read_json(request, state.settings.body_timeout), LoadOrder)
    await load_adapter(state, caller, order)
    return PlainTextResponse(f"Success: LoRA adapter '{order.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
async def unload_as_vllm(request: Request, state: StateOf, caller: CallerOf) -> PlainTextResponse:
    """Remove `lora_name`."""
    order = convert(await read_json(request, state.settings.body_timeout), UnloadOrder)
    await unload_adapter(state, caller, order)
    return PlainTextResponse(f"Success: LoRA adapter '{order.lora_name}' removed successfully.")


@router.post("/load_lora_adapter")
async def load_as_sglang(request: Request, state: StateOf, caller: CallerOf) -> JSONResponse:
    order = convert(await read_json(request, state.settings.body_timeout), LoadOrder)
    return await _answer(state.registry, caller, load_adapter(state, caller, order))


@router.post("/unload_lora_adapter")
async def unload_as_sglang(request: Request, state: StateOf, caller: CallerOf) -> JSONResponse:
    order = convert(await read_json(request, state.settings.body_timeout), UnloadOrder)
    return await _answer(state.registry, caller, unload_adapter(state, caller, order))


async def _answer(registry: Registry, caller: Caller, change: Awaitable[None]) -> JSONResponse:
    """Whether it went well, why not, and name -> digest of all that is served."""
    error: str | None = None
    try:
        await change
    except ApiError as refusal:
        error = refusal.message
    served = registry.snapshots.current.servable(caller.tenant)
    loaded = {adapter.name: version.digest for adapter, version in served}
    answer = RuntimeLora(success=error is None, error_message=error, loaded_adapters=loaded)
    return JSONResponse(answer.as_json(), 200 if error is None else 400)
