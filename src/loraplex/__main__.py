"""`loraplex` and `python -m loraplex`."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line. SIGTERM ends it in order at any moment, also before the server listens to signals."""
    # An exception within an import may come out as another one; and there is nothing yet to put in order.
    signal.signal(signal.SIGTERM, _end_at_once)
    from loraplex.web.cli.app import main as run

    signal.signal(signal.SIGTERM, _end)
    run()


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
