"""local_client: asks the admin API over the data folder, of which only one group of routes is there."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Final

from fastapi import Depends, FastAPI

from ...endpoints.authentication import access_table, guard
from ...http.errors import HANDLERS
from ..api_client import ApiClient
from .state import LocalState, database_state, registry_state
from .transport import AppTransport

ROUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "adapters": ("adapters.adapters",),
    "aliases": ("adapters.aliases",),
    "audit": ("access.audit",),
    "keys": ("access.keys",),
    "profile": ("adapters.profiles",),
    "tenants": ("access.tenants",),
    "uploads": ("adapters.adapters", "adapters.uploads"),
    "usage": ("server.usage",),
    "users": ("access.users",),
}
"""What a path is about -> modules of `web/api`. The others are not imported, so that a word starts fast."""
OF_ADAPTERS: Final = ("adapters", "aliases", "profile", "uploads")

ADDRESS: Final = "http://localhost"


@contextmanager
def local_client(group: str, tenant: str) -> Iterator[ApiClient]:
    """For one key of ROUTES, as the operator. `tenant`: whose things are meant. The database is open meanwhile."""
    with registry_state() if group in OF_ADAPTERS else database_state() as state:
        transport = AppTransport(_app(state, group))
        with closing(ApiClient(ADDRESS, state.local_key, tenant, transport=transport)) as client:
            yield client


def _app(state: LocalState, group: str) -> FastAPI:
    app = FastAPI(dependencies=[Depends(guard)], exception_handlers=HANDLERS, openapi_url=None, redirect_slashes=False)
    app.state.loraplex = state
    for module in ROUTES[group]:
        app.include_router(import_module(f"loraplex.web.api.{module}").router)
    app.state.access = access_table(app)
    return app
