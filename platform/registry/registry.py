"""The whole registry behind one door."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .access.keys import Keys
from .access.sessions import Sessions
from .access.tenants import Tenants
from .access.users import Users
from .adapters.adapters import Adapters
from .adapters.profiles import ServingProfiles
from .adapters.promotion import PromotionRule
from .adapters.undo import Undos
from .audit import AuditLog
from .base import ServedBase
from .batches.batches import Batches
from .batches.files import Files
from .certificates.certificate_runs import CertificateRuns
from .certificates.certificates import Certificates
from .database.database import Database
from .files.artifacts import ArtifactStore
from .files.preflight import Preflight
from .files.tokenizers import Tokenizers
from .files.uploads import Uploads
from .snapshot import Snapshots
from .stored_responses import StoredResponses
from .usage.usage import Usage


@dataclass(frozen=True, slots=True)
class Registry:
    """Made by Registry.open(). All methods of its parts block on disk or database and may be called from any thread;
    only `snapshots.current` is free of both."""

    database: Database
    store: ArtifactStore
    adapters: Adapters
    tokenizers: Tokenizers
    profiles: ServingProfiles
    uploads: Uploads
    files: Files
    batches: Batches
    certificates: Certificates
    certificate_runs: CertificateRuns
    tenants: Tenants
    keys: Keys
    users: Users
    sessions: Sessions
    usage: Usage
    audit: AuditLog
    undos: Undos
    responses: StoredResponses
    snapshots: Snapshots
    preflight: Preflight | None
    """None when opened without a base model."""

    @classmethod
    def open(
        cls,
        url: str,
        artifacts: Path,
        base: ServedBase | None = None,
        free_floor: int = 1 << 30,
        rule: PromotionRule | None = None,
        serving: str | None = None,
    ) -> Self:
        """Open a database that is migrated to the head. `base` is needed to check adapters and to serve them; `rule`
        says which versions an alias may point at; `serving`, how the base is served, whose certificates are measured
        here."""
        database, store = Database(url), ArtifactStore(artifacts, free_floor)
        keys = Keys(database)
        return cls(
            database=database,
            store=store,
            adapters=Adapters(database, store, () if base is None else base.names, rule, serving),
            tokenizers=Tokenizers(database),
            profiles=ServingProfiles(database),
            uploads=Uploads(database, store),
            files=Files(database, store),
            batches=Batches(database, store),
            certificates=Certificates(database, serving),
            certificate_runs=CertificateRuns(database, serving=serving),
            tenants=Tenants(database),
            keys=keys,
            users=Users(database),
            sessions=Sessions(database),
            usage=Usage(database),
            audit=AuditLog(database),
            undos=Undos(database),
            responses=StoredResponses(database),
            snapshots=Snapshots(database, keys, store, base),
            preflight=None if base is None else Preflight(store, base),
        )

    def close(self) -> None:
        self.database.close()
