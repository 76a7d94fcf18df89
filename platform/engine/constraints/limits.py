"""How long the grammar process may take, and the words for what goes beyond."""

from typing import Final

WAIT_SECONDS: Final = 0.002
"""In a step, for an answer, from when it was asked for; what is later may be in time for the next step."""
COMPILE_SECONDS: Final = 3.0
"""For one grammar."""
SILENT_SECONDS: Final = 60.0
"""For anything else, such as reading a large vocabulary on a busy machine."""
TOO_LONG: Final = f"its grammar takes longer than {COMPILE_SECONDS:g} seconds to compile; simplify it"
FATAL: Final = "its grammar ended the process that compiles it, as one does that takes too much memory; simplify it"
