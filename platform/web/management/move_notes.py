"""Loads and evictions that somebody asked for, in the audit log. Those of the engine's own accord are no deed."""

import asyncio
from typing import TYPE_CHECKING

from ..access.caller import Caller

if TYPE_CHECKING:
    from ..state import State


async def note_move(state: "State", caller: Caller, action: str, name: str, version: int) -> None:
    """`action`: load or evict."""
    subject = f"adapter:{name}@{version}"
    await asyncio.to_thread(state.registry.audit.note, caller.actor, f"adapter.{action}", subject, caller.tenant)
