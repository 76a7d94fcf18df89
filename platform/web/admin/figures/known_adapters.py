"""What people call the adapters that the engine knows by their digests, as far as they may know them."""

from collections.abc import Mapping
from dataclasses import dataclass

from loraplex.registry.adapters.views import Adapter, Version
from loraplex.registry.snapshot import Snapshots

from ...access.caller import Caller
from ...observability.metrics import adapter_label
from ..addresses import local_address


@dataclass(frozen=True, slots=True)
class Known:
    """`label`: its name, for the operator with the tenant in front where it is another's, which then is `elsewhere`;
    `path`: of its page."""

    adapter: Adapter
    version: Version
    label: str
    path: str
    elsewhere: str = ""

    @property
    def reference(self) -> str:
        return f"{self.label}@{self.version.number}"


def known_adapters(snapshots: Snapshots, caller: Caller) -> Mapping[str, Known]:
    """By digest. Of several with the same bytes the caller's own, and of these the current version of the newest."""
    tenants = snapshots.current.adapters
    own, found = caller.tenant, dict[str, Known]()
    for tenant in sorted(tenants, key=lambda tenant: tenant != own) if caller.oversees else [own]:
        for adapter in tenants.get(tenant, {}).values():
            current = adapter.current()
            for version in adapter.versions:
                known = found.get(version.digest)
                if known is None or (version is current and known.adapter.tenant == tenant):
                    found[version.digest] = _known(adapter, version, caller)
    return found


def _known(adapter: Adapter, version: Version, caller: Caller) -> Known:
    elsewhere = "" if adapter.tenant == caller.own_tenant else adapter.tenant
    label = adapter.name if adapter.tenant == caller.tenant else adapter_label(adapter.tenant, adapter.name)
    return Known(adapter, version, label, local_address(f"/adapters/{adapter.name}", elsewhere), elsewhere)
