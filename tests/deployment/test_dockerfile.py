"""The Dockerfile without a container engine: what can be known by reading. `make image-check` builds it."""

import fnmatch
import re
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy import requirements, third_party

from .dockerfile import ROOT, Stage, environment_of, line_of, read

SECRET = re.compile(r"password|secret|token|api_key", re.IGNORECASE)
TARGETS = ("cpu", "gpu")


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    return read()


def test_bases_are_pinned_to_a_whole_version(stages: dict[str, Stage]) -> None:
    images = {stage.base for stage in stages.values() if stage.base not in stages}
    assert images and all(re.fullmatch(r"[\w/]+:\d+\.\d+\.\d+[\w.-]*(@sha256:\w{64})?", image) for image in images)


def test_python_is_one_that_the_package_supports(stages: dict[str, Stage]) -> None:
    version = re.search(r":(\d+\.\d+)", stages["runtime"].base)
    assert version and version[1] in Requirement(f"x{requirements.PROJECT['requires-python']}").specifier


def test_sources_of_every_copy_exist_and_reach_the_build(stages: dict[str, Stage]) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "*" in ignored, "what is not named stays out"
    for stage in stages.values():
        for step in stage.all("COPY"):
            *sources, _ = step.words
            if (other := step.option("from")) is not None:
                assert other in stages
                continue
            for source in sources:
                assert (ROOT / source).exists(), source
                assert any(source == name or source.startswith(f"{name}/") for name in kept), f"{source} is ignored"


def test_everything_that_is_kept_for_the_build_is_copied(stages: dict[str, Stage]) -> None:
    copied = {source for stage in stages.values() for step in stage.all("COPY") for source in step.words[:-1]}
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert set(kept) <= copied
    assert not fnmatch.filter(copied, "*secret*") and ".env" not in copied


def test_no_secret_is_in_a_layer(stages: dict[str, Stage]) -> None:
    for stage in stages.values():
        for step in (*stage.all("ENV"), *stage.all("ARG")):
            assert not SECRET.search(step.text), f"{stage.name}: {step.text}"


@pytest.mark.parametrize("target", TARGETS)
def test_the_image_runs_as_a_user_that_owns_only_its_volumes(stages: dict[str, Stage], target: str) -> None:
    line = line_of(stages, target)
    users = [step.text for stage in line for step in stage.all("USER")]
    made = [step.text for stage in line for step in stage.all("RUN")]
    assert users == ["10001:10001"], "once, at the end"
    assert stages[target].steps[-1].word == "USER"
    assert any("useradd --uid 10001" in text for text in made)
    volumes = [word for stage in line for step in stage.all("VOLUME") for word in step.words]
    assert any(f"--owner=10001 --group=10001 --mode=0700 {' '.join(volumes)}" in text for text in made)
    environment = environment_of(stages, target)
    assert environment["LORAPLEX_DATA_DIR"] in volumes
    for name in ("XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR", "HOME"):
        assert any(Path(environment[name]).is_relative_to(volume) for volume in volumes), name
    assert "NUMBA_CACHE_DIR" not in environment, "it would be shared by processors that cannot share kernels"


def test_the_image_opens_what_a_narrow_umask_has_closed(stages: dict[str, Stage], tmp_path: Path) -> None:
    """COPY keeps the modes of the checkout, and root owns what it copies."""
    folder, script = tmp_path / "src", tmp_path / "bin"
    folder.mkdir(mode=0o700)
    (folder / "module.py").touch(mode=0o600)
    script.touch(mode=0o750)
    subprocess.run(["sh", "-euc", stages["files"].all("RUN")[-1].text], cwd=tmp_path, check=True)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "module.py", script)]
    assert modes == [0o755, 0o644, 0o755]


def test_torch_is_the_one_of_the_makefile(stages: dict[str, Stage]) -> None:
    wanted = re.search(r"^TORCH := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = {word for stage in stages.values() for step in stage.all("ARG") for word in step.words if "==" in word}
    assert wanted and asked == {f"TORCH={wanted[1]}"}


def test_requirements_are_pinned_and_complete() -> None:
    lines = [
        line for line in (ROOT / "deploy" / "requirements.txt").read_text().splitlines() if not line.startswith("#")
    ]
    pinned = dict(line.split("==") for line in lines)
    for wanted in requirements.direct(*requirements.EXTRAS):
        if wanted.name not in requirements.APART:
            assert pinned[wanted.name.lower()] in wanted.specifier, f"{wanted}: run deploy/requirements.py again"
    assert {Requirement(line).name for line in requirements.pins(requirements.direct(*requirements.EXTRAS))} <= set(
        pinned
    )


def test_every_package_has_its_licence_in_the_list() -> None:
    listed = {line.split(" | ")[0].removeprefix("| ") for line in (ROOT / "THIRD_PARTY.md").read_text().splitlines()}
    shipped = {*third_party.image_packages(), *(name for name, _ in third_party.dashboard_packages())}
    assert shipped <= listed, "run deploy/third_party.py again"


def test_scripts_can_be_run() -> None:
    for name in ("loraplex", "make_secrets.sh"):
        assert (ROOT / "deploy" / name).stat().st_mode & stat.S_IXUSR


def test_the_makefile_offers_what_the_documentation_says() -> None:
    words = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / "docs" / "deploy.md").read_text()))
    assert named <= set(words)
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"] == "loraplex"
