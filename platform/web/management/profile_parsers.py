"""Fields of a profile that name a way of writing, and the ways there are."""

from collections.abc import Mapping, Sequence
from typing import Final

from ..reasoning.marks import PARSERS as OF_REASONING
from ..tool_calls.formats.known import PARSERS as OF_CALLS

PARSERS: Final[Mapping[str, Sequence[str]]] = {"tool_call_parser": OF_CALLS, "reasoning_parser": OF_REASONING}
