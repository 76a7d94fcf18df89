"""How this machine installs packages, mounted for the steps of a build: no address of an index gets into the image."""

import ast
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

APT_OPTIONS = re.compile(r"^Acquire::(?:https?|Check|Retries|Force).*$", re.MULTILINE)
"""How apt reaches its mirror, by a proxy for one. The address itself is in the base image: debootstrap put it there."""


def mounts(folder: Path) -> list[str]:
    """Options of `podman build`; `folder` gets the files that are made for it."""
    pip, npm, apt = folder / "pip.conf", folder / "npmrc", folder / "apt.conf"
    with pip.open("w") as file:
        pip_configuration().write(file)
    npm.write_text(npm_configuration())
    apt.write_text("\n".join(APT_OPTIONS.findall(output_of("apt-config", "dump"))) + "\n")
    named = [
        *local_paths(pip.read_text()),
        *local_paths("\n".join(re.findall("^cafile.*", npm.read_text(), re.MULTILINE))),
    ]
    here = {path: path for path in named if path.exists()}
    places = {Path("/etc/pip.conf"): pip, Path("/root/.npmrc"): npm, Path("/etc/apt/apt.conf"): apt, **here}
    return [f"--volume={source}:{place}:ro" for place, source in places.items()]


def pip_configuration() -> ConfigParser:
    """Of all files and variables that pip reads here; variables win."""
    listed = output_of(sys.executable, "-m", "pip", "config", "list").splitlines()
    given = ConfigParser(interpolation=None)
    given.add_section("global")
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        section = "global" if section == ":env:" else section
        if not given.has_section(section):
            given.add_section(section)
        given.set(section, name, ast.literal_eval(value))
    return given


def npm_configuration() -> str:
    """The machine's file and the user's, where there is an npm."""
    if shutil.which("npm") is None:
        return ""
    files = [Path(output_of("npm", "config", "get", name)) for name in ("globalconfig", "userconfig")]
    return "\n".join(file.read_text() for file in files if file.is_file())


def local_paths(text: str) -> list[Path]:
    """Files and folders that a configuration names. An index in a folder may name files beside it."""
    found = []
    for scheme, name in re.findall(r"(?:^|[\s=])(file://)?(/[^\s\"']+)", text):
        path = Path(name).parent if scheme else Path(name)
        if path != Path("/"):
            found.append(path)
    return found


def output_of(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
