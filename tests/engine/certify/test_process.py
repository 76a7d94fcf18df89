"""The worker process: its protocol, its priority, and that it never outlives whoever waits."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loraplex.engine.certify import child as certify_process
from loraplex.engine.certify.certificate import WORKER, Certificate, CertifyJob
from loraplex.engine.certify.child import WorkerFault, certify, run_certify
from loraplex.engine.config import EngineConfig
from tests.checkpoints import make_checkpoint

TEXTS = ["The quick brown fox jumps over the lazy dog."]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CertifyJob:
    base = make_checkpoint(tmp_path_factory.mktemp("base"))
    return CertifyJob(EngineConfig(model=str(base), quantization="int8"), prompts=TEXTS)


def ask(document: Any) -> tuple[int, list[dict[str, Any]]]:
    command = [sys.executable, "-m", WORKER]
    ended = subprocess.run(command, input=json.dumps(document).encode(), capture_output=True, check=False)
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.fixture(scope="module")
def answer(job: CertifyJob) -> tuple[int, list[dict[str, Any]]]:
    return ask(job.to_json())


def test_lines_of_progress_then_the_certificate(answer: tuple[int, list[dict[str, Any]]]) -> None:
    code, messages = answer
    assert code == 0
    shares = [message["progress"] for message in messages[:-1]]
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] <= 1 and len(shares) > 3
    assert "layer 2 of 2" in [message["stage"] for message in messages[:-1]]
    assert Certificate.from_json(messages[-1]["certificate"]).num_prompts == 1


def test_errors_are_words_and_exit_code_2(job: CertifyJob) -> None:
    for document, words in (
        (replace(job, engine=EngineConfig(model="/nowhere")).to_json(), "no config.json"),
        (job.to_json() | {"surprise": 1}, "unknown"),
        ([1], "this is no CertifyJob"),
    ):
        code, messages = ask(document)
        assert code == 2 and words in messages[-1]["error"]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has this program run in place of the worker."""

    def run_instead(program: str) -> None:
        (tmp_path / "stand_in.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
        monkeypatch.setattr(certify_process, "WORKER", "stand_in")

    return run_instead


def test_run_certify_gives_the_certificate(
    job: CertifyJob, answer: tuple[int, list[dict[str, Any]]], stand_in: Callable[[str], None]
) -> None:
    """The worker's own, told once more."""
    told = "".join(json.dumps(message) + "\n" for message in answer[1])
    stand_in(f"import sys\nassert sys.stdin.read()\nprint({told!r}, end='')")
    heard: list[tuple[float, str]] = []
    certificate = run_certify(job, lambda share, stage: heard.append((share, stage)))
    assert [{"progress": share, "stage": stage} for share, stage in heard] == answer[1][:-1]
    assert certificate.coverage.quantization == "int8 rounded at load" and heard[0] == (0.0, "reading the models")


def test_run_certify_gives_the_words(job: CertifyJob) -> None:
    with pytest.raises(ValueError, match=r"this is no CertifyJob: .*prompts"):
        run_certify(replace(job, prompts=[5]), lambda share, stage: None)  # type: ignore[list-item]


def test_a_worker_that_dies_is_an_error_in_words(job: CertifyJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify_process, "WORKER", "loraplex.engine.no_such_worker")
    with pytest.raises(ValueError, match=r"ended without an answer .*no_such_worker"):
        run_certify(job, lambda share, stage: None)


WORKER_THAT = """
import sys, time, types
from loraplex.engine.certify import __main__ as worker

def certify(job, progress):
    {does}

run = sys.modules["loraplex.engine.certify.run"] = types.ModuleType("run")
run.certify, worker.flush_subnormals = certify, lambda: None  # without seconds of torch
sys.exit(worker.main())
"""


@pytest.mark.parametrize("error", ["RuntimeError('not enough memory')", "FileNotFoundError('/srv/models/base')"])
def test_what_breaks_in_the_worker_is_told_apart_from_words_for_everybody(
    job: CertifyJob, error: str, stand_in: Callable[[str], None]
) -> None:
    stand_in(WORKER_THAT.format(does=f"raise {error}"))
    with pytest.raises(WorkerFault) as told:
        run_certify(job, lambda share, stage: None)
    name, _, words = error.removesuffix("')").partition("('")
    assert str(told.value) == f"{name}: {words}"


def test_time_that_is_over_ends_the_worker(job: CertifyJob) -> None:
    with pytest.raises(ValueError, match="not ready after"):
        run_certify(job, lambda share, stage: None, timeout_seconds=0.05)


async def test_a_cancelled_caller_ends_the_worker(
    job: CertifyJob, stand_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(WORKER_THAT.format(does="progress(0.0, 'reading the models'); time.sleep(600)"))
    started: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def recording(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await create(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recording)
    first_words = asyncio.Event()
    waiting = asyncio.create_task(certify(job, lambda share, stage: first_words.set()))
    await first_words.wait()
    niceness = os.getpriority(os.PRIO_PROCESS, started[0].pid)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert niceness == 19 and started[0].returncode == -9
    assert not Path(f"/proc/{started[0].pid}").exists()
