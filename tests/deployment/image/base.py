"""The image that the Dockerfile begins with, made where no registry can be reached: Debian as apt gets it here."""

import platform
import shutil
import subprocess
from pathlib import Path

from .engine import Engine

PACKAGES = ("python3", "python3-venv", "python-is-python3", "ca-certificates")


def make_base(engine: Engine, image: str, folder: Path) -> None:
    """`folder` is where the system is unpacked; it is removed."""
    address, release = repository()
    words = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", release, str(folder), address]
    subprocess.run(["nice", *words], check=True, stdout=subprocess.DEVNULL)
    for kept in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(folder / kept)
    with subprocess.Popen(["tar", "--directory", str(folder), "--create", "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(
            ["podman", "import", "--quiet", "-", image], env=engine.environment, stdin=packed.stdout, check=True
        )
    shutil.rmtree(folder)


def repository() -> tuple[str, str]:
    """Address and name of the release that this machine's apt installs from."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    for address, found, component in (line.split() for line in listed):
        if (found, component) == (release, "main"):
            return address, release
    raise SystemExit(f"apt here has no repository of the release {release!r}: image-check needs Debian or Ubuntu")
