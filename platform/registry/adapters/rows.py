"""Finding the rows that a reference means, within a session and a tenant."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..access.tenants import tenant_id
from ..database import tables
from ..errors import UnknownAdapter
from ..names import Reference, check_adapter_name, nearest_names
from ..report import Summary
from .views import adapter_view


def adapter_row(session: Session, name: str, tenant: str) -> tables.Adapter:
    """Raises UnknownAdapter with the nearest names."""
    check_adapter_name(name)
    row = _adapter(session, name, tenant)
    if row is None or row.removed_at is not None:
        raise _unknown(session, name, tenant)
    return row


def any_adapter_row(session: Session, name: str, tenant: str) -> tables.Adapter:
    """The same, also of one that was removed."""
    check_adapter_name(name)
    return _adapter(session, name, tenant) or adapter_row(session, name, tenant)


def version_row(session: Session, reference: Reference, tenant: str) -> tables.AdapterVersion:
    """The version that the reference means; for a bare name the one that it means."""
    adapter = adapter_row(session, reference.name, tenant)
    version = adapter_view(adapter).select(reference.selector)
    if version is None:
        raise UnknownAdapter(f"Adapter '{adapter.name}' has no version '{reference}'.", [adapter.name])
    return next(row for row in adapter.versions if row.number == version.number)


def target_row(
    session: Session, reference: Reference, tenant: str
) -> tuple[tables.Adapter, tables.AdapterVersion | None]:
    """The adapter, and the version unless the reference is a bare name."""
    if reference.selector is None:
        return adapter_row(session, reference.name, tenant), None
    version = version_row(session, reference, tenant)
    return version.adapter, version


def get_or_add_adapter(session: Session, name: str, tenant: str, actor: str) -> tables.Adapter:
    """The row of this name, in use again if it was removed."""
    row = _adapter(session, name, tenant)
    if row is None:
        row = tables.Adapter(name=name, tenant_id=tenant_id(session, tenant), created_by=actor)
        session.add(row)
        session.flush()
    elif row.removed_at is not None:
        row.removed_at, row.removed_by, row.enabled, row.pinned = None, None, True, False
        row.prompts_digest = None
    return row


def artifact_row(session: Session, summary: Summary) -> tables.Artifact:
    """The row of this digest; a new one does not know its files yet."""
    row = session.get(tables.Artifact, summary.digest)
    if row is None:
        row = tables.Artifact(
            digest=summary.digest,
            peft_type=summary.peft_type,
            rank=summary.rank,
            alpha=summary.alpha,
            target_modules=summary.target_modules,
            parameters=summary.parameters,
            base_model=summary.base_model,
            invocation_tokens=summary.invocation_tokens,
            vocab_size=summary.vocab_size,
        )
    return row


def _adapter(session: Session, name: str, tenant: str) -> tables.Adapter | None:
    query = select(tables.Adapter).join(tables.Tenant)
    return session.scalars(query.where(tables.Adapter.name == name, tables.Tenant.name == tenant)).one_or_none()


def _unknown(session: Session, name: str, tenant: str) -> UnknownAdapter:
    query = select(tables.Adapter.name).join(tables.Tenant)
    names = session.scalars(query.where(tables.Tenant.name == tenant, tables.Adapter.removed_at.is_(None)))
    nearest = nearest_names(name, names.all())
    hint = f" Did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
    return UnknownAdapter(f"There is no adapter '{name}'.{hint}", nearest)
