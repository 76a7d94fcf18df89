"""Podman with storage, networks and settings of its own: no image or container of this machine is seen or changed."""

import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = ("podman", "runc", "catatonit", "netavark", "aardvark-dns", "debootstrap")
SETTINGS = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/engine"
[containers]
log_driver = "k8s-file"
# Podman's own are higher than some machines let anybody set.
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
STORAGE = """\
[storage]
driver = "{driver}"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


def require_packages() -> None:
    """SystemExit, in words, with what is missing."""
    if os.geteuid() != 0:
        raise SystemExit("image-check makes a base image with debootstrap, which only root may: sudo make image-check")
    missing = [name for name in PACKAGES if not is_installed(name)]
    if missing:
        words = f"apt-get install --no-install-recommends {' '.join(missing)}"
        raise SystemExit(f"image-check needs packages of Debian that are not here. Install them with: {words}")


def is_installed(package: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", package]
    try:
        return subprocess.run(asked, capture_output=True).stdout == b"installed"
    except FileNotFoundError:
        return False


class Engine:
    """`folder` holds everything; close() before it is removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment = os.environ | {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        (folder / "containers.conf").write_text(SETTINGS.format(folder=folder))
        self._choose_driver("overlay")
        if self.run("info", check=False).returncode != 0:
            self._choose_driver("vfs")

    def _choose_driver(self, driver: str) -> None:
        """overlay shares layers; vfs copies them, and works wherever there is a disk."""
        shutil.rmtree(self._folder / "storage", ignore_errors=True)
        (self._folder / "storage.conf").write_text(STORAGE.format(driver=driver, folder=self._folder))

    def run(self, *words: str, check: bool = True, input: bytes | None = None) -> "subprocess.CompletedProcess[bytes]":
        ended = subprocess.run(["podman", *words], env=self.environment, input=input, capture_output=True)
        if check and ended.returncode != 0:
            raise AssertionError(f"podman {' '.join(words)}\n{ended.stdout.decode()}{ended.stderr.decode()}")
        return ended

    def text(self, *words: str) -> str:
        return self.run(*words).stdout.decode().strip()

    def show(self, *words: str, **options: object) -> None:
        """With what it says on this terminal: for what takes minutes."""
        subprocess.run(["nice", "podman", *words], env=self.environment, check=True)

    def size(self, image: str) -> int:
        """Bytes of all layers, unpacked."""
        return int(self.text("image", "inspect", "--format", "{{.Size}}", image))

    def close(self) -> None:
        self.run("pod", "rm", "--all", "--force", check=False)
        self.run("rm", "--all", "--force", "--time=0", check=False)
        self.run("network", "prune", "--force", check=False)
        subprocess.run(["umount", "--quiet", str(self._folder / "storage" / "overlay")], check=False)
