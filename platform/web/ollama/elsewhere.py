"""What of Ollama's API is done elsewhere here: each path says where."""

from typing import Final, NoReturn

from fastapi import APIRouter

from ..endpoints.dependencies import CallerOf
from ..http.errors import ApiError

router = APIRouter(tags=["Ollama"], include_in_schema=False)
UPLOAD: Final = "adapters are uploaded: see docs/adapters.md, or the page Upload"
INSTEAD: Final = {
    "/api/pull": f"the base model is chosen at the start (--model), and {UPLOAD}",
    "/api/push": "adapters stay on this server; GET /api/v1/adapters lists them",
    "/api/create": UPLOAD,
    "/api/copy": "give the adapter an alias: PUT /api/v1/adapters/{name}/aliases/{alias}",
    "/api/delete": "DELETE /api/v1/adapters/{name} removes an adapter",
}
METHODS: Final = {"/api/delete": "DELETE"}


def _refusing(path: str, words: str) -> None:
    async def refuse(caller: CallerOf) -> NoReturn:
        raise ApiError(501, f"{path} is not supported here: {words}.", code="unsupported")

    router.add_api_route(path, refuse, methods=[METHODS.get(path, "POST")], response_model=None, name=path)


for _path, _words in INSTEAD.items():
    _refusing(_path, _words)
