"""From a command line in vLLM's spelling to one in ours: what `loraplex serve` and `run-batch` do before they read
their options."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from loraplex.engine.pooling.token_judge import tokens_of_overrides
from loraplex.engine.vllm_arguments import TASKS, Argument

from ...settings.types import human_number
from .vllm_arguments import ARGUMENTS, RENAMED, SEVERAL, SHORT, VALUES

BOOLEANS: Final = {"true": True, "false": False}
FITTING: Final = frozenset({"auto", "-1"})
"""Values of max_model_len by which vLLM takes what fits, as we do without one."""
LONG: Final = re.compile(r"--([\w-]+)(?:\.[\w.-]+)?(?:=(.*))?", re.DOTALL)
SHORTER: Final = re.compile(r"-([A-Za-z]+)(?:\.[\w.-]+)?=?(.+)?", re.DOTALL)


class Translation:
    """`args`: of ours alone. `without_need`: flags that were accepted and change nothing.

    `takes_value`: our options by their flag, whether each has a value. ValueError for what cannot be had, with its
    reason, and for an unknown flag, with the nearest one. `word`: of loraplex; `arguments`: what it has an answer for.
    """

    def __init__(
        self,
        given: Sequence[str],
        takes_value: Mapping[str, bool],
        word: str = "serve",
        arguments: Mapping[str, Argument] = ARGUMENTS,
    ) -> None:
        self.args: list[str] = []
        self.without_need: list[str] = []
        self.tokenizer: str | None = None
        """Which vLLM would use. Only the model's own can be had."""
        self.tasks: dict[str, str] = {}
        """Values of those arguments that say what the model is for."""
        self._takes_value, self._rest = takes_value, list(given)
        self._word, self._arguments = word, arguments
        self._model: str | None = None
        while self._rest:
            one = self._rest.pop(0)
            if one.startswith("-") and one != "-":
                self._read_flag(one)
            else:
                self._read_model(one)

    def _read_model(self, word: str) -> None:
        if self._model is not None:
            raise ValueError(f"there are two models, {self._model} and {word}; give one")
        self._model = word
        self.args += ["--model", word]

    def _read_flag(self, word: str) -> None:
        name, value = self._parts(word)
        ours = RENAMED.get(name, name)
        option = f"--{ours.replace('_', '-')}"
        if option in self._takes_value:
            self._read_own(option, ours, name, value)
        elif name == "hf_overrides":
            [text] = self._values(word, value, several=False)
            tokens = tokens_of_overrides(_meant(text))
            self.args += ["--classifier-from-token", ",".join(tokens)] if tokens else []
        elif name == "tokenizer":
            [self.tokenizer] = self._values(word, value, several=False)
        else:
            self._read_theirs(word, name, value)

    def _parts(self, word: str) -> tuple[str, str | None]:
        """The argument that a flag names, and the value that is written onto it."""
        if word in self._takes_value:
            return word.lstrip("-").replace("-", "_"), None
        found = LONG.fullmatch(word)
        if found is not None:
            return found[1].replace("-", "_"), found[2]
        found = SHORTER.fullmatch(word)
        if found is not None and found[1] in SHORT:
            return SHORT[found[1]], found[2]
        raise self._unknown(word, word.lstrip("-"))

    def _read_own(self, option: str, ours: str, name: str, value: str | None) -> None:
        if not self._takes_value[option]:
            wanted = self._boolean(value)
            self.args.append(option if wanted else f"--no-{option.removeprefix('--')}")
            return
        values = self._values(option, value, ours in SEVERAL)
        if ours == "served_name":
            self.args += [option, values[0]] + (["--also-served-as", ",".join(values[1:])] if values[1:] else [])
        elif ours == "lora_modules":
            self.args += [option, json.dumps(values)]
        elif ours == "api_key":
            self.args += [option, " ".join(values)]
        elif not (ours == "max_model_len" and values[0] in FITTING):
            text = str(human_number(values[0])) if name == "kv_cache_memory_bytes" else values[0]
            self.args += [option, VALUES.get(ours, {}).get(text, text)]

    def _read_theirs(self, word: str, name: str, value: str | None) -> None:
        negated = name.removeprefix("no_")
        known = name if name in self._arguments else negated
        argument = self._arguments.get(known)
        if argument is None or (known == negated != name and not argument.is_switch):
            raise self._unknown(word, name)
        meant: Any = None
        if argument.is_switch:
            meant = self._boolean(value) != (known != name)
        else:
            texts = self._values(word, value, known in SEVERAL)
            meant = _meant(texts[0]) if len(texts) == 1 else texts
        if argument.refusal(known, meant) is not None:
            shown = word if argument.is_switch or value is not None else f"{word} {meant}"
            raise ValueError(f"{shown} is not supported: {argument.why}")
        if known in TASKS:
            self.tasks[known] = meant
        self.without_need.append(word.partition("=")[0])

    def _values(self, flag: str, inline: str | None, several: bool) -> list[str]:
        if inline is not None:
            return [inline]
        if not self._rest or self._rest[0].startswith("--"):
            raise ValueError(f"{flag} needs a value")
        values = [self._rest.pop(0)]
        while several and self._rest and not self._rest[0].startswith("-"):
            values.append(self._rest.pop(0))
        return values

    def _boolean(self, inline: str | None) -> bool:
        """Of a switch, which may be followed by true or false."""
        if inline is None and self._rest and self._rest[0].lower() in BOOLEANS:
            inline = self._rest.pop(0)
        if inline is None:
            return True
        if inline.lower() not in BOOLEANS:
            raise ValueError(f"{inline!r} is neither true nor false")
        return BOOLEANS[inline.lower()]

    def _unknown(self, word: str, name: str) -> ValueError:
        ours = {flag.removeprefix("--").replace("-", "_") for flag in self._takes_value}
        known = ours | {*self._arguments, *RENAMED}
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"Did you mean --{near[0].replace('_', '-')}?" if near else f"loraplex {self._word} --help lists all"
        return ValueError(f"there is no option {word.partition('=')[0]}. {remedy}")


def _meant(text: str) -> Any:
    """As vLLM would read it: a number, a JSON document or a word."""
    if text == "None":
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
