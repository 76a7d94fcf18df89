"""Caller: who asks, and whose things are meant."""

from dataclasses import dataclass, replace
from typing import Self, TypedDict

from loraplex.registry.access.quotas import OPEN, Quota
from loraplex.registry.usage.ledger import Books

from .permissions import PUBLIC, Permission, demand_of
from .sessions import Session


class By(TypedDict):
    """Who changes something of the registry, and whose."""

    actor: str
    tenant: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and whose things are meant. `permissions` hold within `tenant`."""

    tenant: str
    """Whose things are meant: the credential's own tenant, or another one that the operator has named."""
    actor: str
    """`key:<prefix>`, `user:<name>` or `cli`, as audit rows of `tenant` name it: with its own tenant in front, where
    that is another."""
    permissions: frozenset[Permission]
    session: Session | None = None
    only: frozenset[str] | None = None
    """Names of the models that the key is for; None: all of the tenant."""
    quota: Quota = OPEN
    """Of the key; that of the tenant holds beside it."""
    home: str = ""
    """The credential's own tenant, where another one's things are meant."""
    books: Books | None = None
    """Of a line of a batch: where it is booked. It runs behind all requests of people."""
    line: str = ""
    """Of a line of a batch: 32 hexadecimal digits, the same when it runs again after a crash."""

    @property
    def by(self) -> By:
        """As the registry's changes take it."""
        return {"actor": self.actor, "tenant": self.tenant}

    @property
    def elsewhere(self) -> str:
        """The tenant whose things are meant, where it is not the credential's own."""
        return self.tenant if self.home else ""

    @property
    def oversees(self) -> bool:
        """The operator, who looks at the server as a whole and not at one of its other tenants."""
        return self.allows(Permission.OPERATE) and not self.home

    @property
    def own_tenant(self) -> str:
        """Of the credential."""
        return self.home or self.tenant

    def acting_for(self, tenant: str) -> Self:
        """The same operator, where the things of `tenant` are meant."""
        own = self.own_tenant
        name = self.actor.removeprefix(f"{own}/") if self.home else self.actor
        if tenant == own:
            return replace(self, tenant=own, actor=name, home="")
        return replace(self, tenant=tenant, actor=f"{own}/{name}", home=own)

    def allows(self, permission: str) -> bool:
        return permission in self.permissions

    def may(self, route: str) -> bool:
        """Whether the guard lets a request through, by its method and path: `POST /adapters/{name}/delete`."""
        needed = demand_of(route)
        return needed == PUBLIC or self.allows(needed)
