"""What serving needs to know, held in memory: which key may do what, which name means which adapter.

A snapshot never changes; a newer revision is a new one. Requests read `Snapshots.current` and touch no database.
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from loraplex.lora.files.manifest import SCORE

from .access.keys import ApiKey, KeyRing, Keys
from .access.tenants import Tenant, load_tenants
from .adapters.profiles import ServingProfile, read_profiles
from .adapters.routes import WHOLE, Asker, Route, choose
from .adapters.undo import Undoable, load_undoables
from .adapters.views import Adapter, Version, load_adapters
from .base import ServedBase
from .database.database import Database
from .database.tables import DEFAULT_TENANT
from .errors import AdapterUnavailable, InvalidKey, InvalidName, UnknownAdapter
from .files.artifacts import ArtifactStore
from .names import Reference, nearest_names, parse_reference
from .revision import read_revision

Only = Collection[str] | None
"""Names of models that a key is for; None: all of its tenant."""


@dataclass(frozen=True, slots=True)
class ResolvedAdapter:
    """What a request runs with. `digest` is the identity; the name is for people."""

    name: str
    version: int
    digest: str
    folder: Path
    created_at: datetime
    invocation_tokens: tuple[int, ...]
    """It acts on a prompt from the last occurrence of these on; none: on all of it."""
    vocab_size: int
    """Tokens that it has rows for; 0: those of the base."""
    tokenizer_digest: str | None
    """What it adds to the base's tokenizer; None: nothing."""
    size: int
    """Bytes of its weights."""
    classifies: bool = False
    """It brings a classification head."""
    profile: ServingProfile | None = None
    """How it is asked where the request does not say."""
    route: Route | None = None
    """Of the alias that led to this version; None: the version itself was named."""


@dataclass(frozen=True, slots=True)
class DesiredAdapter:
    """One adapter the engine should have registered."""

    digest: str
    folder: Path
    pinned: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    revision: int
    base: ServedBase | None
    """None: nothing is served (command line), so nothing is checked against a base."""
    adapters: Mapping[str, Mapping[str, Adapter]] = field(repr=False)
    """tenant -> name -> adapter."""
    tenants: Mapping[str, Tenant] = field(repr=False)
    keys: KeyRing
    store: ArtifactStore = field(repr=False)
    profiles: Mapping[str | None, ServingProfile] = field(repr=False)
    """By digest, of all versions."""
    undoables: Sequence[Undoable] = field(repr=False)
    """Of all tenants, the latest first. Their time may be over."""

    def authenticate(self, token: str) -> ApiKey:
        """The key that this token is; raises InvalidKey."""
        key = self.keys.authenticate(token)
        if self.tenants[key.tenant].disabled_at is not None:
            raise InvalidKey(f"The tenant '{key.tenant}' of this API key is disabled. Ask the operator of this server.")
        return key

    def of_tenant(self, tenant: str = DEFAULT_TENANT, only: Only = None) -> Sequence[Adapter]:
        """The tenant's adapters by name, disabled ones too."""
        found = self.adapters.get(tenant, {}).values()
        return [adapter for adapter in found if only is None or adapter.name in only]

    def servable(
        self, tenant: str = DEFAULT_TENANT, only: Only = None, asker: Asker | None = None
    ) -> Sequence[tuple[Adapter, Version]]:
        """Each adapter that its bare name can be used for now, with the version that answers `asker`. Where nothing is
        drawn, that is the stable version unless only candidates answer."""
        pairs = ((adapter, self._answering(adapter, asker)) for adapter in self.of_tenant(tenant, only))
        return [(adapter, version) for adapter, version in pairs if version and not self._obstacle(adapter, version)]

    def resolve(
        self, model: str, tenant: str = DEFAULT_TENANT, only: Only = None, asker: Asker | None = None
    ) -> ResolvedAdapter | None:
        """`name`, `name@3`, `name@alias`, each also as `base:name`; None means the base model itself.

        `asker` is whom an alias routes, by its weights; None: it means its stable version. What is not among
        `only` is unknown. Raises UnknownAdapter with the nearest names, or AdapterUnavailable.
        """
        if self.base is not None and model in self.base.names and (only is None or {model, self.base.name} & {*only}):
            return None
        reference = self._parse(model, tenant, only)
        adapter = self.adapters.get(tenant, {}).get(reference.name)
        if adapter is None or (only is not None and adapter.name not in only):
            raise self._unknown(model, reference.name, tenant, only)
        version, route = _select(adapter, reference), adapter.route(reference.selector)
        if route is not None and route.candidates and asker is not None:
            version = self._routed(adapter, route, version, asker)
        return self._resolved(adapter, version, route)

    def desired(self) -> Sequence[DesiredAdapter]:
        """Every adapter that some reference can reach, once per digest. Nobody reaches those of a disabled tenant."""
        wanted: dict[str, bool] = {}
        served = [names for tenant, names in self.adapters.items() if self.tenants[tenant].disabled_at is None]
        for adapter in (adapter for names in served for adapter in names.values()):
            for version in adapter.versions:
                if not self._obstacle(adapter, version):
                    wanted[version.digest] = wanted.get(version.digest, False) or adapter.pins(version)
        return [DesiredAdapter(digest, self.store.folder(digest), pinned) for digest, pinned in wanted.items()]

    def _answering(self, adapter: Adapter, asker: Asker | None) -> Version | None:
        """Of the versions that the bare name may lead to."""
        stable, route = adapter.current(), adapter.route(None)
        if stable is None or route is None or not route.candidates:
            return stable
        return self._routed(adapter, route, stable, asker)

    def _parse(self, model: str, tenant: str, only: Only) -> Reference:
        base, _, reference = model.rpartition(":")
        if base and (self.base is None or base not in self.base.names):
            raise self._unknown(model, reference, tenant, only)
        try:
            return parse_reference(reference)
        except InvalidName:
            raise self._unknown(model, reference, tenant, only) from None

    def _routed(self, adapter: Adapter, route: Route, stable: Version, asker: Asker | None) -> Version:
        """The version that answers. The share of a candidate that cannot be served goes to the stable one."""
        served = {stable.number: stable}
        for candidate in route.candidates:
            version = adapter.select(candidate.version)
            if version is not None and not self._obstacle(adapter, version):
                served[version.number] = version
        weights = {number: weight for number, weight in route.weights.items() if number in served}
        weights[stable.number] += WHOLE - sum(weights.values())
        drawn = None if asker is None else route.drawn_by(asker)
        if drawn is None:
            weighted = (served[number] for number, weight in weights.items() if weight)
            return next((one for one in weighted if not self._obstacle(adapter, one)), stable)
        return served[choose(weights, f"{adapter.tenant}/{adapter.name}", drawn)]

    @property
    def _heads(self) -> set[str]:
        """Words for the linears of the classification heads that adapters of the base bring."""
        return {SCORE} if self.base is None else {linear.path for linear in self.base.signature.head_linears}

    def _resolved(self, adapter: Adapter, version: Version, route: Route | None) -> ResolvedAdapter:
        obstacle = self._obstacle(adapter, version)
        if obstacle:
            raise AdapterUnavailable(obstacle)
        return ResolvedAdapter(
            name=adapter.name,
            version=version.number,
            digest=version.digest,
            folder=self.store.folder(version.digest),
            created_at=version.created_at,
            invocation_tokens=version.invocation_tokens,
            vocab_size=version.vocab_size,
            tokenizer_digest=version.tokenizer_digest,
            profile=self.profiles.get(version.profile_digest),
            size=version.size,
            classifies=not self._heads.isdisjoint(version.target_modules),
            route=route,
        )

    def _obstacle(self, adapter: Adapter, version: Version) -> str | None:
        label = f"Version {version.number} of adapter '{adapter.name}'"
        if not adapter.enabled:
            return f"Adapter '{adapter.name}' is disabled. Enable it in the dashboard, or use another one."
        if not version.enabled:
            return f"{label} is disabled. Enable it in the dashboard, or use another version."
        if version.broken:
            return f"{label} cannot be served: {version.broken}. Upload the same two files again."
        if self.base is not None and version.base_fingerprint != self.base.signature.fingerprint:
            return f"{label} was checked against a different base model, not '{self.base.name}'. Upload it again."
        return None

    def _unknown(self, model: str, name: str, tenant: str, only: Only) -> UnknownAdapter:
        names = [*(self.base.names if self.base else ()), *self.adapters.get(tenant, {})]
        nearest = nearest_names(name, [known for known in names if only is None or known in only])
        hint = f" Did you mean {' or '.join(f'`{near}`' for near in nearest)}?" if nearest else ""
        return UnknownAdapter(f"The model `{_printable(model)}` does not exist.{hint}", nearest)


