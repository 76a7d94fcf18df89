"""Exit 0 while the server in this container serves requests; else say why on standard error. Standard library only."""

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Final

TIMEOUT_SECONDS: Final = 4


def ready_url() -> str:
    """Of /ready, under the settings that the container's environment has; a sub-path is only before the proxy."""
    return f"http://127.0.0.1:{os.environ.get('LORAPLEX_PORT', '8000')}/ready"


def obstacles(url: str) -> str:
    """Why requests are not served; empty when they are."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        return f"{error.code}: {_reasons(error.read())}"
    except (OSError, ValueError) as error:
        return f"{url} does not answer: {error}"


def _reasons(body: bytes) -> str:
    try:
        return "; ".join(json.loads(body)["reasons"])
    except (ValueError, KeyError, TypeError):
        return "not a loraplex server"


if __name__ == "__main__":
    sys.exit(obstacles(ready_url()) or 0)
