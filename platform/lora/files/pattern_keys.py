"""refuse_misread: keys of rank_pattern and alpha_pattern that name more to PEFT than they say.

PEFT takes a key for a regular expression, in which a dot stands for any character: q.proj means q_proj there. Here
names are literal, so such a key would leave its module at another rank or scaling than it was trained with.
"""

from collections.abc import Collection, Iterable

from .config_file import LoraSettings, names_of
from .report import Report, enumerate_some, quote


def refuse_misread(settings: LoraSettings, paths: Collection[str], report: Report) -> None:
    """Those that PEFT matches with a module of `paths` by a dot that is none in the module's name are a failure."""
    dotted = [key for key in (settings.rank_pattern | settings.alpha_pattern) if "." in key]
    if not dotted:
        return
    whole, ends = _Names(paths), _Names({name for path in paths for name in names_of(path)})
    misread = [key for key in dotted if (whole if key.startswith("^") else ends).has_another(key.removeprefix("^"))]
    if misread:
        message = f"to PEFT, dots in keys of patterns are any character: {enumerate_some([*map(quote, misread)])}"
        report.fail("ranks", message, "write the name of each module as it is")


class _Names:
    """By length and last letters: thousands of keys meet thousands of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_length: dict[int, list[str]] = {}
        self._by_shape: dict[tuple[int, int], dict[str, list[str]]] = {}
        for name in names:
            self._by_length.setdefault(len(name), []).append(name)

    def has_another(self, key: str) -> bool:
        """Whether the key, its dots standing for any character, is a name that it is not as it stands."""
        parts = key.split(".")
        return any(name != key and _fits(parts, name) for name in self._alike(len(key), parts[-1]))

    def _alike(self, length: int, ending: str) -> list[str]:
        shape = length, len(ending)
        if shape not in self._by_shape:
            found = self._by_shape[shape] = {}
            for name in self._by_length.get(length, ()):
                found.setdefault(name[length - len(ending) :], []).append(name)
        return self._by_shape[shape].get(ending, [])


def _fits(parts: list[str], name: str) -> bool:
    """`name` is as long as the parts with one character between each two."""
    position = 0
    for part in parts:
        if not name.startswith(part, position):
            return False
        position += len(part) + 1
    return True
