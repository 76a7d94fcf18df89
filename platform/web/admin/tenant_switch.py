"""The choice of the tenant that the operator looks at, which every page has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loraplex.registry.snapshot import Snapshots

from ..access.caller import Caller
from ..access.permissions import Permission

MOST_NAMES: Final = 100
"""More are chosen on the page of the tenants."""


@dataclass(frozen=True, slots=True)
class TenantSwitch:
    """`page`: where a choice leads, the section that one is in. `tenants`: own first. `more`: some have no place."""

    page: str
    tenants: Sequence[str]
    chosen: str
    own: str
    more: bool


def tenant_switch(snapshots: Snapshots, caller: Caller | None, section: str) -> TenantSwitch | None:
    """None for who may not look at other tenants, and while there are none."""
    names = snapshots.current.tenants
    if caller is None or not caller.allows(Permission.OPERATE) or len(names) < 2:
        return None
    others = sorted(names.keys() - {caller.own_tenant})
    shown = others[:MOST_NAMES]
    if caller.elsewhere and caller.elsewhere not in shown:
        shown.append(caller.elsewhere)
    tenants = [caller.own_tenant, *shown]
    return TenantSwitch(section or "/", tenants, caller.tenant, caller.own_tenant, len(tenants) < len(names))
