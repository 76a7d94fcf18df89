"""`loraplex` and `python -m loraplex`."""

from loraplex.web.cli.app import main

if __name__ == "__main__":
    main()
