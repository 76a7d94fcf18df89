"""ReasoningReader: the text of one answer as it comes, taken apart into its reasoning and the rest."""

from collections.abc import Sequence

from loraplex.engine.text.tokenizer import Tokenizer

from ..tool_calls.characters import beginning_at_end
from .marks import Marks


class ReasoningReader:
    """How the text is cut changes nothing, and time grows with it. An answer has one reasoning, at its beginning; white
    space around it belongs to nobody. One that is never closed is all there is."""

    def __init__(self, marks: Marks, is_open: bool) -> None:
        """`is_open`: the prompt has the opening already; an answer may repeat it."""
        self.marks, self._is_open = marks, is_open
        self._undecided, self._visible = list[str](), ""
        """What has come until it shows whether it is the opening; and that without white space at its beginning."""
        self._is_decided = self._has_begun = False
        """Whether it has shown; whether anything was said of the part that is read."""
        self._space, self._partial = list[str](), ""
        """Held back of the reasoning: white space, and behind it what may be the beginning of the closing."""
        self.thinks = False
        """Within the reasoning."""
        self.thought = False
        """There is reasoning."""

    @property
    def is_over(self) -> bool:
        """What comes now is the rest."""
        return self._is_decided and not self.thinks

    def push(self, text: str) -> tuple[str, str]:
        """What is new of the reasoning, and of the rest."""
        if not self._is_decided:
            text = self._decide(text)
            if not self._is_decided:
                return "", ""
        return self._think(text) if self.thinks else ("", self._after_space(text))

    def end(self) -> tuple[str, str]:
        if not self._is_decided and not self._is_open:
            self._is_decided = True
            return "", "".join(self._undecided)
        held = self._visible + self._partial
        self.thought |= bool(held)
        return "".join(self._space) + held if held else "", ""

    def _decide(self, text: str) -> str:
        """What is to be read, once that has shown."""
        opening = self.marks.opening
        self._undecided.append(text)
        self._visible += text if self._visible else text.lstrip()
        is_opening = self._visible.startswith(opening)
        if opening.startswith(self._visible) and not is_opening:
            return text
        self._is_decided, self._has_begun = True, not (is_opening or self._is_open)
        self.thinks = self.thought = is_opening or self._is_open
        rest = self._visible.removeprefix(opening) if self.thinks else "".join(self._undecided)
        self._visible = ""
        return rest

    def _think(self, text: str) -> tuple[str, str]:
        closing = self.marks.closing
        text, found, rest = (self._partial + text).partition(closing)
        shown = text if found else text[: len(text) - beginning_at_end(text, closing)]
        self._partial = text[len(shown) :]
        words = shown.rstrip()
        said = self._after_space("".join(self._space) + words) if words else ""
        if words:
            self._space = []
        self._space.append(shown[len(words) :])
        if not found:
            return said, ""
        self.thinks = self._has_begun = False
        return said, self._after_space(rest)

    def _after_space(self, text: str) -> str:
        """Without the white space before the first word of a part."""
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        return text


def tokens_until(mark: str, token_ids: Sequence[int], tokenizer: Tokenizer, count: int = 1) -> int:
    """How many tokens it takes until their text has the mark `count` times; all of them where it never has. Most models
    have a token for it, so that nothing need be decoded."""
    token = tokenizer.token_id(mark)
    places = [place for place, one in enumerate(token_ids) if one == token]
    if len(places) >= count:
        return places[count - 1] + 1
    low, high = 0, len(token_ids)
    while low < high:
        middle = (low + high) // 2
        if tokenizer.decode(list(token_ids[:middle]), skip_special_tokens=False).count(mark) >= count:
            high = middle
        else:
            low = middle + 1
    return low
