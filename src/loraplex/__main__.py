"""`loraplex` and `python -m loraplex`."""


def main() -> None:
    """Run the command line. SIGTERM and SIGHUP end it at any moment, in order as soon as there is something to put in
    order."""
    from loraplex.web.cli.ending import ending_at_once

    with ending_at_once():
        from loraplex.web.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
