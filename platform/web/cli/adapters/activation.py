"""Options of the words that register a version: whom it answers."""

from typing import Annotated, Any

import typer

from loraplex.registry.adapters.activation import MODES, Activation, Mode
from loraplex.registry.adapters.routes import share_by_of
from loraplex.registry.errors import InvalidRoute

Activate = Annotated[
    str,
    typer.Option(
        metavar="|".join(MODES),
        help="Who gets the version. By default the route of NAME decides; without a route, everyone gets it.",
    ),
]
Percent = Annotated[int, typer.Option(min=1, max=99, help="With --activate share.")]
ShareBy = Annotated[str, typer.Option(metavar="request|caller", help="What --percent splits.")]


def activation_of(activate: str, percent: int, share_by: str) -> Activation | None:
    """None: nothing was said. Raises InvalidRoute."""
    if not activate:
        return None
    mode: Mode | None = next((mode for mode in MODES if mode == activate), None)
    if mode is None:
        raise InvalidRoute(f"--activate takes {', '.join(MODES)}; got {activate[:40]!a}.", "activate")
    return Activation(mode, percent, share_by_of(share_by))


def activation_fields(activation: Activation | None) -> dict[str, Any]:
    """As the API takes them."""
    if activation is None:
        return {}
    return {"activate": activation.mode, "percent": activation.percent, "share_by": activation.share_by}
