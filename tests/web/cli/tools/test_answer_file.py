"""Where run-batch writes: a plain file whole or not at all, everything else straight and never replaced."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from loraplex.web.cli.tools.answer_file import check_files, opened_for_answers


def test_a_file_is_replaced_when_all_of_it_is_there(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("old")
    with opened_for_answers(str(target)) as file:
        file.write(b"new")
        assert target.read_text() == "old"
    assert target.read_text() == "new" and [*tmp_path.iterdir()] == [target]


def test_what_breaks_off_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "out.partial").write_text("mine")
    with pytest.raises(KeyboardInterrupt), opened_for_answers(str(tmp_path / "out")) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to("there/out")
    for text in (b"first", b"second"):
        with opened_for_answers(str(link)) as file:
            file.write(text)
        assert link.is_symlink() and (tmp_path / "there" / "out").read_bytes() == text
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["out"]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    with opened_for_answers(str(pipe)) as file:
        file.write(b"line")
    reader.join(10)
    assert heard == [b"line"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays() -> None:
    with opened_for_answers("/dev/null") as file:
        file.write(b"line")
    assert stat.S_ISCHR(os.lstat("/dev/null").st_mode)


def test_what_a_process_has_open_is_continued(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("before ")
    with target.open() as open_already:
        with opened_for_answers(f"/dev/fd/{open_already.fileno()}") as file:
            file.write(b"after")
        assert target.read_text() == "before after"
        assert os.path.samestat(target.stat(), os.fstat(open_already.fileno()))


def test_a_hard_link_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("{}")
    os.link(tmp_path / "in", tmp_path / "other")
    with pytest.raises(ValueError, match="is the input file"):
        check_files(str(tmp_path / "in"), str(tmp_path / "other"))
    check_files(str(tmp_path / "in"), str(tmp_path / "new"))


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = r"cannot be written: No space left on device"
    with pytest.raises(ValueError, match=f"/dev/full {words}"), opened_for_answers("/dev/full") as file:
        file.write(b"line")
        file.flush()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=f"/out {words}"), opened_for_answers(str(tmp_path / "out")) as file:
        file.write(b"line")
    assert not [*tmp_path.iterdir()]


def test_other_errors_are_not_the_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), opened_for_answers(str(tmp_path / "out")):
        (tmp_path / "gone").read_bytes()


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"/gone/out cannot be written: No such file or directory"):
        opened_for_answers(str(tmp_path / "gone" / "out")).__enter__()
