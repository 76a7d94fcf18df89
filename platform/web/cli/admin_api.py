"""The admin API that a word asks: of the server that is named or that runs on the data folder; where there is none,
answered in this process over the data folder."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from loraplex.registry.names import DEFAULT_TENANT

from ..settings.running_server import RunningServer
from .api_client import ApiClient, client_of
from .server_here import answering_server

Key = Annotated[
    str, typer.Option(envvar="LORAPLEX_KEY", help="An API key; LORAPLEX_KEY keeps it out of the process list.")
]
Server = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="LORAPLEX_SERVER",
        metavar="URL",
        help="Use this server, with a key (default: the server on the data folder, without a key).",
    ),
]
Tenant = Annotated[str, typer.Option(help="The tenant (default: `default`; with --server, the key's).", metavar="NAME")]
OPTIONS: Final = [
    Parameter(name, Parameter.KEYWORD_ONLY, default="", annotation=annotation)
    for name, annotation in {"tenant": Tenant, "server": Server, "key": Key}.items()
]
PARTS_OF_ADAPTERS: Final = ("aliases", "profile")


@dataclass(frozen=True, slots=True)
class AdminApi:
    """`server`: its URL; empty: it is answered in this process. `tenant`: whose things are meant, for the operator;
    empty: those of the key's. `own`: the data folder's, as its operator."""

    server: str
    key: str
    tenant: str = ""
    own: bool = False

    def ask(self, method: str, path: str, body: object = None, **query: str) -> dict[str, Any]:
        """Raises Refused with the API's words, ValueError where nobody answers."""
        with self.client(_group(path)) as client:
            return client.ask(method, f"/api/v1{path}", json=body, params=query)

    def text(self, path: str, **query: str) -> Iterator[str]:
        """A file, part by part as it comes. Raises as `ask` does."""
        with self.client(_group(path)) as client:
            yield from client.text(f"/api/v1{path}", params=query)

    def whose(self) -> str:
        """The tenant that is meant; that of the key is known to the server alone."""
        if self.own:
            return self.tenant or DEFAULT_TENANT
        return self.tenant or str(self.ask("GET", "/me")["tenant"])

    def client(self, group: str, remedy: str = "") -> AbstractContextManager[ApiClient]:
        """For several requests to one group of routes. `remedy`: what to do where nobody answers."""
        if self.server:
            return client_of(self.server, self.key, self.tenant, direct=self.own, remedy=remedy)
        from .in_process.app import local_client  # for words that no server answers

        return local_client(group, self.tenant)


def segment(name: str) -> str:
    """A name as part of a path."""
    return quote(name, safe="@")


def admin_api(*, server: str, key: str, tenant: str = "") -> AdminApi:
    """Of the server that is named, else of the one on the data folder, else in this process."""
    if server:
        return AdminApi(server, key, tenant)
    running = answering_server()
    return AdminApi("", key, tenant, own=True) if running is None else api_of(running, tenant)


def api_of(running: RunningServer, tenant: str = "") -> AdminApi:
    return AdminApi(running.url, running.key, tenant, own=True)


def with_api(word: Callable[..., None]) -> Callable[..., None]:
    """The word with options that say whose things are meant, and where, in place of its `api`."""
    return _with(OPTIONS, word)


def with_operators_api(word: Callable[..., None]) -> Callable[..., None]:
    """The same for things that are no tenant's."""
    return _with([option for option in OPTIONS if option.name != "tenant"], word)


def _with(options: Sequence[Parameter], word: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(word, eval_str=True)

    @functools.wraps(word)
    def run(**values: Any) -> None:
        word(api=admin_api(**{option.name: values.pop(option.name) for option in options}), **values)

    own = [each.replace(kind=Parameter.KEYWORD_ONLY) for name, each in signature.parameters.items() if name != "api"]
    parameters = sorted([*own, *options], key=lambda each: each.name == "as_json")  # which stands last
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _group(path: str) -> str:
    """As `in_process/app.py` names it."""
    _, first, *rest = path.split("/")
    return rest[1] if len(rest) > 1 and rest[1] in PARTS_OF_ADAPTERS else first
