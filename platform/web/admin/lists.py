"""What a list page is asked for in its address."""

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends


@dataclass(frozen=True, slots=True)
class Asked:
    """`search`: a part of a name; `show`: one of the page's groups; `done`: what has just been done there."""

    search: str = ""
    show: str = ""
    order: str = ""
    done: str = ""


async def _asked(search: str = "", show: str = "", order: str = "", done: str = "") -> Asked:
    return Asked(search, show, order, done)


ALL: Final = Asked()
AskedOf = Annotated[Asked, Depends(_asked)]
