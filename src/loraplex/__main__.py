"""`loraplex` and `python -m loraplex`."""

import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line. SIGTERM ends it in order at any moment, also before the server listens to signals."""
    signal.signal(signal.SIGTERM, _end)
    from loraplex.web.cli.app import main as run

    run()


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
