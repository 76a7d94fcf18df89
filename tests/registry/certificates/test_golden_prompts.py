"""The prompts that an adapter's certificates are measured on."""

import pytest

from loraplex.registry.certificates.golden_prompts import MAX_PROMPT_BYTES, MAX_PROMPTS
from loraplex.registry.errors import InvalidPrompts, UnknownAdapter
from loraplex.registry.registry import Registry

from ..helpers import add, snapshot

ACTOR = "user:admin"


def test_they_come_back_as_they_were(registry: Registry) -> None:
    add(registry, "sql", b"one")
    assert registry.adapters.prompts("sql") is None
    prompts = ["Count the customers.", "tab\tand \x00 and 😀", "again", "again"]
    before = snapshot(registry).revision
    adapter = registry.adapters.set_prompts("sql", prompts, actor=ACTOR)
    assert registry.adapters.prompts("sql") == prompts
    assert snapshot(registry).revision > before
    assert snapshot(registry).of_tenant()[0].prompts_digest == adapter.prompts_digest is not None
    assert registry.audit.entries()[0].action == "adapter.prompts"
    assert registry.adapters.set_prompts("sql", None, actor=ACTOR).prompts_digest is None
    assert registry.adapters.prompts("sql") is None


def test_the_digest_follows_the_prompts_and_their_order(registry: Registry) -> None:
    add(registry, "sql", b"one")
    add(registry, "other", b"two")
    lists = [["a", "b"], ["b", "a"], ["ab"], ["a"]]
    digests = [registry.adapters.set_prompts("sql", prompts, actor=ACTOR).prompts_digest for prompts in lists]
    assert len(set(digests)) == len(lists)
    assert registry.adapters.set_prompts("other", ["a", "b"], actor=ACTOR).prompts_digest == digests[0]


def test_the_largest_that_is_allowed(registry: Registry) -> None:
    add(registry, "sql", b"one")
    prompts = ["ü" * (MAX_PROMPT_BYTES // 2)] * MAX_PROMPTS
    registry.adapters.set_prompts("sql", prompts, actor=ACTOR)
    assert registry.adapters.prompts("sql") == prompts


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([], "Give at least one prompt"),
        (["a"] * (MAX_PROMPTS + 1), "65 prompts are too many"),
        (["a", " \n"], "Prompt 2 is empty"),
        (["ü" * (MAX_PROMPT_BYTES // 2) + "x"], "at most 16,384 bytes"),
        (["\ud800"], "Prompt 1 is not text"),
    ],
    ids=["none", "too many", "empty", "too long", "no text"],
)
def test_what_is_no_list_of_prompts_is_refused(registry: Registry, prompts: list[str], words: str) -> None:
    add(registry, "sql", b"one")
    registry.adapters.set_prompts("sql", ["kept"], actor=ACTOR)
    with pytest.raises(InvalidPrompts, match=words):
        registry.adapters.set_prompts("sql", prompts, actor=ACTOR)
    assert registry.adapters.prompts("sql") == ["kept"]


def test_a_name_that_is_used_again_begins_without(registry: Registry) -> None:
    add(registry, "sql", b"one")
    registry.adapters.set_prompts("sql", ["old"], actor=ACTOR)
    registry.adapters.remove("sql", actor=ACTOR)
    with pytest.raises(UnknownAdapter):
        registry.adapters.prompts("sql")
    add(registry, "sql", b"one")
    assert registry.adapters.prompts("sql") is None
