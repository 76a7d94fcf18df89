"""`loraplex` and `python -m loraplex`."""

import os
import signal
import sys
import threading
from types import FrameType

RAISED_AGAIN_SECONDS = 0.01


def main() -> None:
    """Run the command line. SIGTERM ends it in order at any moment, also before the server listens to signals."""
    # An exception within an import may come out as another one; and there is nothing yet to put in order.
    signal.signal(signal.SIGTERM, _end_at_once)
    from loraplex.web.cli.app import main as run

    sys.unraisablehook = _end_again
    signal.signal(signal.SIGTERM, _end)
    run()


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _end_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python drops what is raised within a finalizer. An end that was lost so comes once more, a moment later."""
    if unraisable.exc_type is SystemExit:
        threading.Timer(RAISED_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    main()
