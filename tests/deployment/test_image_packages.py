"""How the machine's own configuration of pip gets into the build of `make image-check`."""

from pathlib import Path

import pytest

from .image.packages import local_paths, pip_configuration


def test_variables_win_over_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\ntimeout = 7\nretries = 2\n[install]\nprefer-binary = yes\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_TIMEOUT", "90")
    given = pip_configuration()
    assert given.get("global", "timeout") == "90"
    assert given.get("global", "retries") == "2" and given.get("install", "prefer-binary") == "yes"


def test_what_a_configuration_names_on_this_machine() -> None:
    text = "find-links = /wheels\nextra-index-url = file:///index/simple https://index.example/simple\ncert=/ca.crt\n"
    assert local_paths(text) == [Path("/wheels"), Path("/index"), Path("/ca.crt")]
    assert local_paths("extra-index-url = file:///simple") == [], "a whole machine is not mounted"
