"""On whose behalf a batch runs: who has made it, as long as that caller may use models."""

from loraplex.registry.access.keys import check_usable
from loraplex.registry.batches.views import Batch
from loraplex.registry.errors import InvalidKey
from loraplex.registry.registry import Registry

from ..access.caller import Caller
from ..access.permissions import Permission, permissions_of_key, permissions_of_user
from ..endpoints.authentication import ANYONE


class NoCaller(Exception):
    """The batch must stop; the text says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def caller_of_batch(registry: Registry, batch: Batch, no_api_key: bool) -> Caller:
    """With the rights that its maker has now. `no_api_key`: the setting. Blocks where its maker is a person. Raises
    NoCaller."""
    snapshot = registry.snapshots.current
    home, _, name = batch.created_by.rpartition("/")
    for tenant in {batch.tenant, home or batch.tenant}:
        if snapshot.tenants[tenant].disabled_at is not None:
            raise NoCaller("tenant_disabled", f"The tenant '{tenant}' is disabled. Ask the operator of this server.")
    if no_api_key and batch.created_by == ANYONE.actor:
        return ANYONE
    caller = _maker(registry, name, home or batch.tenant).acting_for(batch.tenant)
    if not caller.allows(Permission.INFERENCE):
        raise NoCaller("insufficient_permissions", f"{batch.created_by} may no longer use models.")
    return caller


def _maker(registry: Registry, actor: str, tenant: str) -> Caller:
    kind, _, name = actor.partition(":")
    if kind == "key":
        return _key(registry, name, tenant)
    if kind == "user":
        user = registry.users.get(name, tenant)
        if user is None:
            raise NoCaller("user_removed", f"The user '{name}', who made this batch, was removed.")
        return Caller(tenant, actor, permissions_of_user(user.role, tenant))
    return Caller(tenant, actor, permissions_of_key(frozenset({"admin"}), tenant))


def _key(registry: Registry, prefix: str, tenant: str) -> Caller:
    key, _ = registry.snapshots.current.keys.keys.get(prefix, (None, ""))
    if key is None or key.tenant != tenant:
        raise NoCaller("key_revoked", f"The API key {prefix}, which made this batch, was revoked.")
    try:
        check_usable(key)
    except InvalidKey as error:
        raise NoCaller("key_revoked", f"The API key {prefix} made this batch. {error}") from None
    return Caller(tenant, f"key:{prefix}", permissions_of_key(key.scopes, tenant), only=key.adapters, quota=key.quota)
