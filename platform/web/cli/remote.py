"""Words that work on the database of the data folder, or with --server over a server's API, with the same answers."""

from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import typer

from loraplex.registry.tables import DEFAULT_TENANT

from .api_client import ApiClient

At = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="LORAPLEX_SERVER",
        metavar="URL",
        help="Over the API of this server, with a key; by default on the database here.",
    ),
]


@dataclass(frozen=True, slots=True)
class Remote:
    """A server's management API. `tenant`: whose things are meant, for the operator; by default those of the key's."""

    server: str
    key: str
    tenant: str = DEFAULT_TENANT

    def ask(self, method: str, path: str, body: object = None, **query: str) -> dict[str, Any]:
        """Raises Refused with the server's words, ValueError where nobody answers."""
        tenant = {} if self.tenant == DEFAULT_TENANT else {"tenant": self.tenant}
        with closing(ApiClient(self.server, self.key)) as client:
            try:
                return client.ask(method, f"/api/v1{path}", json=body, params=query | tenant)
            except httpx.TransportError as error:
                raise ValueError(f"{self.server} cannot be reached ({error}).") from None