class Snapshots:
    """The current snapshot and how to renew it. Safe to use from many threads."""

    def __init__(self, database: Database, keys: Keys, store: ArtifactStore, base: ServedBase | None) -> None:
        self._database, self._keys, self._store, self._base = database, keys, store, base
        self._lock = threading.Lock()
        self._current = self._load()
        self._checked = time.monotonic()

    @property
    def current(self) -> Snapshot:
        return self._current

    @property
    def age(self) -> float:
        """Seconds since the snapshot was last known to be the newest; grows while the database is unavailable."""
        return time.monotonic() - self._checked

    def refresh(self) -> bool:
        """Look at the revision and load anew if it has moved; one small query otherwise. True if it had."""
        with self._lock:
            started = time.monotonic()
            moved = self._revision() != self._current.revision
            if moved:
                self._current = self._load(self._current.profiles)
            self._checked = started
            return moved

    def _revision(self) -> int:
        with self._database.read() as session:
            return read_revision(session)

    def _load(self, known: Mapping[str | None, ServingProfile] | None = None) -> Snapshot:
        with self._database.read() as session:
            revision, ring = read_revision(session), self._keys.load_ring(session)
            tenants = {tenant.name: tenant for tenant in load_tenants(session)}
            adapters: dict[str, dict[str, Adapter]] = {}
            for adapter in load_adapters(session):
                adapters.setdefault(adapter.tenant, {})[adapter.name] = adapter
            versions = (one for names in adapters.values() for adapter in names.values() for one in adapter.versions)
            profiles = read_profiles(session, {version.profile_digest for version in versions}, known)
            undoables = load_undoables(session)
        return Snapshot(revision, self._base, adapters, tenants, ring, self._store, profiles, undoables)


def _select(adapter: Adapter, reference: Reference) -> Version:
    version = adapter.select(reference.selector)
    if version is None:
        raise UnknownAdapter(_no_version(adapter, reference), [adapter.name])
    return version


def _no_version(adapter: Adapter, reference: Reference) -> str:
    if reference.selector in (None, "latest"):
        return f"Adapter '{adapter.name}' has no enabled version. Upload one, or enable one in the dashboard."
    numbers = ", ".join(str(version.number) for version in adapter.versions[-10:]) or "none"
    aliases = ", ".join(adapter.aliases) or "none"
    return f"The model `{reference}` does not exist: '{adapter.name}' has versions {numbers} and aliases {aliases}."


def _printable(text: str) -> str:
    shown = text if len(text) <= 200 else text[:197] + "..."
    return shown.encode("unicode_escape").decode("ascii")
