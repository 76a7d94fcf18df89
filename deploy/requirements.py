"""Write requirements.txt: every package of the images, in the versions of this environment, which are the ones that the
suite has run with. torch has a line of its own in the Dockerfile.

"""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER: Final = Path(__file__).resolve().parent
PROJECT: Final = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
APART: Final = frozenset({"torch", "triton", "setuptools"})
"""torch: it comes in builds for CPUs and for GPUs, before all others. The others come with it, or not at all."""
EXTRAS: Final = ("postgres", "grpc", "otel")
"""Of the images: what a setting alone turns on."""
HEAD: Final = "# Written by deploy/requirements.py\n"


def direct(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for, with these extras."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


def pins(wanted: list[Requirement]) -> list[str]:
    """`name==version` of these and of all that they need in turn."""
    return sorted(f"{name}=={version}" for name, version in set(_closure(wanted, set())))


def _closure(wanted: list[Requirement], seen: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for requirement in wanted:
        for extra in ("", *requirement.extras):
            name = canonicalize_name(requirement.name)
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            found = distribution(name)
            if name not in APART:
                yield name, re.sub(r"\+.*", "", found.version)
            needed = [Requirement(line) for line in found.requires or ()]
            yield from _closure([each for each in needed if _applies(each, extra)], seen)


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def main() -> None:
    try:
        (FOLDER / "requirements.txt").write_text(HEAD + "\n".join(pins(direct(*EXTRAS))) + "\n")
    except PackageNotFoundError as error:
        raise SystemExit(f"{error.name} is not installed here. Run this where the tests run: make test") from None


if __name__ == "__main__":
    main()
