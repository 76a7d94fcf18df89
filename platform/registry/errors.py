"""What the registry refuses, each in words for the person who asked: what, why and what to do."""

from collections.abc import Sequence

from .report import Report


class RegistryError(ValueError):
    """Base of all refusals. `code` is stable and for programs; the message is for people.

    `field`: what of the request is wrong; None where it is all of it, or clear from the code.
    """

    code = "registry_error"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidName(RegistryError):
    code = "invalid_name"


class UnknownAdapter(RegistryError):
    """No such adapter, version or alias for this tenant. `nearest` are names that do exist, best first."""

    code = "adapter_not_found"

    def __init__(self, message: str, nearest: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.nearest = tuple(nearest)


class AdapterUnavailable(RegistryError):
    """It exists but must not be served: disabled, its bytes are gone, or made for another base model."""

    code = "adapter_unavailable"


class UploadTooLarge(RegistryError):
    code = "upload_too_large"


class UploadEmpty(RegistryError):
    code = "upload_empty"


class UploadMismatch(RegistryError):
    """The bytes are not the ones that were declared, or the declaration is none."""

    code = "upload_mismatch"


class UploadBusy(RegistryError):
    """The same file is being received by another connection."""

    code = "upload_busy"


class UploadMissing(RegistryError):
    """A file was named by its SHA-256 but has not been uploaded."""

    code = "upload_missing"


class StorageFull(RegistryError):
    code = "storage_full"


class InvalidQuery(RegistryError):
    code = "invalid_query"


class InvalidPrompts(RegistryError):
    code = "invalid_prompts"


class InvalidProfile(RegistryError):
    code = "invalid_profile"


class PromotionRefused(RegistryError):
    """The operator lets aliases point at certified versions only, and this is none."""

    code = "promotion_refused"


class InvalidRoute(RegistryError):
    """An alias cannot route like that. Where no `field` is named, its weights are wrong."""

    code = "invalid_route"


class UnknownAlias(RegistryError):
    code = "alias_not_found"


class RouteChanged(RegistryError):
    """A change was meant for another state of the route than it has."""

    code = "route_changed"


class VersionInUse(RegistryError):
    """An alias stands in the way of removing or disabling it."""

    code = "version_in_use"


class UndoRefused(RegistryError):
    """There is nothing to undo, or not any more."""

    code = "undo_refused"


class CertificatesWaiting(RegistryError):
    """The tenant has as many certificates waiting as it may."""

    code = "certificates_waiting"


class UnknownFile(RegistryError):
    code = "file_not_found"


class FileInUse(RegistryError):
    """A batch that has not ended reads it."""

    code = "file_in_use"


class FilesFull(RegistryError):
    """The tenant's files have as many bytes as they may."""

    code = "files_full"


class UnknownBatch(RegistryError):
    code = "batch_not_found"


class BatchEnded(RegistryError):
    """There is nothing to cancel any more."""

    code = "batch_ended"


class BatchesWaiting(RegistryError):
    """The tenant has as many batches that have not ended as it may."""

    code = "batches_waiting"


class UnknownResponse(RegistryError):
    code = "response_not_found"


class UnknownTenant(RegistryError):
    code = "tenant_not_found"


class TenantDisabled(RegistryError):
    code = "tenant_disabled"


class UnknownUser(RegistryError):
    code = "user_not_found"


class NameTaken(RegistryError):
    code = "name_taken"


class LastAdmin(RegistryError):
    """A tenant that has users keeps one who may manage them."""

    code = "last_admin"


class InvalidKey(RegistryError):
    code = "invalid_api_key"


class WeakSecret(RegistryError):
    code = "weak_secret"


class PreflightRefused(RegistryError):
    """The adapter must not be served; `report` says why, one failing finding for each reason."""

    code = "preflight_failed"

    def __init__(self, report: Report) -> None:
        super().__init__(" ".join(finding.sentence for finding in report.failures))
        self.report = report
