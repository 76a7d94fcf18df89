"""Canaries: one word for each secret, unlike all others, so that wherever it shows it is known by its name."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx

from tests.web.fake_hub import FakeHub

from .live_server import NO_TLS, LiveServer


@dataclass
class Canaries:
    """`nowhere` must not be seen at all; `private` only by the tenant that it belongs to, and never in logs."""

    nowhere: dict[str, str] = field(default_factory=dict)
    private: dict[str, str] = field(default_factory=dict)

    def secret(self, name: str) -> str:
        """A new secret that we give away."""
        return self.nowhere.setdefault(name, _new())

    def text(self, name: str) -> str:
        """A new text that is some tenant's own."""
        return self.private.setdefault(name, _new())

    def note(self, name: str, secret: str) -> str:
        """A secret that the server has made."""
        assert len(secret) >= 16
        self.nowhere[name] = secret
        return secret

    def in_secret(self, text: str) -> list[str]:
        """Names of the secrets in a text."""
        return _found(self.nowhere, text)

    def in_private(self, text: str) -> list[str]:
        return _found(self.private, text)


@dataclass(frozen=True)
class Heard:
    """An answer: who asked for what, and all that came."""

    by: str
    route: str
    status: int
    text: str


@dataclass
class Walk:
    """What was asked of the server, by whom, and what it answered. Cookies that are set count as shown once."""

    server: LiveServer
    canaries: Canaries
    hub: FakeHub
    heard: list[Heard] = field(default_factory=list)

    def client(self, by: str, **headers: str) -> httpx.Client:
        def hear(response: httpx.Response) -> None:
            response.read()
            lines = [f"{name}: {value}" for name, value in response.headers.items() if name != "set-cookie"]
            route = f"{response.request.method} {response.request.url.path}"
            self.heard.append(Heard(by, route, response.status_code, "\n".join([*lines, response.text])))

        hooks = {"response": [hear]}
        given: dict[str, Any] = {"timeout": 60, "trust_env": False, "verify": NO_TLS}
        return httpx.Client(base_url=self.server.url, headers=headers, event_hooks=hooks, **given)

    def unheard(self, path: str, authorization: str = "", **body: Any) -> None:
        """A request that is refused with what it says: who sent a secret may read it again, nobody else."""
        headers = {"origin": self.server.url, "authorization": authorization}
        with httpx.Client(base_url=self.server.url, trust_env=False, timeout=60, verify=NO_TLS) as client:
            answer = client.post(path, headers={name: value for name, value in headers.items() if value}, **body)
        assert answer.status_code in (400, 401, 404), answer.text

    def with_key(self, by: str, token: str) -> httpx.Client:
        return self.client(by, authorization=f"Bearer {token}")


def _found(words: dict[str, str], text: str) -> list[str]:
    """Those that stand there, plainly, as part of an address, or cut in half."""
    texts = (text, unquote(text))
    return [name for name, word in words.items() if any(part in text for part in _parts(word) for text in texts)]


def _parts(word: str) -> Iterable[str]:
    half = len(word) // 2
    return word[:half], word[half:]


def _new() -> str:
    """Sixteen characters and more in each half, none of which a form or a JSON text writes in another way."""
    return secrets.token_hex(20)
