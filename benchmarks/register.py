"""Register adapters in the data folder that the environment names: python -m benchmarks.register NAME=FOLDER ...

One process for all of them, where `loraplex adapters add` starts one for each.
"""

import sys
from pathlib import Path

from loraplex.web.cli.opened import opened_registry
from loraplex.web.management.registration import add_from_folder
from loraplex.web.settings.settings import Settings


def main(arguments: list[str]) -> None:
    with opened_registry(Settings()) as (registry, base):
        for argument in arguments:
            name, _, folder = argument.partition("=")
            add_from_folder(registry, base, name, Path(folder), actor="benchmark")


if __name__ == "__main__":
    main(sys.argv[1:])
