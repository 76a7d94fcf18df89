"""Looking at a version's serving profile and changing it; shared by the admin API and the dashboard."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.registry.adapters.views import Version
from loraplex.registry.names import parse_reference

from ..access.caller import Caller
from ..http.refusals import as_api_error
from .changes import apply_change
from .profile_check import ProfileTrial, read_profile, try_profile

if TYPE_CHECKING:
    from ..state import State


async def find_profile(state: "State", caller: Caller, reference: str) -> tuple[Version, ServingProfile | None]:
    """The version that the reference means, and its profile. Raises ApiError."""
    with as_api_error():
        return await asyncio.to_thread(state.registry.profiles.get, reference, caller.tenant)


async def set_profile(state: "State", caller: Caller, reference: str, document: Mapping[str, Any]) -> None:
    """Check it and have the version asked by it. Raises ApiError that names the field."""
    version, _ = await find_profile(state, caller, reference)
    profile = read_profile(document)
    name = parse_reference(reference).name
    await try_profile(profile, bench_of(state, caller, version))
    # What was tried is what is changed, whatever the name means by now.
    await apply_change(state, state.registry.profiles.set, f"{name}@{version.number}", profile, **caller.by)


async def clear_profile(state: "State", caller: Caller, reference: str) -> None:
    """Remove the serving profile of the version. Raises ApiError."""
    await apply_change(state, state.registry.profiles.set, reference, None, **caller.by)


def bench_of(state: "State", caller: Caller, version: Version) -> ProfileTrial:
    """A tenant's templates rest together here: they are all tried in the same few processes."""
    return ProfileTrial(
        state.text_processors,
        version.tokenizer_digest,
        f"tenant {caller.tenant}",
        state.max_model_len,
        state.model_folder,
    )
