"""Where a word works: on the server that is named or that runs on the data folder, over its API; else on the database
of the data folder, with the same answers."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer
from rich.console import Console

from loraplex.registry.names import DEFAULT_TENANT

from ..settings.running_server import RunningServer, running_server
from ..settings.settings import Settings
from .api_client import ApiClient

At = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="LORAPLEX_SERVER",
        metavar="URL",
        help="Use this server, with a key (default: the server on the data folder, without a key).",
    ),
]
PATIENCE_SECONDS: Final = 5.0
"""That the server of the data folder has to answer."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A server's management API. `tenant`: whose things are meant, for the operator; empty: those of the key's.
    `found`: by the data folder."""

    server: str
    key: str
    tenant: str = ""
    found: bool = False

    def ask(self, method: str, path: str, body: object = None, **query: str) -> dict[str, Any]:
        """Raises Refused with the server's words, ValueError where nobody answers."""
        with self.client() as client:
            return client.ask(method, f"/api/v1{path}", json=body, params=query)

    def text(self, path: str, **query: str) -> Iterator[str]:
        """A file, part by part as it comes. Raises as `ask` does."""
        with self.client() as client:
            yield from client.text(f"/api/v1{path}", params=query)

    def whose(self) -> str:
        """The tenant that is meant; that of the key is known to the server alone."""
        return self.tenant or str(self.ask("GET", "/me")["tenant"])

    @contextmanager
    def client(self, remedy: str = "") -> Iterator[ApiClient]:
        """`remedy`: what to do where nobody answers."""
        import httpx  # for words that ask a server

        with closing(ApiClient(self.server, self.key, self.tenant, direct=self.found)) as client:
            try:
                yield client
            except httpx.TransportError as error:
                raise ValueError(f"{self.server} cannot be reached ({error}).{remedy}") from None


def segment(name: str) -> str:
    """A name as part of a path."""
    return quote(name, safe="@")


def remote_of(server: str, key: str, tenant: str = "") -> Remote | None:
    """The server that is named, else the one that runs on the data folder; None: the database here."""
    if server:
        return Remote(server, key, tenant)
    running = answering_server()
    return None if running is None else remote_to(running, tenant)


def remote_and_tenant(server: str, key: str, tenant: str) -> tuple[Remote | None, str]:
    """Where, and whose things: where no server is named, by default those of `default`, else of the key's tenant."""
    return remote_of(server, key, tenant), tenant if server else tenant or DEFAULT_TENANT


def remote_to(running: RunningServer, tenant: str = "") -> Remote:
    return Remote(running.url, running.key, tenant, found=True)


def answering_server() -> RunningServer | None:
    """The server that runs on the data folder, if it answers."""
    running = running_server(Settings().data_dir)
    return running if running is not None and answers(running) else None


@cache
def answers(running: RunningServer) -> bool:
    """Where it does not, say so: a word does without it then."""
    import httpx  # for words that ask a server

    headers, url = {"authorization": f"Bearer {running.key}"}, f"{running.url}/api/v1/me"
    try:
        answer = httpx.get(url, headers=headers, timeout=PATIENCE_SECONDS, verify=False, trust_env=False)
        if answer.status_code == httpx.codes.OK:
            return True
        strange = answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.NOT_FOUND)
        problem = "another program answers" if strange else f"it says {answer.status_code}, as while it stops"
    except httpx.TransportError as error:
        problem = str(error) or type(error).__name__
    words = f"The server of this data folder, process {running.pid}, does not answer at {running.url} ({problem}). "
    words += "This command uses the database directly. If the server runs in another container, run it there."
    Console(stderr=True, highlight=False).print(words, style="yellow", markup=False, soft_wrap=True)
    return False
