"""Changing which adapters there are and how they are to be served. Each change is one transaction that bumps the
revision and writes an audit row; the bytes of an adapter are on the disk before its row is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from sqlalchemy.orm import Session

from ..access.tenants import tenant_id
from ..audit import record
from ..certificates.certificates import CoverageOf, Subject, request_of_upload
from ..certificates.golden_prompts import keep_prompts, read_prompts
from ..database import tables
from ..database.database import Database
from ..database.tables import DEFAULT_TENANT, utc_now
from ..errors import InvalidName, PreflightRefused, UnknownAdapter
from ..files.adapter_tokenizer import AdapterTokenizer
from ..files.artifacts import ArtifactStore
from ..files.incoming import Blob
from ..files.tokenizers import keep_tokenizer
from ..names import Reference, check_adapter_name, parse_reference
from ..report import Report
from ..revision import bump_revision
from .activation import Activation
from .alias_routes import AliasRoutes
from .alias_rows import check_unrouted, drop_versions
from .promotion import PromotionRule
from .rows import adapter_row, artifact_row, get_or_add_adapter, target_row, version_row
from .undo import undoable
from .views import Adapter, Version, adapter_view, load_adapters, version_view

REMOVE: Final = "adapter.remove"


@dataclass(frozen=True, slots=True)
class AddedVersion:
    """`created` is False when the newest enabled version is exactly these bytes: the upload was a repetition. `before`
    and `after`: the adapter, which had no versions where its name is new."""

    name: str
    version: Version
    created: bool
    before: Adapter
    after: Adapter


class Adapters:
    """A reference `name` means the adapter as a whole, `name@3` or `name@alias` one version of it.

    Every method raises InvalidName or UnknownAdapter for a reference that means nothing to the tenant.
    `actor` is `user:<name>`, `key:<prefix>`, `cli` or `system`. `reserved` are the base model's names. `rule`: which
    versions an alias may point at; None: any. `serving`: as of Certificates.
    """

    def __init__(
        self,
        database: Database,
        store: ArtifactStore,
        reserved: Sequence[str] = (),
        rule: PromotionRule | None = None,
        serving: str | None = None,
    ) -> None:
        self._database, self._store, self._reserved, self._serving = database, store, reserved, serving
        self.routes = AliasRoutes(database, rule)

    def check_name(self, name: str) -> None:
        """Raise InvalidName unless an adapter may have this name."""
        check_adapter_name(name)
        if name in map(str.lower, self._reserved):
            raise InvalidName(
                f"'{name}' is the name of the base model. Choose another name for the adapter, or another served_name."
            )

    def add_version(
        self,
        name: str,
        config: Blob,
        weights: Blob,
        report: Report,
        *,
        base_fingerprint: str,
        actor: str,
        tenant: str = DEFAULT_TENANT,
        tokenizer: AdapterTokenizer | None = None,
        certify: CoverageOf | None = None,
        activation: Activation | None = None,
    ) -> AddedVersion:
        """Make `name` mean these two received files, and what they add to the base's tokenizer; `report` is what
        preflight said of them on this base. `certify`: ask for a certificate of a new version, unless its content has a
        valid one by this; None: ask for none. `activation`: whom it answers; None: the bare name goes on meaning what
        it means by its route, and without one it means the newest version.

        The same again give the same version, anything else the next one. When this returns, the version is
        durable. Raises InvalidName, PreflightRefused, UploadMissing, StorageFull, and InvalidRoute and
        PromotionRefused for what `activation` may not do.
        """
        self.check_name(name)
        if report.summary is None or not report.passed:
            self._record_refusal(name, report, actor, tenant)
            raise PreflightRefused(report)
        with self._database.write() as session:
            bump_revision(session)
            artifact = artifact_row(session, report.summary)
            self._store_bytes(artifact, config, weights)
            adapter = get_or_add_adapter(session, name, tenant, actor)
            before = adapter_view(adapter)
            newest = before.latest()
            digests = artifact.digest, base_fingerprint, keep_tokenizer(session, tokenizer)
            if newest and (newest.digest, newest.base_fingerprint, newest.tokenizer_digest) == digests:
                row = next(one for one in adapter.versions if one.number == newest.number)
                self._activate(session, adapter, row, before, activation, actor)
                return AddedVersion(name, newest, False, before, adapter_view(adapter))
            row = tables.AdapterVersion(
                number=max((version.number for version in adapter.versions), default=0) + 1,
                artifact=artifact,
                base_fingerprint=base_fingerprint,
                tokenizer_digest=digests[2],
                profile_digest=before.inherited_profile(),
                report=msgspec.to_builtins(report),
                uploaded_by=actor,
            )
            adapter.versions.append(row)
            _record(session, actor, "adapter.add", adapter, row.number, digest=artifact.digest)
            session.flush()
            self._activate(session, adapter, row, before, activation, actor)
            if certify is not None:
                subject = Subject(artifact.digest, adapter.prompts_digest)
                request_of_upload(session, subject, actor, adapter.tenant_id, certify, self._serving)
            return AddedVersion(name, version_view(row), True, before, adapter_view(adapter))

    def list(self, tenant: str = DEFAULT_TENANT) -> Sequence[Adapter]:
        """The tenant's adapters by name, disabled ones too."""
        with self._database.read() as session:
            return [adapter for adapter in load_adapters(session) if adapter.tenant == tenant]

    def get(self, name: str, tenant: str = DEFAULT_TENANT) -> Adapter:
        with self._database.read() as session:
            return adapter_view(adapter_row(session, name, tenant))

    def version(self, reference: str, tenant: str = DEFAULT_TENANT) -> Version:
        """The version that the reference means; for a bare name the one that it means."""
        with self._database.read() as session:
            return version_view(version_row(session, parse_reference(reference), tenant))

    def report(self, reference: str, tenant: str = DEFAULT_TENANT) -> Report:
        """What preflight said of the version that the reference means."""
        with self._database.read() as session:
            row = version_row(session, parse_reference(reference), tenant)
            return msgspec.convert(row.report, Report)

    def set_enabled(self, reference: str, enabled: bool, *, actor: str, tenant: str = DEFAULT_TENANT) -> Adapter:
        """A disabled adapter or version is kept but not served. Raises VersionInUse for a route's stable version."""
        with self._database.write() as session:
            bump_revision(session)
            adapter, version = target_row(session, parse_reference(reference), tenant)
            action = "adapter.enable" if enabled else "adapter.disable"
            with undoable(session, adapter, action, _subject(adapter, _number(version)), actor):
                self._enable(session, adapter, version, enabled, actor)
            return adapter_view(adapter)

    def roll_to(self, reference: str, *, actor: str, tenant: str = DEFAULT_TENANT) -> Adapter:
        """Let the bare name, which has no route, mean this version: it is enabled, and newer ones are disabled. Raises
        VersionInUse where one of these is a route's stable version."""
        with self._database.write() as session:
            bump_revision(session)
            adapter, version = target_row(session, parse_reference(reference), tenant)
            if version is None:
                raise UnknownAdapter(f"Name a version of '{adapter.name}', such as {adapter.name}@NUMBER.")
            with undoable(session, adapter, "adapter.roll", _subject(adapter, version.number), actor):
                self._enable(session, adapter, version, True, actor)
                for newer in adapter.versions:
                    if newer.number > version.number and newer.enabled and newer.removed_at is None:
                        self._enable(session, adapter, newer, False, actor)
            return adapter_view(adapter)

    def set_pinned(self, reference: str, pinned: bool, *, actor: str, tenant: str = DEFAULT_TENANT) -> Adapter:
        """Pinned stays resident: a version, or for a bare name whichever version that name means."""
        with self._database.write() as session:
            bump_revision(session)
            adapter, version = target_row(session, parse_reference(reference), tenant)
            (version or adapter).pinned = pinned
            _record(session, actor, "adapter.pin" if pinned else "adapter.unpin", adapter, _number(version))
            return adapter_view(adapter)

    def prompts(self, name: str, tenant: str = DEFAULT_TENANT) -> Sequence[str] | None:
        """What its certificates are measured on; None: generated prompts."""
        with self._database.read() as session:
            return read_prompts(session, adapter_row(session, name, tenant).prompts_digest)

    def set_prompts(
        self, name: str, prompts: Sequence[str] | None, *, actor: str, tenant: str = DEFAULT_TENANT
    ) -> Adapter:
        """Measure its certificates on these from now on; None: on generated ones. Raises InvalidPrompts."""
        with self._database.write() as session:
            bump_revision(session)
            adapter = adapter_row(session, name, tenant)
            adapter.prompts_digest = keep_prompts(session, prompts)
            _record(session, actor, "adapter.prompts", adapter, None, count=len(prompts or ()))
            return adapter_view(adapter)

    def remove(self, reference: str, *, actor: str, tenant: str = DEFAULT_TENANT) -> None:
        """Serve it no more. The row stays, and so do the bytes for the grace time of the sweep, so that requests
        which run with it end well. An adapter goes with its last version."""
        with self._database.write() as session:
            bump_revision(session)
            adapter, version = target_row(session, parse_reference(reference), tenant)
            with undoable(session, adapter, REMOVE, _subject(adapter, _number(version)), actor):
                _remove_versions(adapter, [version] if version else adapter.versions, actor)
                if all(row.removed_at is not None for row in adapter.versions):
                    adapter.removed_at, adapter.removed_by = utc_now(), actor
                _record(session, actor, REMOVE, adapter, _number(version))

    def _activate(
        self,
        session: Session,
        adapter: tables.Adapter,
        version: tables.AdapterVersion,
        before: Adapter,
        activation: Activation | None,
        actor: str,
    ) -> None:
        current = before.current()
        if activation is not None and current is not None:
            self.routes.activate(session, adapter, version, current.number, activation, actor)

    def _enable(
        self,
        session: Session,
        adapter: tables.Adapter,
        version: tables.AdapterVersion | None,
        enabled: bool,
        actor: str,
    ) -> None:
        if version is not None and version.enabled and not enabled:
            check_unrouted(adapter, version)
        (version or adapter).enabled = enabled
        _record(session, actor, "adapter.enable" if enabled else "adapter.disable", adapter, _number(version))

    def _store_bytes(self, artifact: tables.Artifact, config: Blob, weights: Blob) -> None:
        if artifact.config_sha256 is None or self._problem(artifact):
            self._store.publish(artifact.digest, config, weights)
            artifact.config_sha256, artifact.config_size = config.sha256, config.size
            artifact.weights_sha256, artifact.weights_size = weights.sha256, weights.size
        artifact.broken = None

    def _problem(self, artifact: tables.Artifact) -> str | None:
        return self._store.problem(artifact.digest, artifact.config_size, artifact.weights_size)

    def _record_refusal(self, name: str, report: Report, actor: str, tenant: str) -> None:
        checks = [finding.check for finding in report.failures]
        with self._database.write() as session:
            subject, tenant_of = f"adapter:{name}", tenant_id(session, tenant)
            record(session, actor, "adapter.refuse", subject, tenant_id=tenant_of, failed=checks)


def _remove_versions(adapter: tables.Adapter, versions: Sequence[tables.AdapterVersion], actor: str) -> None:
    for version in versions:
        if version.removed_at is None:
            version.removed_at, version.removed_by = utc_now(), actor
    drop_versions(adapter, versions, whole=all(row.removed_at is not None for row in adapter.versions))


def _number(version: tables.AdapterVersion | None) -> int | None:
    return None if version is None else version.number


def _subject(adapter: tables.Adapter, selector: int | str | None) -> str:
    return f"adapter:{Reference(adapter.name, selector)}"


def _record(
    session: Session, actor: str, action: str, adapter: tables.Adapter, selector: int | str | None, **detail: object
) -> None:
    record(session, actor, action, _subject(adapter, selector), tenant_id=adapter.tenant_id, **detail)
