"""Words that work on the database of the data folder, or with --server over a server's API, with the same answers."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

import typer

from loraplex.registry.names import DEFAULT_TENANT

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
    """A server's management API. `tenant`: whose things are meant, for the operator; empty: those of the key's."""

    server: str
    key: str
    tenant: str = ""

    def ask(self, method: str, path: str, body: object = None, **query: str) -> dict[str, Any]:
        """Raises Refused with the server's words, ValueError where nobody answers."""
        with self._client() as client:
            return client.ask(method, f"/api/v1{path}", json=body, params=query | self._whose())

    def text(self, path: str, **query: str) -> Iterator[str]:
        """A file, part by part as it comes. Raises as `ask` does."""
        with self._client() as client:
            yield from client.text(f"/api/v1{path}", params=query | self._whose())

    def whose(self) -> str:
        """The tenant that is meant; that of the key is known to the server alone."""
        return self.tenant or str(self.ask("GET", "/me")["tenant"])

    @contextmanager
    def _client(self) -> Iterator[ApiClient]:
        import httpx  # for words that ask a server

        with closing(ApiClient(self.server, self.key)) as client:
            try:
                yield client
            except httpx.TransportError as error:
                raise ValueError(f"{self.server} cannot be reached ({error}).") from None

    def _whose(self) -> dict[str, str]:
        return {"tenant": self.tenant} if self.tenant else {}


def segment(name: str) -> str:
    """A name as part of a path."""
    return quote(name, safe="@")


def remote_of(server: str, key: str) -> Remote | None:
    """None: the database here."""
    return Remote(server, key) if server else None


def remote_and_tenant(server: str, key: str, tenant: str) -> tuple[Remote | None, str]:
    """Where, and whose things: where none is named those of the key's tenant there, or of `default` here."""
    return (Remote(server, key, tenant), tenant) if server else (None, tenant or DEFAULT_TENANT)
