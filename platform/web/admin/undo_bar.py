"""The bar that offers to undo one's last change, on whichever page one goes to."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from loraplex.registry.snapshot import Snapshots

from ..access.caller import Caller

DONE: Final = {
    "adapter.disable": "{} was disabled.",
    "adapter.enable": "{} was enabled.",
    "adapter.remove": "{} was deleted.",
    "adapter.roll": "{} is current.",
    "alias.promote": "The candidate of {} was promoted.",
    "alias.remove": "The route of {} was removed.",
    "alias.rollback": "{} was rolled back.",
    "alias.set": "The route of {} was changed.",
}


@dataclass(frozen=True, slots=True)
class UndoBar:
    """`seconds`: how long it may still be undone. `tenant`: whose it is, where that is not one's own."""

    adapter: str
    tenant: str
    change: str
    words: str
    seconds: int


def undo_bar(snapshots: Snapshots, caller: Caller) -> UndoBar | None:
    """Of the caller's last change; None: there is none, or its time is over."""
    now = datetime.now(UTC)
    for one in snapshots.current.undoables:
        if one.until > now and one.actor == caller.acting_for(one.tenant).actor:
            name = one.subject.partition(":")[2].removesuffix("@default")
            tenant = "" if one.tenant == caller.tenant else one.tenant
            seconds = int((one.until - now).total_seconds())
            return UndoBar(one.adapter, tenant, one.change, DONE[one.action].format(name), seconds)
    return None
