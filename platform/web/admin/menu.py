"""The menu: which pages there are, the keys that lead to them, and who finds which."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..access.caller import Caller


@dataclass(frozen=True, slots=True)
class Entry:
    """`keys` are pressed one after the other. `listed`: it stands in the menu; otherwise only its keys lead there."""

    path: str
    label: str
    keys: str
    listed: bool = True


MENU: Final = (
    Entry("/", "Overview", "g o"),
    Entry("/adapters", "Adapters", "g a"),
    Entry("/upload", "Upload", "g u", listed=False),
    Entry("/cache", "Cache", "g c"),
    Entry("/playground", "Playground", "g p"),
    Entry("/requests", "Requests", "g r"),
    Entry("/batches", "Batches", "g b"),
    Entry("/usage", "Usage", "g n"),
    Entry("/keys", "Keys", "g k"),
    Entry("/users", "Users", "g m"),
    Entry("/tenants", "Tenants", "g t"),
    Entry("/audit", "Audit log", "g l"),
    Entry("/system", "System", "g s"),
)


def menu_of(caller: Caller | None) -> Sequence[Entry]:
    """The pages that the caller may open; none for who is not logged in."""
    return [entry for entry in MENU if caller is not None and caller.may(f"GET {entry.path}")]
