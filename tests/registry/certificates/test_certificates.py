"""Certificates are asked for, run one by one, and belong to content; nothing that was asked for is lost."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from loraplex.registry.certificates import certificate_runs as runs_module
from loraplex.registry.certificates import certificates as certificates_module
from loraplex.registry.certificates.certificate_runs import GIVEN_UP, MOST_ATTEMPTS, CertificateRuns, Failure
from loraplex.registry.certificates.certificates import Certificates, Measured, Subject
from loraplex.registry.database import tables
from loraplex.registry.errors import CertificatesWaiting
from loraplex.registry.registry import Registry

from ..helpers import add, sha256

ACTOR = "user:admin"
BASE = Subject(None)
COVERAGE, OTHER = "c" * 64, "d" * 64
MEASURED = Measured(COVERAGE, 0.97, {"both": {"top1_agreement": 0.97}})


def adapter(registry: Registry, name: str = "sql", weights: bytes = b"one") -> Subject:
    return Subject(add(registry, name, weights).version.digest)


def test_without_a_request_nothing_is_known_and_nothing_runs(registry: Registry) -> None:
    known = registry.certificates.known(adapter(registry), COVERAGE)
    assert (known.newest, known.last, known.valid) == (None, None, None)
    assert registry.certificate_runs.claim() is None


def test_a_request_waits_runs_and_is_done(registry: Registry) -> None:
    subject, runs = adapter(registry), registry.certificate_runs
    registry.certificates.request(subject, actor=ACTOR)
    newest = registry.certificates.known(subject, COVERAGE).newest
    assert newest is not None
    assert (newest.state, newest.progress, newest.requested_by) == ("waiting", 0.0, ACTOR)
    claim = runs.claim()
    assert claim is not None
    assert (claim.subject, claim.prompts) == (subject, None)
    assert runs.beat(claim, 0.5)
    running = registry.certificates.known(subject, COVERAGE).newest
    assert running is not None
    assert (running.state, running.progress, running.measured) == ("running", 0.5, None)
    runs.finish(claim, MEASURED)
    known = registry.certificates.known(subject, COVERAGE)
    assert known.newest == known.last == known.valid
    assert known.valid is not None
    assert (known.valid.state, known.valid.measured) == ("done", MEASURED)
    assert known.valid.ended_at is not None


def test_the_same_is_asked_for_once_while_it_is_open(registry: Registry) -> None:
    subject, runs = adapter(registry), registry.certificate_runs
    for _ in range(3):
        registry.certificates.request(subject, actor=ACTOR)
    first = runs.claim()
    assert first is not None
    registry.certificates.request(subject, actor=ACTOR)
    assert runs.claim() is None
    runs.finish(first, MEASURED)
    registry.certificates.request(subject, actor=ACTOR)
    assert runs.claim() is not None


def test_who_came_first_is_measured_first(registry: Registry) -> None:
    subjects = [BASE, adapter(registry), adapter(registry, "other", b"two")]
    for subject in subjects:
        registry.certificates.request(subject, actor=ACTOR)
    claims = [registry.certificate_runs.claim() for _ in subjects]
    assert [claim.subject for claim in claims if claim] == subjects


def test_a_failure_is_kept_in_words_and_may_be_asked_for_again(registry: Registry) -> None:
    runs = registry.certificate_runs
    registry.certificates.request(BASE, actor=ACTOR)
    claim = runs.claim()
    assert claim is not None
    runs.fail(claim, Failure("The reference is not there."))
    failed = registry.certificates.known(BASE, COVERAGE).newest
    assert failed is not None
    assert (failed.state, failed.problem, failed.cause) == ("failed", "The reference is not there.", None)
    assert runs.claim() is None
    registry.certificates.request(BASE, actor=ACTOR)
    assert runs.claim() is not None


def test_a_failure_does_not_hide_an_earlier_certificate(registry: Registry) -> None:
    subject, runs = adapter(registry), registry.certificate_runs
    registry.certificates.keep(subject, MEASURED, actor="cli")
    registry.certificates.request(subject, actor=ACTOR)
    claim = runs.claim()
    assert claim is not None
    runs.fail(claim, Failure("no memory"))
    known = registry.certificates.known(subject, COVERAGE)
    assert known.newest and known.newest.state == "failed"
    assert known.valid and known.valid.measured == MEASURED


def test_a_run_that_was_given_back_waits_in_its_old_place(registry: Registry) -> None:
    first, second, runs = adapter(registry), adapter(registry, "other", b"two"), registry.certificate_runs
    for subject in (first, second):
        registry.certificates.request(subject, actor=ACTOR)
    claim = runs.claim()
    assert claim is not None
    runs.release(claim)
    again = runs.claim()
    assert again is not None
    assert (again.id, again.subject) == (claim.id, first)


def test_a_run_whose_worker_is_silent_is_begun_anew_and_only_a_certificate_ends_it_for_both(registry: Registry) -> None:
    impatient = CertificateRuns(registry.database, lease=timedelta(seconds=-1))
    registry.certificates.request(BASE, actor=ACTOR)
    silent = registry.certificate_runs.claim()
    assert silent is not None
    assert registry.certificate_runs.claim() is None
    other = impatient.claim()
    assert other is not None
    assert (other.id, other.worker == silent.worker) == (silent.id, False)
    assert not registry.certificate_runs.beat(silent, 0.9)
    impatient.release(silent)
    impatient.fail(silent, "x")
    newest = registry.certificates.known(BASE, COVERAGE).newest
    assert newest is not None
    assert (newest.state, newest.progress) == ("running", 0.0)
    impatient.finish(silent, MEASURED)
    assert not impatient.beat(other, 0.5)
    impatient.finish(other, replace(MEASURED, agreement=0.5))
    valid = registry.certificates.known(BASE, COVERAGE).valid
    assert valid is not None
    assert valid.measured == MEASURED


def test_a_run_that_ends_its_server_each_time_is_given_up(registry: Registry) -> None:
    impatient = CertificateRuns(registry.database, lease=timedelta(seconds=-1))
    for subject in (BASE, adapter(registry)):
        registry.certificates.request(subject, actor=ACTOR)
    for _ in range(2 * MOST_ATTEMPTS):
        claim = impatient.claim()
        assert claim is not None
        assert claim.subject == BASE
        impatient.release(claim)
    claims = [impatient.claim() for _ in range(MOST_ATTEMPTS + 1)]
    assert [claim is not None and claim.subject == BASE for claim in claims] == [True] * MOST_ATTEMPTS + [False]
    newest = registry.certificates.known(BASE, COVERAGE).newest
    assert newest is not None
    assert (newest.state, newest.problem) == ("failed", GIVEN_UP)


def test_a_tenant_may_ask_for_so_many_before_one_is_measured(registry: Registry) -> None:
    certificates, runs = registry.certificates, registry.certificate_runs
    first, second = adapter(registry), adapter(registry, "other", b"two")
    certificates.request(first, actor=ACTOR, tenant="default", most=1)
    certificates.request(first, actor=ACTOR, tenant="default", most=1)
    certificates.request(BASE, actor="system", most=1)
    with pytest.raises(CertificatesWaiting, match="1 certificates are already waiting"):
        certificates.request(second, actor=ACTOR, tenant="default", most=1)
    assert runs.claim() is not None
    certificates.request(second, actor=ACTOR, tenant="default", most=1)


def test_it_belongs_to_content_not_to_a_name(registry: Registry) -> None:
    registry.certificates.keep(adapter(registry), MEASURED, actor="cli")
    same, different = adapter(registry, "copy"), adapter(registry, "other", b"two")
    assert registry.certificates.known(same, COVERAGE).valid
    for nothing in (different, BASE):
        assert registry.certificates.known(nothing, COVERAGE).valid is None


def test_only_the_same_coverage_is_valid_and_the_newest_of_it_counts(registry: Registry) -> None:
    subject, certificates = adapter(registry), registry.certificates
    certificates.keep(subject, MEASURED, actor="cli")
    certificates.keep(subject, replace(MEASURED, coverage=OTHER, agreement=0.5), actor="cli")
    known = certificates.known(subject, COVERAGE)
    assert known.valid and known.valid.measured == MEASURED
    assert known.last and known.last.measured and known.last.measured.coverage == OTHER
    certificates.keep(subject, replace(MEASURED, agreement=0.9), actor="cli")
    newer = certificates.known(subject, COVERAGE).valid
    assert newer and newer.measured and newer.measured.agreement == 0.9
    assert certificates.known(subject, "e" * 64).valid is None
    assert certificates.known(subject, None).valid is None


def test_one_on_other_prompts_is_shown_only_where_there_is_none_on_its_own(registry: Registry) -> None:
    subject, certificates = adapter(registry), registry.certificates
    digest = registry.adapters.set_prompts("sql", ["Hello"], actor=ACTOR).prompts_digest
    golden = replace(subject, prompts=digest)
    certificates.keep(golden, replace(MEASURED, coverage=OTHER), actor="cli")
    for one in (subject, golden):
        last = certificates.known(one, None).last
        assert last and last.measured and last.measured.coverage == OTHER
    certificates.keep(subject, MEASURED, actor="cli")
    for one, coverage in ((subject, COVERAGE), (golden, OTHER)):
        last = certificates.known(one, None).last
        assert last and last.measured and last.measured.coverage == coverage


def test_what_was_measured_elsewhere_answers_who_waits(registry: Registry) -> None:
    subject = adapter(registry)
    registry.certificates.request(subject, actor=ACTOR)
    registry.certificates.keep(subject, MEASURED, actor="cli")
    assert registry.certificate_runs.claim() is None
    newest = registry.certificates.known(subject, COVERAGE).newest
    assert newest is not None
    assert (newest.state, newest.requested_by) == ("done", ACTOR)


def test_an_upload_asks_for_its_certificate_where_the_operator_wants_it(registry: Registry) -> None:
    assert [add(registry, "sql", b"one", certify=certify).created for certify in (None, covered)] == [True, False]
    assert registry.certificate_runs.claim() is None
    added = add(registry, "sql", b"two", certify=covered)
    claim = registry.certificate_runs.claim()
    assert claim is not None
    assert claim.subject == Subject(sha256(b"two")) == Subject(added.version.digest)
    assert [entry.action for entry in registry.audit.entries(limit=2)] == ["certificate.request", "adapter.add"]


def test_content_with_a_valid_certificate_is_not_measured_again_for_an_upload(registry: Registry) -> None:
    registry.certificates.keep(adapter(registry), MEASURED, actor="cli")
    add(registry, "copy", b"one", certify=covered)
    assert registry.certificate_runs.claim() is None
    for coverage_of in (lambda subject: OTHER, impossible):
        add(registry, f"copy{coverage_of is impossible}".lower(), b"one", certify=coverage_of)
        claim = registry.certificate_runs.claim()
        assert claim is not None
        registry.certificate_runs.fail(claim, Failure("x"))


def covered(subject: Subject) -> str:
    return COVERAGE


def impossible(subject: Subject) -> str:
    raise ValueError("there is no reference")


@pytest.mark.parametrize("prompts", [None, ["Count the customers.", "Zürich 😀"]])
def test_a_run_is_on_the_prompts_that_were_meant_when_it_was_asked_for(
    registry: Registry, prompts: list[str] | None
) -> None:
    adapter(registry)
    digest = registry.adapters.set_prompts("sql", prompts, actor=ACTOR).prompts_digest
    registry.certificates.request(Subject(sha256(b"one"), digest), actor=ACTOR)
    registry.adapters.set_prompts("sql", ["Something else."], actor=ACTOR)
    claim = registry.certificate_runs.claim()
    assert claim is not None
    assert claim.prompts == prompts


def serving(registry: Registry, how: str) -> tuple[Certificates, CertificateRuns]:
    """Of another server on the same database."""
    return Certificates(registry.database, how), CertificateRuns(registry.database, serving=how)


def test_servers_with_other_settings_measure_what_was_asked_of_them_alone(registry: Registry) -> None:
    subject = adapter(registry)
    (of_one, runs_of_one), (of_two, runs_of_two) = serving(registry, "one"), serving(registry, "two")
    assert runs_of_one.claim() is runs_of_two.claim() is None
    of_one.request(subject, actor=ACTOR)
    assert runs_of_two.claim() is None and of_two.known(subject, COVERAGE).newest is None
    of_two.request(subject, actor=ACTOR)
    of_two.keep(subject, replace(MEASURED, coverage=OTHER), actor="cli")
    newest = of_one.known(subject, COVERAGE).newest
    assert newest and newest.state == "waiting", "what was measured as the other serves is no answer"
    _, another = serving(registry, "one")
    claim = another.claim()
    assert claim is not None and runs_of_two.claim() is None
    runs_of_one.finish(claim, MEASURED)
    for certificates, coverage in ((of_one, COVERAGE), (of_two, OTHER)):
        valid = certificates.known(subject, coverage).valid
        assert valid and valid.measured and valid.measured.coverage == coverage


def test_what_was_asked_of_a_server_that_is_gone_is_measured_by_those_that_are_there(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings were changed, or who asked is no server; requests of before know of none."""
    subjects = [adapter(registry, name, name.encode()) for name in ("before", "word", "gone")]
    registry.certificates.request(subjects[0], actor=ACTOR)
    Certificates(registry.database, "word").request(subjects[1], actor="cli")
    old, runs = serving(registry, "old")
    assert runs.claim() is not None, "no settings: anyone's"
    old.request(subjects[2], actor=ACTOR)
    new, runs = serving(registry, "new")
    first = runs.claim()
    assert first is not None and first.subject == subjects[1]
    assert runs.claim() is None
    monkeypatch.setattr(certificates_module, "GONE", timedelta(seconds=-1))
    assert new.known(subjects[2], None).newest is not None
    last = runs.claim()
    assert last is not None and last.subject == subjects[2]
    monkeypatch.undo()
    newest = new.known(subjects[2], None).newest
    assert newest and newest.state == "running" and old.known(subjects[2], None).newest is None


def test_a_server_that_measures_for_long_is_still_there(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = adapter(registry), adapter(registry, "other", b"two")
    busy, runs = serving(registry, "busy")
    busy.request(first, actor=ACTOR)
    claim = runs.claim()
    assert claim is not None
    busy.request(second, actor=ACTOR)
    seen = select(tables.Certifier.seen_at)
    with registry.database.read() as session:
        before = session.scalars(seen).one()
    monkeypatch.setattr(runs_module, "SHOWN_EVERY", timedelta(0))
    assert runs.beat(claim, 0.5)
    with registry.database.read() as session:
        assert session.scalars(seen).one() > before
    assert serving(registry, "idle")[1].claim() is None
