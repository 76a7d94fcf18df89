"""Whether the packages of the extra `grpc` are there: asked before anything slow is imported."""

from importlib.util import find_spec
from typing import Final

from ..settings.settings import Settings

PACKAGES: Final = ("grpc", "grpc_health", "grpc_tools")


def check_grpc(settings: Settings) -> None:
    """ValueError where the port is named and a package is missing."""
    missing = [name for name in PACKAGES if settings.grpc_port is not None and find_spec(name) is None]
    if missing:
        raise ValueError(
            f"grpc_port needs gRPC, and {missing[0]} is not installed. Install it: pip install 'loraplex[grpc]', or "
            "leave the setting out"
        )
