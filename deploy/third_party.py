"""Write THIRD_PARTY.md: every package of the images and of the dashboard, with its licence as the package states it."""

import json
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
REQUIREMENTS: Final = ROOT / "deploy/requirements.txt"
PACKAGE_LOCK: Final = ROOT / "platform/web/frontend/package-lock.json"
APART: Final = {"torch": "images", "triton": "GPU image"}
"""What requirements.txt does not list: it comes in builds for CPUs and for GPUs, or not at all."""
HEAD: Final = """# Third-party software

loraplex itself is under the [Apache License 2.0](LICENSE). It contains no third-party code. Its images and its
dashboard install the packages below, each under its own licence. The images are built on the official Python image,
which is Debian: `/usr/share/doc/*/copyright` in an image has the licences of Debian's packages.
`deploy/third_party.py` writes this file.

"""


def image_packages() -> list[str]:
    """Names of the Python packages in the images."""
    lines = REQUIREMENTS.read_text().splitlines()
    return [*APART, *(line.split("==")[0] for line in lines if not line.startswith("#"))]


def dashboard_packages() -> list[tuple[str, str]]:
    """Name and licence of each library that the dashboard's pages load."""
    packages = json.loads(PACKAGE_LOCK.read_text())["packages"].items()
    return [(path.removeprefix("node_modules/"), of["license"]) for path, of in packages if path and not of.get("dev")]


def licence_of(package: str) -> str:
    """As its metadata states it. PackageNotFoundError where it is not installed."""
    metadata = distribution(package).metadata
    classifiers = [line.rsplit(" :: ", 1)[-1] for line in metadata.get_all("Classifier", []) if "License" in line]
    stated = metadata.get("License-Expression") or metadata.get("License") or ", ".join(classifiers)
    return stated.splitlines()[0]


def document() -> str:
    return HEAD + "\n".join(_table()) + "\n"


def _table() -> Iterator[str]:
    yield from ("| package | used by | licence |", "|---|---|---|")
    for name in sorted(image_packages()):
        yield f"| {name} | {APART.get(name, 'images')} | {licence_of(name)} |"
    for name, licence in sorted(dashboard_packages()):
        yield f"| {name} | dashboard | {licence} |"


def main() -> None:
    try:
        (ROOT / "THIRD_PARTY.md").write_text(document())
    except PackageNotFoundError as error:
        raise SystemExit(f"{error.name} is not installed here. Run this where the tests run: make test") from None


if __name__ == "__main__":
    main()
