"""The host cache: what was evicted comes back bit for bit without its file, in bounded memory, oldest first out."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex.lora.residency.epochs import StaleError
from loraplex.lora.residency.host_cache import HostCache
from loraplex.lora.residency.pool import AdapterPool
from loraplex.lora.residency.weights import Contents

from ..adapters import BASE, Tensors, make_config, make_tensors, read_manifest, write_adapter
from ..house import PAGE, House, ManualExecutor
from ..test_vectors import BIASES, MAGNITUDES, RandomBase, ia3_config, ia3_tensors, with_vectors

KINDS: dict[str, tuple[dict[str, Any], Tensors]] = {
    "lora": (make_config(r=11), make_tensors(rank=11)),
    "dora": (make_config(use_dora=True), make_tensors() | MAGNITUDES),
    "ia3": (ia3_config(), ia3_tensors()),
    "lora-bias": (make_config(lora_bias=True), make_tensors() | BIASES),
    "base-bias": (make_config(bias="lora_only"), make_tensors() | with_vectors("base_layer.bias")),
}
NOTHING = Contents((), {}, 0, ())


class Runtime:
    """CUDA's, as far as it locks memory of the host."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        if size > self.most:
            return 2
        self.locked[pointer] = size
        return 0

    def cudaHostUnregister(self, pointer: int) -> int:
        del self.locked[pointer]
        return 0


def test_what_is_locked_for_a_device_is_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, device = Runtime(1 << 20), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    cache = HostCache(600_000, torch.bfloat16, device)
    assert runtime.locked == {cache._buffer.data_ptr(): 600_000}
    with pytest.raises(ValueError, match=r"locks no 3,000,000 bytes .* \(CUDA says 2\): lower adapter_host_memory"):
        HostCache(3_000_000, torch.bfloat16, device)
    del cache
    HostCache(0, torch.bfloat16, device)
    assert not runtime.locked


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path, pages=1, host_pages=2)


def visit(house: House, *digests: str) -> None:
    """Take each of them and give it back."""
    for digest in digests:
        house.take(digest)
        house.pool.release(digest)
        house.clock.now += 1


def tiers(house: House, *digests: str) -> list[str]:
    return [str(house.status(digest).tier) for digest in digests]


