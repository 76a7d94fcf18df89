"""Where in a prompt an adapter begins to act. No torch."""

from collections.abc import Sequence


def find_start(prompt: Sequence[int], invocation_tokens: Sequence[int]) -> int | None:
    """Where the last occurrence of `invocation_tokens` begins, None without one; 0 where there are none to look for."""
    if not invocation_tokens:
        return 0
    sought, first, length = list(invocation_tokens), invocation_tokens[0], len(invocation_tokens)
    for start in range(len(prompt) - length, -1, -1):
        if prompt[start] == first and list(prompt[start : start + length]) == sought:
            return start
    return None


def explain_absence(adapter: str, invocation_tokens: Sequence[int], text: str = "") -> str:
    """What to tell who asks for an adapter that the prompt never switches on. `text`: what the tokens stand for."""
    shown = f"{text!r}, " if text else ""
    return (
        f"adapter {adapter} acts from its invocation tokens on, and the prompt does not contain them: "
        f"{shown}token ids {list(invocation_tokens)}; put them where it shall begin"
    )
