"""TokenMask: the tokens that a constrained choice may draw next, its end tokens among them where the text may end."""

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint8]


class TokenMask:
    """`ends`: tokens that end the choice; `ignored`: those of them that do so only where nothing else may follow;
    before `min_tokens` tokens, and where the text is not complete, all do. The text's form comes first."""

    def __init__(self, ends: frozenset[int], ignored: frozenset[int], min_tokens: int) -> None:
        self.bits: Bits | None = None
        """One bit a token, the lowest of a byte first; tokens past the last bit are forbidden. None: not known yet."""
        self._ends, self._ignored, self._min_tokens = ends, ignored, min_tokens

    def forget(self) -> None:
        """A token was drawn."""
        self.bits = None

    def learn(self, tokens: bytes, complete: bool, position: int) -> None:
        """`tokens` as of Allowed.tokens; `complete`: the text may end; `position`: of the token that is drawn."""
        held_back = self._ends if position < self._min_tokens or not complete else self._ignored
        may_end = self._ends if complete else frozenset()
        wide = max(len(tokens), 1 + max(may_end, default=0) // 8)
        bits = np.frombuffer(tokens.ljust(wide, b"\0"), np.uint8).copy()
        _set(bits, may_end - held_back, True)
        kept = bits.copy()
        _set(kept, held_back, False)
        if not kept.any():
            kept = bits
            _set(kept, may_end, True)
        self.bits = kept


def _set(bits: Bits, token_ids: frozenset[int], value: bool) -> None:
    for token_id in token_ids:
        if token_id // 8 < len(bits):
            bit = np.uint8(1 << token_id % 8)
            bits[token_id // 8] = bits[token_id // 8] | bit if value else bits[token_id // 8] & ~bit
