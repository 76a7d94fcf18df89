"""A Dockerfile read into stages and their steps: as much of its grammar as ours uses, and an error for any more."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KNOWN = frozenset(
    "ARG FROM WORKDIR COPY RUN ENV VOLUME EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD USER".split()  # noqa: SIM905
)
VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Step:
    word: str
    text: str

    @property
    def words(self) -> list[str]:
        """Of the JSON form, or as a shell splits them; options such as --from are left out."""
        if self.text.startswith("["):
            return [str(word) for word in json.loads(self.text)]
        return [word for word in shlex.split(self.text) if not word.startswith("--")]

    def option(self, name: str) -> str | None:
        found = re.search(rf"--{name}=(\S+)", self.text)
        return found[1] if found else None


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    """Another stage, or an image."""
    steps: list[Step] = field(default_factory=list)

    def all(self, word: str) -> list[Step]:
        return [step for step in self.steps if step.word == word]


def read(path: Path = ROOT / "Dockerfile") -> dict[str, Stage]:
    """Name -> stage, in order."""
    defaults: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for step in _steps(path.read_text()):
        assert step.word in KNOWN, f"{step.word} is read nowhere yet"
        if step.word == "FROM":
            base, _, name = VARIABLE.sub(lambda found: defaults[found[1]], step.text).split()
            stages[name] = Stage(name, base)
        elif not stages:
            name, _, value = step.text.partition("=")
            defaults[name] = value
        else:
            list(stages.values())[-1].steps.append(step)
    return stages


def line_of(stages: dict[str, Stage], name: str) -> list[Stage]:
    """The stage and those it is made from, oldest first."""
    stage = stages[name]
    return [*(line_of(stages, stage.base) if stage.base in stages else []), stage]


def environment_of(stages: dict[str, Stage], name: str) -> dict[str, str]:
    """What ENV says in the end."""
    pairs = [word for stage in line_of(stages, name) for step in stage.all("ENV") for word in step.words]
    return dict(pair.split("=", 1) for pair in pairs)


def _steps(text: str) -> list[Step]:
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")).replace("\\\n", " ")
    return [Step(*line.strip().split(None, 1)) for line in lines.splitlines() if line.strip()]
