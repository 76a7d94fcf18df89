"""Where the operator asks for it, an alias points at versions with a valid certificate and enough agreement only."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loraplex.registry.adapters.promotion import PromotionRule
from loraplex.registry.certificates.certificates import Measured, Subject
from loraplex.registry.certificates.golden_prompts import digest_of
from loraplex.registry.errors import PromotionRefused
from loraplex.registry.registry import Registry

from ..helpers import BASE, add, sha256, snapshot

ACTOR = "user:admin"


def coverage_of(subject: Subject) -> str:
    return sha256(f"{subject}".encode())


@pytest.fixture
def careful(database_url: str, tmp_path: Path) -> Iterator[Registry]:
    opened = Registry.open(
        database_url, tmp_path / "artifacts", BASE, free_floor=0, rule=PromotionRule(0.98, coverage_of)
    )
    yield opened
    opened.close()


def certify(
    registry: Registry, weights: bytes, agreement: float, prompts: list[str] | None = None, tokens: int = 512
) -> None:
    subject = Subject(sha256(weights), None if prompts is None else digest_of(prompts))
    registry.certificates.keep(
        Subject(subject.adapter), Measured(coverage_of(subject), agreement, {"num_tokens": tokens}), actor="cli"
    )


def test_a_version_without_a_certificate_is_refused_in_words(careful: Registry) -> None:
    add(careful, "sql", b"one")
    before = snapshot(careful).revision
    with pytest.raises(PromotionRefused, match=r"Version 1 of 'sql' has no valid .* loraplex certify sql@1") as refused:
        careful.adapters.routes.set("sql", "prod", "latest", actor=ACTOR)
    assert refused.value.code == "promotion_refused"
    assert (careful.adapters.get("sql").aliases, snapshot(careful).revision) == ({}, before)


def test_what_would_be_refused_is_told_beforehand(careful: Registry) -> None:
    add(careful, "sql", b"one")
    told = careful.adapters.routes.refusals("sql")
    with pytest.raises(PromotionRefused) as refused:
        careful.adapters.routes.set("sql", "prod", 1, actor=ACTOR)
    assert told == {1: str(refused.value)}
    certify(careful, b"one", 1.0)
    assert careful.adapters.routes.refusals("sql") == {}


def test_one_that_agrees_enough_is_promoted_and_others_are_not(careful: Registry) -> None:
    add(careful, "sql", b"one")
    add(careful, "sql", b"two")
    certify(careful, b"one", 0.98)
    certify(careful, b"two", 0.9799)
    assert careful.adapters.routes.set("sql", "prod", 1, actor=ACTOR).aliases == {"prod": 1}
    with pytest.raises(PromotionRefused, match=r"at 97\.99% of positions; this server requires 98\.00%"):
        careful.adapters.routes.set("sql", "prod", 2, actor=ACTOR)
    assert careful.adapters.get("sql").aliases == {"prod": 1}
    certify(careful, b"two", 0.99)
    assert careful.adapters.routes.set("sql", "prod", 2, actor=ACTOR).aliases == {"prod": 2}


def test_a_few_tokens_prove_nothing(careful: Registry) -> None:
    add(careful, "sql", b"one")
    certify(careful, b"one", 1.0, tokens=511)
    with pytest.raises(PromotionRefused, match=r"compared on 511 tokens only, and an alias needs 512"):
        careful.adapters.routes.set("sql", "prod", 1, actor=ACTOR)
    assert careful.adapters.get("sql").aliases == {}


def test_a_certificate_of_something_else_does_not_count(careful: Registry) -> None:
    add(careful, "sql", b"one")
    subject = Subject(sha256(b"one"))
    careful.certificates.keep(subject, Measured("0" * 64, 1.0, {}), actor="cli")
    careful.certificates.keep(Subject(None), Measured(coverage_of(subject), 1.0, {}), actor="cli")
    with pytest.raises(PromotionRefused, match="no valid"):
        careful.adapters.routes.set("sql", "prod", 1, actor=ACTOR)


def test_other_prompts_make_the_certificate_invalid(careful: Registry) -> None:
    add(careful, "sql", b"one")
    certify(careful, b"one", 1.0)
    careful.adapters.set_prompts("sql", ["Count the customers."], actor=ACTOR)
    with pytest.raises(PromotionRefused, match="no valid"):
        careful.adapters.routes.set("sql", "prod", 1, actor=ACTOR)
    certify(careful, b"one", 1.0, ["Count the customers."])
    assert careful.adapters.routes.set("sql", "prod", 1, actor=ACTOR).aliases == {"prod": 1}


def test_where_nothing_can_be_certified_the_reason_is_said(careful: Registry) -> None:
    def fail(subject: Subject) -> str:
        raise ValueError("the reference is gone.")

    add(careful, "sql", b"one")
    careful.adapters.routes._shares._rule = replace(PromotionRule(0.5, coverage_of), coverage_of=fail)
    with pytest.raises(PromotionRefused, match=r"so aliases cannot move: the reference is gone\."):
        careful.adapters.routes.set("sql", "prod", 1, actor=ACTOR)


def test_removing_an_alias_is_no_promotion(careful: Registry) -> None:
    add(careful, "sql", b"one")
    certify(careful, b"one", 1.0)
    careful.adapters.routes.set("sql", "prod", 1, actor=ACTOR)
    assert careful.adapters.routes.remove("sql", "prod", actor=ACTOR).aliases == {}


def test_without_the_rule_any_version_may_be_meant(registry: Registry) -> None:
    add(registry, "sql", b"one")
    assert registry.adapters.routes.set("sql", "prod", 1, actor=ACTOR).aliases == {"prod": 1}