def pages_of(pool: AdapterPool, digest: str) -> torch.Tensor:
    """The bits of all its pages, in their order."""
    room = pool._entries[digest].room
    assert room is not None
    copy = torch.empty(pool._store.packed_size(room), dtype=pool.table.arena.dtype)
    pool._store.save(room, copy, pool._store.mark())
    return copy.view(torch.int16 if copy.element_size() == 2 else torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_bit_for_bit_without_its_file(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    base, executor = RandomBase(), ManualExecutor()
    memory = {"memory": 1 << 20, "host_memory": 1 << 20}
    pool = AdapterPool(
        BASE, **memory, slots=2, dtype=dtype, device=torch.device("cpu"), executor=executor, modules=base
    )
    digest = read_manifest(write_adapter(tmp_path / kind, *KINDS[kind])).digest
    pool.register(digest, str(tmp_path / kind))

    def load() -> torch.Tensor:
        pool.load(digest)
        while not pool.resident(digest):
            assert pool.failure(digest) is None
            pool.poll()
            while executor.jobs:
                executor.run()
        assert pool.check_integrity() == []
        return pages_of(pool, digest)

    first, asked = load(), base.asked
    pool.evict(digest)
    executor.run()
    pool.table.arena.fill_(torch.nan)
    pool.table.scaling.fill_(torch.nan)
    shutil.rmtree(tmp_path / kind)
    assert torch.equal(load(), first)
    assert base.asked == asked, "what was finished is not finished again"
    assert [(status.loads, status.host_loads) for status in pool.statuses()] == [(2, 1)]
    assert bool((first != 0).any()) and pool.is_additive(digest) == (kind in ("lora", "lora-bias"))


def test_the_tiers_of_a_life(house: House) -> None:
    first, second = house.add(1), house.add(2)
    assert tiers(house, first, second) == ["disk", "disk"]
    visit(house, first)
    assert tiers(house, first) == ["device"] and house.pool.host_bytes_used == 0
    visit(house, second)
    assert tiers(house, first, second) == ["host", "device"]
    assert house.status(first).host_bytes == house.pool.host_bytes_used == PAGE
    assert not house.pool.acquire((first,))
    assert (house.status(first).state, house.status(first).tier) == ("loading", "host")
    visit(house, first)
    assert tiers(house, first, second) == ["device", "host"]
    assert house.status(first).host_bytes == PAGE, "kept, so that the next eviction copies nothing"


def test_an_adapter_on_disk_is_a_name_and_a_few_numbers(house: House) -> None:
    """What its header said of hundreds of modules is kept with its pages, not with each adapter that was ever used."""
    digests = [house.add(seed) for seed in range(4)]
    visit(house, *digests)
    assert [house.pool._entries[digest].contents is None for digest in digests] == [True, True, True, False]
    assert tiers(house, *digests)[0] == "disk" and house.status(digests[0]).rank > 0
    visit(house, *digests)


def test_who_was_evicted_first_leaves_first(house: House) -> None:
    a, b, c, d = (house.add(seed) for seed in range(4))
    visit(house, a, b, c, d)
    assert tiers(house, a, b, c, d) == ["disk", "host", "host", "device"]
    assert house.pool.host_bytes_used == 2 * PAGE
    visit(house, b)
    assert tiers(house, b, c, d) == ["device", "disk", "host"]
    assert house.status(b).host_bytes == PAGE, "who comes back is not pushed out by whom it pushes out"
    visit(house, a)
    assert tiers(house, a, b, c, d) == ["device", "host", "disk", "host"]


def test_what_is_in_memory_as_well_leaves_first(tmp_path: Path) -> None:
    house = House(tmp_path, pages=2, host_pages=2)
    a, b, c, d = (house.add(seed) for seed in range(4))
    visit(house, a, b, c, d)
    assert tiers(house, a, b, c, d) == ["host", "host", "device", "device"]
    visit(house, b)
    assert tiers(house, a, b, c, d) == ["disk", "device", "host", "device"]
    visit(house, b, a)
    assert tiers(house, a, b, c, d) == ["device", "device", "host", "host"]
    assert house.status(b).host_bytes == 0


def test_evictions_copy_only_what_is_not_kept(house: House) -> None:
    a, b = house.add(1), house.add(2)
    visit(house, a, b, a)
    saved = []
    house.pool._store.save = lambda room, copy, after: saved.append(copy)  # type: ignore[method-assign]
    visit(house, b, a, b)
    assert saved == []
    assert (house.status(a).loads, house.status(a).host_loads) == (3, 2)


def test_one_that_never_fits_is_not_kept_and_pushes_nobody_out(tmp_path: Path) -> None:
    house = House(tmp_path, pages=3, host_pages=2)
    small, large = house.add(1), house.add(2, rank=24)
    visit(house, small, large, small)
    assert tiers(house, small, large) == ["device", "disk"]
    assert house.status(small).host_bytes == PAGE


def test_without_memory_nothing_is_kept(tmp_path: Path) -> None:
    house = House(tmp_path, pages=1)
    a, b = house.add(1), house.add(2)
    visit(house, a, b)
    assert tiers(house, a, b) == ["disk", "device"] and house.pool.host_bytes_used == 0


def test_it_goes_with_its_registration(house: House) -> None:
    a, b = house.add(1), house.add(2)
    visit(house, a, b)
    house.pool.unregister(a)
    assert house.pool.host_bytes_used == 0
    house.take(b)
    house.pool.unregister(b)
    house.pool.release(b)
    assert house.pool.host_bytes_used == house.pool.bytes_used == 0 and not house.executor.jobs
    assert house.pool.check_integrity() == []


def test_another_folder_is_read_anew(house: House) -> None:
    a, b = house.add(1), house.add(2)
    visit(house, a, b)
    moved = house.folder / "moved"
    shutil.copytree(house.folder / "1", moved)
    house.pool.register(a, str(moved))
    assert tiers(house, a) == ["disk"]
    visit(house, a)
    assert house.status(a).host_loads == 0
    house.pool.register(a, str(house.folder / "1"))
    visit(house, b)
    assert tiers(house, a) == ["disk"], "its pages came from the folder that it has no more"


def test_the_file_serves_where_the_copy_failed(house: House) -> None:
    a, b = house.add(1), house.add(2)
    visit(house, a)
    house.pool.evict(a)
    future, _, _ = house.executor.jobs.pop()
    future.set_exception(RuntimeError("the device is gone"))
    visit(house, b, a)
    assert (house.status(a).loads, house.status(a).host_loads, house.status(a).error) == (2, 0, None)
    visit(house, b, a)
    assert house.status(a).host_loads == 1


def test_a_header_that_cannot_be_read_fails_one_that_came_from_the_cache_before(house: House) -> None:
    a, b = house.add(1), house.add(2)
    visit(house, a, b, a)
    assert house.status(a).host_loads == 1
    house.pool.evict(a)
    house.pool.register(a, str(house.folder / "nowhere"))
    assert not house.pool.acquire((a,))
    house.work()
    assert (house.status(a).state, house.status(a).tier) == ("failed", "disk")
    visit(house, b)


def test_a_load_that_failed_leaves_no_copy(house: House) -> None:
    bad, good = house.add(1), house.add(2)
    weights = house.folder / "1" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert not house.pool.acquire((bad,))
    house.work()
    visit(house, good)
    assert (house.status(bad).state, house.status(bad).tier) == ("failed", "disk")
    assert house.pool.host_bytes_used == 0


def test_a_place_is_given_away_while_its_reader_still_waits(tmp_path: Path) -> None:
    """Copies out of and into the same place of the cache, with no job run in between."""
    house = House(tmp_path, pages=2, host_pages=1)
    a, b, c = house.add(1), house.add(2), house.add(3)
    visit(house, a, b, c)
    assert tiers(house, a, b, c) == ["host", "device", "device"]
    house.pool.unregister(b)
    house.pool.load(a)
    house.pool.poll()
    house.pool.evict(c)
    assert [house.status(digest).host_bytes for digest in (a, c)] == [0, PAGE] and len(house.executor.jobs) == 2
    visit(house, a, c)
    assert [house.status(digest).host_loads for digest in (a, c)] == [1, 1]


def test_pages_that_were_written_before_they_were_kept_are_not_kept(tmp_path: Path) -> None:
    """As an executor that does not keep to the order of its jobs would do it."""
    house = House(tmp_path, pages=1, host_pages=2)
    a, b = house.add(1), house.add(2)
    visit(house, a)
    house.pool.load(b)
    house.pool.poll()
    house.executor.run()
    house.pool.poll()
    assert len(house.executor.jobs) == 2, "to keep a, to fill b in its pages"
    house.executor.run(1)
    visit(house, a)
    assert house.status(a).host_loads == 0, "its file serves"
    visit(house, b, a)
    assert house.status(a).host_loads == 1


@pytest.mark.parametrize(("order", "refused"), [((2, 0, 1), (0, 1)), ((0, 2, 1), (1,))], ids=["written", "read"])
def test_a_place_that_was_given_away_is_not_used(tmp_path: Path, order: tuple[int, ...], refused: set[int]) -> None:
    """By an executor that does not keep to the order of its jobs, either."""
    house = House(tmp_path, pages=2, host_pages=1)
    a, b = house.add(1), house.add(2)
    visit(house, a, b)
    house.pool.evict(a)
    house.pool.load(a)
    house.pool.poll()
    house.pool.evict(b)
    keep_a, restore_a, keep_b = jobs = list(house.executor.jobs)
    assert not house.status(a).host_bytes and house.status(b).host_bytes, "b has the place of a"
    for number in order:
        house.executor.run(house.executor.jobs.index(jobs[number]))
    for number, (future, _, _) in enumerate((keep_a, restore_a, keep_b)):
        error = future.exception()
        assert isinstance(error, StaleError) if number in refused else error is None
    visit(house, a, b)
    assert [house.status(digest).host_loads for digest in (a, b)] == [0, 1]


def test_check_integrity_sees_damage() -> None:
    cache = HostCache(16, torch.float32, torch.device("cpu"))
    assert cache.reserve("a", NOTHING, 3, spared=None) is not None and cache.check_integrity(["a"]) == []
    assert cache.check_integrity([]) == ["host cache: adapter a is gone and its copy is not"]
    cache._arena.used -= 1
    assert len(cache.check_integrity(["a"])) == 2
