"""A load that fails half-way, wherever that is: that adapter is told of, tried again, and nobody else notices."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lora.house import PAGE, House

from .broken_disk import BrokenDisk, Fault

WORDS: dict[Fault, str] = {
    "error": "Input/output error",
    "short": "was cut while it was being read",
    "changed": "has changed on disk",
}


class Street:
    """A pool where one adapter is in use, one idle, and a third to be loaded; there is room for all."""

    def __init__(self, folder: Path) -> None:
        self.house = House(folder)
        self.pool = self.house.pool
        self.used, self.idle, self.bad = (self.house.add(seed) for seed in (1, 2, 3))
        self.house.take(self.used)
        self.house.take(self.idle)
        self.pool.release(self.idle)

    def load(self) -> str | None:
        """Ask for the bad one and let it be tried once; why that failed."""
        assert not self.pool.acquire((self.bad,))
        self.house.work()
        return self.pool.failure(self.bad)

    def forget(self) -> None:
        """As if the bad one had never been there."""
        self.pool.release(self.bad)
        self.pool.unregister(self.bad)
        self.pool.register(self.bad, str(self.house.folder / "3"))

    def check_others(self) -> None:
        """They hold their own weights, and nothing is held for the bad one."""
        self.house.check_pages(self.used)
        self.house.take(self.idle)
        self.pool.release(self.idle)
        assert self.house.status(self.idle).loads == self.house.status(self.used).loads == 1
        assert self.pool.bytes_used == 2 * PAGE
        assert self.pool.check_integrity() == []

    def check_tried_again(self) -> None:
        """Not at once, but soon, and then all is well."""
        assert not self.pool.acquire((self.bad,)) and not self.pool.loading()
        self.house.clock.now += 1.1
        assert self.pool.failure(self.bad) is None
        self.house.take(self.bad)
        assert self.house.status(self.bad).error is None
        self.house.check_pages(self.used)


@pytest.fixture
def street(tmp_path: Path) -> Street:
    return Street(tmp_path)


@pytest.fixture
def disk(street: Street, monkeypatch: pytest.MonkeyPatch) -> BrokenDisk:
    """Of a pool that is already in use."""
    return BrokenDisk(monkeypatch)


@pytest.fixture
def operations(street: Street, disk: BrokenDisk) -> int:
    """Of one load: the configuration; the weights opened, their beginning, their header; opened again, the tensors."""
    street.house.take(street.bad)
    street.forget()
    assert disk.count >= 1 + 3 + 1 + 8
    return disk.count


@pytest.mark.parametrize("fault", WORDS)
def test_any_operation_of_a_load_may_fail(street: Street, disk: BrokenDisk, operations: int, fault: Fault) -> None:
    for at in range(operations):
        with disk.broken(at, fault):
            message = street.load()
        assert message is not None and message.startswith(f"adapter {street.bad[:12]} cannot be loaded: ")
        assert any(words in message for words in (WORDS[fault], WORDS["error"], "cannot be read")), message
        street.check_others()
        street.check_tried_again()
        street.forget()


def test_a_disk_that_stays_broken_costs_the_others_nothing(street: Street, disk: BrokenDisk, operations: int) -> None:
    for at in range(operations):
        with disk.broken(at, "error"):
            assert street.load()
        street.check_others()
        street.house.clock.now += 61
    street.house.take(street.bad)


def swap(folder: Path) -> None:
    shutil.copy(folder.parent / "1" / "adapter_model.safetensors", folder)


def damage(folder: Path, place: int) -> None:
    file = folder / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def become_a_folder(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.safetensors").mkdir()


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "gone": (shutil.rmtree, "No such file"),
    "weights-gone": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "No such file"),
    "weights-a-folder": (become_a_folder, "Is a directory"),
    "weights-emptied": (lambda folder: os.truncate(folder / "adapter_model.safetensors", 0), "was cut"),
    "weights-cut": (lambda folder: os.truncate(folder / "adapter_model.safetensors", 3000), "was cut"),
    "weights-of-another": (swap, "has changed on disk"),
    "first-tensor-changed": (lambda folder: damage(folder, -(6 << 10)), "has changed on disk"),
    "last-byte-changed": (lambda folder: damage(folder, -1), "has changed on disk"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_that_change_between_the_steps_of_a_load(street: Street, change: str, tmp_path: Path) -> None:
    """The header is read in one step and the weights in a later one."""
    folder, kept = tmp_path / "3", tmp_path / "kept"
    shutil.copytree(folder, kept)
    assert not street.pool.acquire((street.bad,))
    street.house.executor.run()
    make, words = CHANGES[change]
    make(folder)
    street.house.work()
    message = street.pool.failure(street.bad)
    assert message is not None and words in message
    street.check_others()
    shutil.rmtree(folder, ignore_errors=True)
    kept.rename(folder)
    street.check_tried_again()


def test_a_filled_adapter_needs_its_files_no_more(street: Street, tmp_path: Path) -> None:
    """They vanish after the last read, before the table shows the pages."""
    assert not street.pool.acquire((street.bad,))
    street.house.executor.run()
    street.pool.poll()
    street.house.executor.run()
    shutil.rmtree(tmp_path / "3")
    street.house.take(street.bad)
    street.house.check_pages(street.used)


def test_a_copy_to_the_device_may_fail(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*arguments: Any) -> None:
        original(*arguments)
        raise RuntimeError("CUDA error: out of memory")

    store = street.pool._store
    original = store.fill
    with monkeypatch.context() as patch:
        patch.setattr(store, "fill", fill)
        assert "out of memory" in str(street.load())
    street.check_others()
    street.check_tried_again()


def test_vectors_that_do_not_fit_the_weights_of_the_base(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step before an adapter is shown, on the engine's own thread."""

    def finish(*_: Any) -> Iterator[None]:
        yield
        raise ValueError("a magnitude is zero where the base is not")

    with monkeypatch.context() as patch:
        patch.setattr(street.pool._store, "finish", finish)
        assert "a magnitude is zero" in str(street.load())
    street.check_others()
    street.check_tried_again()


def test_no_memory_for_a_tensor(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> None:
        raise MemoryError("no memory for a tensor")

    with monkeypatch.context() as patch:
        patch.setattr("loraplex.lora.residency.weights.read_bits", read)
        assert "no memory" in str(street.load())
    street.check_others()
    street.check_tried_again()
