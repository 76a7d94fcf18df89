"""create_app: the ASGI application, wired from one State."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from fastapi import Depends, FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

import loraplex
from loraplex.engine.ipc.client import EngineStartError, EngineUnavailable

from .adapters.housekeeping import keep_house
from .admin import routes as pages
from .anthropic.errors import MESSAGES, messages_error
from .anthropic.routes import routers as anthropic_routers
from .api.routes import routers as api_routers
from .batches.files_api import FORM_BYTES
from .batches.routes import routers as batch_routers
from .batches.runner import BatchRunner
from .endpoints.authentication import access_table, guard
from .http.database_errors import database_handlers
from .http.limits import BodyLimit
from .http.middleware import HeadAsGet, RejectWhileStopping, RequestContext
from .management.start_modules import register_modules
from .observability.engine_metrics import EngineCollector
from .observability.refusal_log import note_refusal
from .ollama.errors import PATHS as OLLAMA
from .ollama.errors import ollama_error
from .ollama.routes import routers as ollama_routers
from .openai.responses.memory import forget_responses
from .openai.routes import routers as openai_routers
from .openapi.documents import admin_document, public_document
from .openapi.page import docs_page
from .pooling.routes import routers as pooling_routers
from .routing.route_metrics import RouteCollector
from .state import State

STATIC: Final = Path(__file__).parent / "static"
FILES_PREFIX: Final = "/api/v1/adapters/"
FILES_PATH: Final = "/v1/files"
BOOKKEEPING_SECONDS: Final = 30.0

logger = logging.getLogger(__name__)


def create_app(state: State) -> FastAPI:
    """The app for `state`; serving it starts the engine and stops it again. HTTP answers while the engine starts."""
    page_of = pages.page_of_refusal
    app = FastAPI(
        title="loraplex",
        version=loraplex.__version__,
        dependencies=[Depends(guard)],
        exception_handlers={**pages.HANDLERS, **database_handlers(page_of)},
        middleware=[
            *_cross_origin(state.settings.allowed_origins),
            Middleware(
                RequestContext,
                page_of_crash=pages.page_of_crash,
                log_probes=state.settings.log_probes,
                on_answer=partial(note_refusal, state.metrics.log),
                error_forms={MESSAGES: messages_error, **dict.fromkeys(OLLAMA, ollama_error)},
            ),
            Middleware(RejectWhileStopping, stopping=state.stopping, page_of=page_of),
            Middleware(BodyLimit, limit_of=_limit_of(state), page_of=page_of),
            Middleware(HeadAsGet),
        ],
        lifespan=_lifespan,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.loraplex = state
    state.metrics.registry.register(EngineCollector(state.engine, state.registry.snapshots, state.base.name))
    state.metrics.registry.register(RouteCollector(state.tallies))
    for router in (
        *openai_routers,
        *anthropic_routers,
        *ollama_routers,
        *batch_routers,
        *pooling_routers,
        *api_routers,
        *pages.routers,
    ):
        app.include_router(router)
    _add_documents(app, state.settings.root_path)
    app.state.access = access_table(app)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _cross_origin(origins: Sequence[str]) -> list[Middleware]:
    """For pages of other sites, which have a key: cookies are not for them, so the dashboard stays closed."""
    if not origins:
        return []
    told = ("x-request-id", "request-id", "retry-after", "x-loraplex-version", "x-loraplex-ignored-fields")
    limits = (f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens"))
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(*told, *limits),
        )
    ]


def _add_documents(app: FastAPI, root_path: str) -> None:
    app.add_api_route("/docs", lambda: HTMLResponse(docs_page(root_path)), include_in_schema=False)
    app.add_api_route("/openapi.json", lambda: JSONResponse(public_document(root_path)), include_in_schema=False)
    app.add_api_route("/api/v1/openapi.json", lambda: JSONResponse(admin_document(root_path)), include_in_schema=False)


def _limit_of(state: State) -> Callable[[Scope], int]:
    """Files may be large, everything else is small."""
    small, large = int(state.settings.max_body_bytes), int(state.settings.max_adapter_bytes)
    form = int(state.settings.max_batch_file_bytes) + FORM_BYTES

    def limit_of(scope: Scope) -> int:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] == "POST" and path == FILES_PATH:
            return form
        is_file = scope["method"] == "PUT" and path.startswith(FILES_PREFIX) and "/files/" in path
        return large if is_file else small

    return limit_of


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: State = app.state.loraplex
    work = (
        _start_engine(state),
        state.reconciler.poll(),
        _note_key_use(state),
        keep_house(state.registry),
        state.bookkeeper.run(),
        _drain(state),
        _certify(state),
        state.guard.run(),
        state.shadows.run(state.stopping),
        forget_responses(state.registry.responses, state.settings),
        BatchRunner(app, state).run(),
    )
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    state.database_watch.start()
    try:
        yield
    finally:
        state.stopping.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await state.engine.stop()
        state.passwords.close()
        await asyncio.to_thread(state.database_watch.stop)
        await asyncio.to_thread(state.text_processors.close)
        await asyncio.to_thread(state.bookkeeper.end)
        if state.tracing is not None:
            await asyncio.to_thread(state.tracing.close)
        state.registry.close()


async def _start_engine(state: State) -> None:
    """Start it and bring it to the desired state; a failure is kept for /ready and for whoever waits on `started`."""
    try:
        await state.engine.start()
        await state.reconciler.reconcile()
        await register_modules(state)
    except (EngineStartError, EngineUnavailable) as error:
        state.start_error = str(error)
        logger.error("the engine could not start: %s", error)
    finally:
        state.started.set()


async def _certify(state: State) -> None:
    """Once the engine has started: certificates are no hurry."""
    await state.started.wait()
    await state.certifier.run(with_base=state.settings.certify_uploads)


async def _note_key_use(state: State) -> None:
    while True:
        await asyncio.sleep(BOOKKEEPING_SECONDS)
        used = state.used_keys.take()
        if used:
            await asyncio.to_thread(state.registry.keys.record_use, used)


async def _drain(state: State) -> None:
    """Once stopping, let requests and uploads end by themselves for a while; what is left is then ended in words."""
    await state.stopping.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(state.settings.drain_seconds):
            while state.requests.taken or state.uploads.taken:
                await asyncio.sleep(0.05)
    state.uploads.break_off()
    await state.engine.stop()
    state.drained.set()
