"""What rounding at load is called. No torch: the API process says it too."""

from typing import Final

NONE: Final = "none"
AWQ: Final = "awq"


def online_words(linears: str, head: str) -> str:
    """For the start-up box; empty where nothing is quantized."""
    when = "at the first start" if linears == AWQ else "rounded at load"
    parts = [f"{linears} {when}"] if linears != NONE else []
    return ", ".join(parts + ([f"head {head}"] if head != NONE else []))
