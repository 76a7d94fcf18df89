"""Responses that are kept: whose they are, what they follow, and which of them go."""

import uuid
from datetime import timedelta

import pytest

from loraplex.registry.database.tables import utc_now
from loraplex.registry.errors import UnknownResponse
from loraplex.registry.registry import Registry
from loraplex.registry.stored_responses import Bounds, KeptResponse, Reader

ALL = Reader("default")
WIDE = Bounds(timedelta(days=1), 100, 1 << 20)
MOST = 1 << 20


def put(registry: Registry, *previous: str, size: int = 10, days: float = 0, actor: str = "key:a") -> str:
    """Its id. `days`: ago."""
    id = f"resp_{uuid.uuid4().hex}"
    kept = KeptResponse(id, b"[]", b"x" * (size - 2), utc_now() - timedelta(days=days))
    registry.responses.put("default", actor, kept, previous)
    return id


def ids(registry: Registry, *among: str) -> list[str]:
    """Those that are there."""

    def is_there(id: str) -> bool:
        try:
            return registry.responses.get(id, ALL).id == id
        except UnknownResponse:
            return False

    return [id for id in among if is_there(id)]


def test_a_conversation_is_read_from_its_beginning(registry: Registry) -> None:
    first = put(registry)
    second = put(registry, first)
    third, branch = put(registry, first, second), put(registry, first)
    read = registry.responses.conversation
    assert [one.id for one in read(third, ALL, 10, MOST)] == [first, second, third]
    assert [one.id for one in read(branch, ALL, 10, MOST)] == [first, branch]
    with pytest.raises(ValueError, match="more than 2 responses"):
        read(third, ALL, 2, MOST)
    with pytest.raises(ValueError, match="29 bytes"):
        read(third, ALL, 3, 29)
    assert len(read(third, ALL, 3, 30)) == 3


def test_what_follows_a_deleted_one_cannot_be_followed(registry: Registry) -> None:
    first = put(registry)
    second = put(registry, first)
    registry.responses.delete(first, ALL)
    assert ids(registry, first, second) == [second]
    with pytest.raises(UnknownResponse, match=f"'{first}' not found"):
        registry.responses.conversation(second, ALL, 10, MOST)
    with pytest.raises(UnknownResponse):
        registry.responses.delete(first, ALL)


def test_others_do_not_find_it(registry: Registry) -> None:
    registry.tenants.create("guests", actor="system")
    mine = put(registry, actor="key:a")
    for reader in (Reader("guests"), Reader("default", "key:b"), Reader("guests", "key:a")):
        for ask in (registry.responses.get, registry.responses.delete):
            with pytest.raises(UnknownResponse):
                ask(mine, reader)
        with pytest.raises(UnknownResponse):
            registry.responses.conversation(mine, reader, 10, MOST)
    assert registry.responses.get(mine, Reader("default", "key:a")).id == mine


@pytest.mark.parametrize("id", ["", "resp_1", "\x00", "resp_" + "\x00" * 32, "resp_' OR '1'='1"])
def test_ids_that_are_none(registry: Registry, id: str) -> None:
    for ask in (registry.responses.get, registry.responses.delete):
        with pytest.raises(UnknownResponse):
            ask(id, ALL)
    with pytest.raises(UnknownResponse):
        registry.responses.conversation(id, ALL, 10, MOST)


def test_the_old_go_and_what_is_followed_stays(registry: Registry) -> None:
    old, followed = put(registry, days=2), put(registry, days=2)
    last = put(registry, followed)
    assert registry.responses.prune(WIDE) == 1
    assert ids(registry, old, followed, last) == [followed, last]
    assert registry.responses.prune(WIDE) == 0


def test_too_many_and_too_large_go_by_their_last_use(registry: Registry) -> None:
    kept = [put(registry, days=number / 100) for number in (5, 4, 3)]
    last = put(registry, kept[0])
    assert registry.responses.prune(Bounds(WIDE.age, 3, MOST)) == 1
    assert ids(registry, *kept, last) == [kept[0], kept[2], last], "the first is used by the last"
    assert registry.responses.prune(Bounds(WIDE.age, 100, 25)) == 1
    assert ids(registry, *kept, last) == [kept[0], last]
    assert registry.responses.prune(Bounds(WIDE.age, 1, MOST)) == 1
    assert ids(registry, *kept, last) == [kept[0]], "a conversation loses its end first"


def test_tenants_have_bounds_of_their_own(registry: Registry) -> None:
    registry.tenants.create("guests", actor="system")
    mine = put(registry, days=0.5)
    for _ in range(3):
        kept = KeptResponse(f"resp_{uuid.uuid4().hex}", b"[]", b"{}", utc_now())
        registry.responses.put("guests", "key:b", kept)
    assert registry.responses.prune(Bounds(WIDE.age, 1, MOST)) == 2
    assert ids(registry, mine) == [mine]
