"""The contract of the parity certificate: JSON and back, and what its digest covers."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from loraplex.engine.certify.certificate import Certificate, CertifyJob, Coverage, Figures, prompts_digest
from loraplex.engine.config import EngineConfig

COVERAGE = Coverage(
    base="b" * 64,
    reference="r" * 64,
    quantization="int4 rounded at load",
    kv_cache_dtype="fp8_e4m3",
    positions="longrope's short factors",
    arithmetic="float32 vectors",
    runtime={"torch": "2.11.0+cpu", "numba": "0.66.0"},
    adapter="a" * 64,
    prompts=prompts_digest(["hello"]),
    version="1.0",
)
FIGURES = Figures(0.97, 0.01, 0.3, 5.25, 0.05)
CERTIFICATE = Certificate(COVERAGE, 3, 120, 5.2, FIGURES, FIGURES, replace(FIGURES, top1_agreement=1.0), 1.5)


def test_goes_through_json_unchanged() -> None:
    job = CertifyJob(EngineConfig(model="/model"), adapter="/adapter", prompts=["a", "b"])
    for part in (CERTIFICATE, COVERAGE, FIGURES, job):
        assert type(part).from_json(json.loads(json.dumps(part.to_json()))) == part


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_tokens": "many"}, "num_tokens"),
        ({"num_tokens": 0}, "num_tokens"),
        ({"surprise": 1}, "unknown"),
        ({"both": FIGURES.to_json() | {"top1_agreement": 1.5}}, "top1_agreement"),
        ({"both": FIGURES.to_json() | {"mean_kl": -0.1}}, "mean_kl"),
        ({"both": FIGURES.to_json() | {"perplexity_delta": float("nan")}}, "not JSON compliant"),
        ({"coverage": {"base": "b"}}, "coverage"),
    ],
)
def test_another_document_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Certificate.from_json(CERTIFICATE.to_json() | change)


@pytest.mark.parametrize("part", [field.name for field in fields(Coverage) if field.name != "runtime"])
def test_every_covered_part_is_in_the_digest_and_told_in_words(part: str) -> None:
    changed = replace(COVERAGE, **{part: "something else"})
    assert changed.digest() != COVERAGE.digest()
    told = COVERAGE.changes(changed)
    assert len(told) == 1
    said_in_words = part in ("quantization", "kv_cache_dtype", "positions", "arithmetic", "version")
    assert ("something else" in told[0]) == said_in_words and COVERAGE.changes(COVERAGE) == []


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ({"torch": "2.11.1+cpu"}, ["torch (2.11.0+cpu, now 2.11.1+cpu)"]),
        ({"triton": "3.6.0"}, ["triton (none, now 3.6.0)"]),
        ({"torch": "3", "numba": "1"}, ["torch (2.11.0+cpu, now 3)", "numba (0.66.0, now 1)"]),
    ],
)
def test_every_library_that_computes_is_in_the_digest_and_told_by_its_name(
    runtime: dict[str, str], words: list[str]
) -> None:
    changed = replace(COVERAGE, runtime=COVERAGE.runtime | runtime)
    assert changed.digest() != COVERAGE.digest()
    assert COVERAGE.changes(changed) == words
    without = replace(COVERAGE, runtime={"torch": "2.11.0+cpu"})
    assert COVERAGE.changes(without) == ["numba (0.66.0, now none)"]
    other_order = replace(COVERAGE, runtime=dict(reversed(COVERAGE.runtime.items())))
    assert other_order.digest() == COVERAGE.digest() and COVERAGE.changes(other_order) == []


def test_parts_cannot_be_mistaken_for_each_other() -> None:
    swapped = replace(COVERAGE, base=COVERAGE.reference, reference=COVERAGE.base)
    assert swapped.digest() != COVERAGE.digest()
    assert replace(COVERAGE, adapter=None).digest() != replace(COVERAGE, adapter="").digest()
    assert prompts_digest(["a", "b"]) != prompts_digest(["ab"]) != prompts_digest(["b", "a"])
