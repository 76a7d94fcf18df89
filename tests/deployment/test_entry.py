"""The entry of the image, with a stand-in for Python that prints what it is asked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .dockerfile import ROOT, environment_of, read

ENTRY = ROOT / "deploy" / "loraplex"


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (["serve", "--port", "9000"], ["serve", "--port", "9000"]),
        (["--model", "my model", "--port=9000"], ["serve", "--model", "my model", "--port=9000"]),
        (["Qwen/Qwen3-0.6B", "--max-model-len", "8k"], ["serve", "Qwen/Qwen3-0.6B", "--max-model-len", "8k"]),
        (["/models/mine"], ["serve", "/models/mine"]),
        (["doctor", "--json"], ["doctor", "--json"]),
        (["--version"], ["--version"]),
        (["--help"], ["--help"]),
        ([], []),
    ],
)
def test_options_alone_are_those_of_serve(given: list[str], asked: list[str], tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    values = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run([ENTRY, *given], env=values, check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["-m", "loraplex", *asked]


def test_the_image_starts_by_it() -> None:
    stages = read()
    [entry] = stages["runtime"].all("ENTRYPOINT")
    [command] = stages["runtime"].all("CMD")
    assert (entry.words, command.words) == ([ENTRY.name], ["serve"])
    copied = {source for step in stages["files"].all("COPY") for source in step.words}
    assert "deploy/loraplex" in copied and "/opt/loraplex/bin" in environment_of(stages, "runtime")["PATH"].split(":")


def test_usage_names_the_command_and_not_the_module() -> None:
    """In the image it is always started as a module."""
    ended = subprocess.run([sys.executable, "-m", "loraplex", "--nonsense"], capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith("Usage: loraplex ")
