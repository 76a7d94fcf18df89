"""What rounding at load is called. No torch: the API process says it too."""

from typing import Final

NONE: Final = "none"


def online_words(linears: str, head: str) -> str:
    """For the start-up box; empty where nothing is quantized."""
    parts = [f"{linears} rounded at load"] if linears != NONE else []
    return ", ".join(parts + ([f"head {head}"] if head != NONE else []))
