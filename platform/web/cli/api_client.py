"""The management API for words that talk to a server, wherever it runs: its address, a key, its refusals in words."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    import httpx

Key = Annotated[
    str, typer.Option(envvar="LORAPLEX_KEY", help="An API key; LORAPLEX_KEY keeps it out of the process list.")
]
LOCAL: Final = "http://127.0.0.1:8000"
TIMEOUT_SECONDS: Final = 60
READ_SECONDS: Final = 600
"""A large adapter is checked before the answer comes."""


class Refused(ValueError):
    """What the server answered instead, with its own words."""

    def __init__(self, response: "httpx.Response") -> None:
        self.status = response.status_code
        self.body = _object(response)
        error = self.body.get("error")
        error = error if isinstance(error, dict) else {}
        self.code = error.get("code")
        later = response.headers.get("retry-after", "")
        self.retry_after = int(later) if re.fullmatch(r"[0-9]{1,4}", later) else 0
        """Seconds; 0: it did not say."""
        super().__init__(error.get("message") or f"the server answered {response.status_code}: {response.text[:200]}")


class ApiClient:
    """Raises Refused for whatever is no success, and lets httpx.TransportError through."""

    def __init__(self, server: str, key: str, tenant: str = "", direct: bool = False) -> None:
        """`tenant`: whose things are meant, for the operator; empty: those of the key's. `direct`: by no proxy."""
        if not key:
            raise ValueError("An API key is needed: --key, or LORAPLEX_KEY in the environment.")
        if not key.isascii():
            raise ValueError("The key has an invalid character. Copy it again.")
        import httpx  # for words that ask a server

        headers, timeout = {"authorization": f"Bearer {key}"}, httpx.Timeout(TIMEOUT_SECONDS, read=READ_SECONDS)
        params = {"tenant": tenant} if tenant else {}
        base_url, encrypted = server.rstrip("/"), not server.startswith("http:")  # certificates take long to read
        self._http = httpx.Client(
            base_url=base_url, headers=headers, params=params, timeout=timeout, verify=encrypted, trust_env=not direct
        )

    def ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        response = self._http.request(method, path, **request)
        if not response.is_success:
            raise Refused(response)
        return _object(response)

    def text(self, path: str, **request: Any) -> Iterator[str]:
        """Part by part as it comes, so that any file fits into memory."""
        with self._http.stream("GET", path, **request) as response:
            if not response.is_success:
                response.read()
                raise Refused(response)
            yield from response.iter_text()

    def close(self) -> None:
        self._http.close()


def _object(response: "httpx.Response") -> dict[str, Any]:
    """Empty where something answers that is no loraplex."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
