"""`loraplex` and `python -m loraplex`."""

import signal


def main() -> None:
    """Run the command line. SIGTERM ends it at any moment, in order as soon as there is something to put in order."""
    from loraplex.web.cli.ending import end_at_once, end_in_order_on_sigterm

    signal.signal(signal.SIGTERM, end_at_once)
    from loraplex.web.cli.app import main as run

    end_in_order_on_sigterm()
    run()


if __name__ == "__main__":
    main()
