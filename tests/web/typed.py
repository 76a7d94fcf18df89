"""The command as it is typed, run in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loraplex.__main__ import main

Run = Callable[..., tuple[int, str, str]]
"""Of arguments: exit code, standard output, standard error."""


def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["loraplex", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run
