"""`loraplex certify` as it is typed."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from loraplex.engine.certify.certificate import Certificate, CertifyJob
from loraplex.engine.certify.child import OnProgress
from loraplex.engine.certify.run import certify
from loraplex.registry.certificates.certificates import Certificates, Subject
from loraplex.web.cli.adapters.certify import read_prompt_file
from loraplex.web.cli.opened import opened_registry, served_path
from loraplex.web.settings.settings import Settings
from tests.checkpoints import make_adapter, make_checkpoint

from .typed import Run, typed

beside = pytest.mark.usefixtures("computed_here")
"""Without the process of its own that the first test has: tests/engine/certify/test_process.py is about that one."""
ROUNDED = ("--quantization", "int4", "--kv-cache-dtype", "int8")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), base)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, base: Path) -> Run:
    """Call the command in this process: exit code, standard output, standard error."""
    for name, value in {"DATA_DIR": tmp_path / "data", "MODEL": base, "MIN_FREE_BYTES": 0}.items():
        monkeypatch.setenv(f"LORAPLEX_{name}", str(value))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The quick brown fox\n\njumps over the lazy dog\n")

    return typed(monkeypatch, capsys)


@pytest.fixture
def computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_certify(job: CertifyJob, on_progress: OnProgress) -> Certificate:
        return Certificate.from_json(certify(CertifyJob.from_json(job.to_json()), on_progress).to_json())

    monkeypatch.setattr("loraplex.web.cli.adapters.certify.run_certify", run_certify)


def test_a_table_of_three_rows_with_the_settings_of_serve(run: Run, tmp_path: Path) -> None:
    code, out, err = run("certify", *ROUNDED, "--prompts", tmp_path / "prompts.txt")
    assert code == 0, err
    assert "weights only" in out and "KV cache only" in out and "both" in out
    assert "of 2 prompts" in out and "int4 rounded at load" in out and "int8" in out
    assert "certified" in err and "100%" in err, "the bar"


@beside
def test_a_registered_adapter_and_its_folder_are_the_same(run: Run, adapter: Path, tmp_path: Path) -> None:
    digest = json.loads(run("adapters", "add", "support", adapter, "--json")[1])["digest"]
    documents = []
    for named in ("support@1", adapter):
        code, out, _ = run("certify", named, *ROUNDED, "--json", "--prompts", tmp_path / "prompts.txt")
        assert code == 0
        documents.append(json.loads(out))
    digests = [document.pop("digest") for document in documents]
    first, second = map(Certificate.from_json, documents)
    assert first.coverage == second.coverage and digests == [first.coverage.digest()] * 2
    assert first.both == second.both and first.coverage.adapter == digest and first.both.max_kl > 0


@beside
def test_what_was_measured_is_kept_with_a_registered_adapter(run: Run, adapter: Path, tmp_path: Path) -> None:
    """On prompts of the adapter's own, and for what the settings say is served."""
    prompts = tmp_path / "prompts.txt"
    digest = json.loads(run("adapters", "add", "support", adapter, "--json")[1])["digest"]
    assert "Not stored" in run("certify", "support", "--prompts", prompts)[1]
    assert "Not stored" not in run("certify", adapter, "--prompts", prompts)[1]
    with opened_registry(Settings()) as (registry, base):
        assert registry.adapters.prompts("support") is None
        assert registry.certificates.known(Subject(digest), None).newest is None
        served = served_path(Settings(), base)
    code, out, _ = run("certify", "support", "--prompts", prompts, "--keep")
    assert code == 0 and "stored in the registry" in out
    assert "stored in the registry" in run("certify", "support", "--kv-cache-dtype", "int8")[1], "on the kept prompts"
    with opened_registry(Settings()) as (registry, _):
        assert registry.adapters.prompts("support") == ["The quick brown fox", "jumps over the lazy dog"]
        subject = Subject(digest, registry.adapters.get("support").prompts_digest)
        known = registry.certificates.known(subject, served.coverage(subject).digest())
        assert known.valid and known.valid.measured and known.last and known.last.measured
        coverages = [Certificate.from_json(one.measured.document).coverage for one in (known.valid, known.last)]
    assert [coverage.kv_cache_dtype for coverage in coverages] == ["float32", "int8"]
    assert coverages[0] == served.coverage(subject)


@beside
def test_one_that_holds_is_the_answer_until_another_is_asked_for(run: Run) -> None:
    code, out, err = run("certify", "--json")
    assert code == 0, err
    first = json.loads(out)
    assert "still valid" in run("certify")[1]
    assert json.loads(run("certify", "--json")[1]) == first
    assert json.loads(run("certify", "--json", "--anew")[1])["seconds"] != first["seconds"]


@beside
def test_what_cannot_be_kept_is_printed_all_the_same(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Certificates, *arguments: Any, **options: Any) -> None:
        raise OperationalError("INSERT INTO certificates", {}, Exception("database or disk is full"))

    monkeypatch.setattr(Certificates, "keep", keep)
    code, out, err = run("certify", "--json")
    assert (code, json.loads(out)["num_prompts"]) == (1, 16)
    assert "could not be stored in the registry" in err and "disk is full" in err
    code, out, err = run("certify")
    assert code == 1 and "weights only" in out and "could not be stored" in err


@beside
def test_refusals_are_words(run: Run, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", intermediate_size=128)
    for arguments, words in (
        (("nosuch",), "no adapter 'nosuch'"),
        (("./nosuch",), "has no adapter_config.json"),
        (("--reference", other), "outputs is 128 instead of 96"),
        (("--prompts", tmp_path / "nosuch"), "cannot be read"),
        (("--keep", "--prompts", tmp_path / "prompts.txt"), "needs the name of a registered adapter"),
    ):
        code, out, err = run("certify", *arguments)
        assert code == 2 and out == "" and words in err and "Traceback" not in err


def test_prompt_files(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    for text, expected in (
        ("one\n\n two \n", ["one", " two "]),
        (' ["of\\ntwo lines", "b"]', ["of\ntwo lines", "b"]),
        ("[INST] one [/INST]\ntwo", ["[INST] one [/INST]", "two"]),
    ):
        file.write_text(text)
        assert read_prompt_file(file) == expected
    for text in ('["a", 1]', '["a"'):
        file.write_text(text)
        with pytest.raises(ValueError, match="prompts"):
            read_prompt_file(file)
