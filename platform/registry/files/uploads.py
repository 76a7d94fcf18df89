"""Whose uploaded files are whose: the store keeps equal bytes once, but a tenant finds only what it sent itself."""

from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from ..access.tenants import tenant_id
from ..database import tables
from ..database.database import Database
from ..database.tables import Tenant, utc_now
from .artifacts import ArtifactStore, check_sha256
from .incoming import Blob


class Uploads:
    def __init__(self, database: Database, store: ArtifactStore) -> None:
        self._database, self._store = database, store

    def note(self, sha256: str, tenant: str) -> None:
        """The tenant has sent this file, or the operator has brought it in for the tenant."""
        check_sha256(sha256)
        with self._database.write() as session:
            owner = tenant_id(session, tenant)
            if session.get(tables.Upload, (owner, sha256)) is None:
                session.add(tables.Upload(tenant_id=owner, sha256=sha256))

    def find(self, sha256: str, tenant: str) -> Blob | None:
        """The file if the tenant has sent it and it is still here. Raises UploadMismatch for what is no SHA-256."""
        check_sha256(sha256)
        query = select(tables.Upload).join(Tenant, Tenant.id == tables.Upload.tenant_id)
        with self._database.read() as session:
            found = session.scalars(query.where(tables.Upload.sha256 == sha256, Tenant.name == tenant)).one_or_none()
        return None if found is None else self._store.find(sha256)


def forget_uploads(session: Session, store: ArtifactStore, grace: timedelta) -> None:
    """Of files that are gone."""
    old = session.scalars(select(tables.Upload).where(tables.Upload.created_at < utc_now() - grace))
    gone = {row.sha256 for row in old if not store.blob_path(row.sha256).exists()}
    for sha256 in gone:
        session.execute(delete(tables.Upload).where(tables.Upload.sha256 == sha256))
