"""What run-batch reads: files as they are; pipes and standard input kept for as long as the run takes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loraplex.web.cli.tools.answer_file import check_files
from loraplex.web.cli.tools.request_file import requests_of

TELL = """
import sys
from loraplex.web.cli.tools.request_file import requests_of
with requests_of(sys.argv[1]) as path:
    print(path.read_text() * 2, end="")
"""


def test_a_plain_file_is_read_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("{}")
    with requests_of(str(tmp_path / "in")) as path:
        assert path == tmp_path / "in"


def test_a_pipe_is_kept_until_the_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_files(str(pipe), str(tmp_path / "out"))
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"line\n" * 100_000))
    writer.start()
    with requests_of(str(pipe)) as path:
        writer.join(10)
        assert path.read_bytes() == path.read_bytes() == b"line\n" * 100_000
    assert not path.exists()


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/0"])
def test_standard_input(name: str) -> None:
    ran = subprocess.run([sys.executable, "-c", TELL, name], input="a line\n", capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "a line\n" * 2), ran.stderr


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/dev/full")
    with pytest.raises(ValueError, match="the requests of - cannot be kept"), requests_of("-"):
        pass
