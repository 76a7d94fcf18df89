"""What `loraplex certify` measures by name, and where it keeps what it found."""

from dataclasses import dataclass
from pathlib import Path

from loraplex.engine.certify.certificate import Certificate
from loraplex.registry.certificates.certificates import Subject
from loraplex.registry.names import parse_reference

from ...certificates.own_tokens import refuse_own_tokens
from ...certificates.served import ServedPath, measured
from ...certificates.standing import find_standing
from ...settings.running_server import ACTOR
from ...settings.settings import Settings
from ..opened import opened_registry


@dataclass(frozen=True, slots=True)
class Target:
    """`folder`: of an adapter's files, None for the base. `subject`: what the registry calls it, None for a folder that
    is named as such. `prompts`: its own; None where they are generated."""

    folder: Path | None
    subject: Subject | None
    prompts: list[str] | None = None


def find_target(settings: Settings, named: str | None) -> Target:
    """The base, a folder (with a / in its name), or a version of a registered adapter."""
    if named is None:
        return Target(None, Subject(None))
    if "/" in named:
        return Target(Path(named).expanduser().resolve(), None)
    with opened_registry(settings) as (registry, _):
        version = registry.adapters.version(named)
        if version.broken:
            raise ValueError(f"{named} is broken: {version.broken}")
        adapter = registry.adapters.get(parse_reference(named).name)
        subject, prompts = Subject(version.digest, adapter.prompts_digest), registry.adapters.prompts(adapter.name)
        return Target(registry.store.folder(version.digest), subject, None if prompts is None else list(prompts))


def find_certificate(settings: Settings, target: Target, served: ServedPath) -> Certificate | None:
    """The registry's, while it holds for what is served."""
    if target.subject is None:
        return None
    with opened_registry(settings) as (registry, _):
        standing = find_standing(registry.certificates, served, target.subject)
    return standing.certificate if standing.valid else None


def check_tokens(settings: Settings, subject: Subject, served: ServedPath, prompts: list[str] | None) -> None:
    """ValueError where the adapter's own tokenizer reads these prompts otherwise."""
    with opened_registry(settings) as (registry, _):
        refuse_own_tokens(registry.tokenizers, served.tokenizer, subject, prompts)


def keep_certificate(settings: Settings, subject: Subject, certificate: Certificate) -> None:
    with opened_registry(settings) as (registry, _):
        registry.certificates.keep(subject, measured(certificate), actor=ACTOR)
