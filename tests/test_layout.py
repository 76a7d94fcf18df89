"""The source layout: `platform/` holds the packages, `src/loraplex/` links to each of them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_platform_is_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists(), "it would shadow the standard library's platform module"
    subprocess.run([sys.executable, "-c", "import platform; platform.system()"], cwd=ROOT, check=True)


def test_every_package_is_linked() -> None:
    packages = {path.parent.name for path in (ROOT / "platform").glob("*/__init__.py")}
    links = {path.name: path for path in (ROOT / "src" / "loraplex").iterdir() if path.is_symlink()}
    assert set(links) == packages
    for name, link in links.items():
        assert link.readlink() == Path(f"../../platform/{name}")


def test_api_process_imports_no_torch() -> None:
    engine = ("ipc.client", "certify.certificate", "certify.child", "certify.prompts")
    theirs = ", ".join(f"loraplex.engine.{module}" for module in engine)
    modules = f"loraplex.web.app, loraplex.registry, {theirs}, loraplex.lora.files.manifest"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


MOST_MODULES = 15
PACKAGES = ("engine", "lora", "quant", "registry", "web")
ROOMS = sorted(file.parent for package in PACKAGES for file in (ROOT / "platform" / package).rglob("__init__.py"))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_is_small_and_says_what_it_is_for(room: Path) -> None:
    modules = len([*room.glob("*.py")]) - 1
    assert modules <= MOST_MODULES, f"{modules} modules: give some of them a room of their own"
    assert (room / "__init__.py").read_text().startswith('"""')
