"""PackageLocator: where numba keeps a compiled function of ours, by its file's place below our packages.

numba itself goes by the full path of a source file. By the place alone, every checkout and every installation of the
same sources shares one cache. `device/threads.py` names this class in NUMBA_CACHE_LOCATOR_CLASSES.
"""

from pathlib import Path
from typing import Any, Final, Self

from numba.core.caching import UserProvidedCacheLocator

PACKAGES: Final = Path(__file__).parents[2]


def place_of(file: str) -> str:
    """Below our packages; the whole path of a file that is not ours."""
    return str(Path(file).relative_to(PACKAGES)) if is_ours(file) else file


def is_ours(file: str) -> bool:
    return Path(file).is_relative_to(PACKAGES)


class PackageLocator(UserProvidedCacheLocator):  # type: ignore[misc]  # numba is untyped
    @classmethod
    def get_suitable_cache_subpath(cls, file: str) -> str:
        return ".".join(Path(place_of(file)).parent.parts)

    @classmethod
    def from_function(cls, function: Any, file: str) -> Self | None:
        """None for a function that is not ours: numba's own locators find a place for it."""
        return super().from_function(function, file) if is_ours(file) else None
