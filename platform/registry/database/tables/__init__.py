"""The tables: who may do what (`access`), what is served (`adapters`), what that costs (`certificates`), what
was used (`usage`), what runs in the background (`batches`), which answers are kept (`responses`)."""

from ...names import DEFAULT_TENANT
from .access import ApiKey, AuditHead, AuditRow, LoginSession, Secret, Tenant, User
from .adapters import (
    Adapter,
    AdapterVersion,
    Alias,
    AliasCandidate,
    Artifact,
    Revision,
    ServingProfile,
    Tokenizer,
    Undo,
    Upload,
)
from .batches import Batch, File
from .certificates import Certificate, Certifier, GoldenPrompts
from .responses import StoredResponse
from .table import Table, UtcDateTime, utc_now
from .usage import OpenRequest, UsageDay, UsageRow, UsageWriter

__all__ = [
    "DEFAULT_TENANT",
    "Adapter",
    "AdapterVersion",
    "Alias",
    "AliasCandidate",
    "ApiKey",
    "Artifact",
    "AuditHead",
    "AuditRow",
    "Batch",
    "Certificate",
    "Certifier",
    "File",
    "GoldenPrompts",
    "LoginSession",
    "OpenRequest",
    "Revision",
    "Secret",
    "ServingProfile",
    "StoredResponse",
    "Table",
    "Tenant",
    "Tokenizer",
    "Undo",
    "Upload",
    "UsageDay",
    "UsageRow",
    "UsageWriter",
    "User",
    "UtcDateTime",
    "utc_now",
]
