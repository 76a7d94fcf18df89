"""The server that runs on the data folder, if it answers."""

from functools import cache
from typing import Final

from rich.console import Console

from ..settings.running_server import RunningServer, running_server
from ..settings.settings import Settings

PATIENCE_SECONDS: Final = 5.0
"""That the server of the data folder has to answer."""


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
