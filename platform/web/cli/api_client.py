"""A client of the management API, wherever it is answered: its address, a key, its refusals in words."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import httpx

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

    def __init__(
        self,
        server: str,
        key: str,
        tenant: str = "",
        direct: bool = False,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        """`tenant`: whose things are meant, for the operator; empty: those of the key's. `direct`: by no proxy.
        `transport`: another than the network."""
        if not key:
            raise ValueError("An API key is needed: --key, or LORAPLEX_KEY in the environment.")
        if not key.isascii():
            raise ValueError("The key has an invalid character. Copy it again.")
        import httpx  # for words that ask a server

        headers, timeout = {"authorization": f"Bearer {key}"}, httpx.Timeout(TIMEOUT_SECONDS, read=READ_SECONDS)
        params = {"tenant": tenant} if tenant else {}
        base_url, encrypted = server.rstrip("/"), not server.startswith("http:")  # certificates take long to read
        self._http = httpx.Client(
            base_url=base_url,
            headers=headers,
            params=params,
            timeout=timeout,
            verify=encrypted,
            trust_env=not direct,
            transport=transport,
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


@contextmanager
def client_of(server: str, key: str, tenant: str = "", direct: bool = False, remedy: str = "") -> Iterator[ApiClient]:
    """As ApiClient. Raises ValueError where nobody answers, with the `remedy`."""
    import httpx  # for words that ask a server

    with closing(ApiClient(server, key, tenant, direct)) as client:
        try:
            yield client
        except httpx.TransportError as error:
            raise ValueError(f"{server} cannot be reached ({error}).{remedy}") from None


def _object(response: "httpx.Response") -> dict[str, Any]:
    """Empty where something answers that is no loraplex."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
