"""`loraplex quantize` as it is typed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loraplex.engine.quantize.options import CALIBRATION_TOKENS
from loraplex.quant.weights.recipe import SCHEMES
from loraplex.web.cli.app import main
from tests.checkpoints import make_checkpoint

STOPPED = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # of nohup this process inherits another
from loraplex import __main__ as program
from loraplex.engine.quantize import run

found = run.quantize_layer

def stop(*arguments):
    signal.raise_signal(signal.NUMBER)
    return found(*arguments)

run.quantize_layer = stop
program.main()
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Call the command in this process, in `tmp_path`: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["loraplex", "quantize", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "tiny")


def test_a_table_and_a_folder_named_after_the_model(run: Run, model: Path, tmp_path: Path) -> None:
    code, out, err = run(model, "--scheme", "gptq", "--group-size", "32", "--calibration-tokens", "1024")
    assert code == 0 and (tmp_path / "tiny-gptq" / "model.safetensors").is_file()
    assert "rounded to nearest" in out and "error with gptq" in out and "tiny-gptq written" in out
    assert "perplexity" in out and "held-out tokens" in out
    assert "2/2" in err, "the bar"


def test_json_alone_on_standard_output(run: Run, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("Is there a train to Basel before noon? Yes, at ten. " * 60)
    code, out, _ = run(model, "--scheme", "fp8", "--output", "eight", "--calibration", text, "--json")
    report = json.loads(out)
    assert (code, report["scheme"], report["output"]) == (0, "fp8", "eight")
    assert [layer["layer"] for layer in report["layers"]] == [0, 1]
    assert report["bytes_after"] < report["bytes_before"]
    assert abs(report["perplexity_after"] / report["perplexity_before"] - 1) < 0.1


def test_links_to_other_disks_are_followed(run: Run, model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (disk / "empty").mkdir(parents=True)
    for link, target in (("linked", disk / "empty"), ("dangling", disk / "new")):
        (tmp_path / link).symlink_to(target)
        assert run(model, "--scheme", "int8", "--output", link)[0] == 0
        assert (tmp_path / link).is_symlink() and (target / "model.safetensors").is_file()
    (tmp_path / "here").mkdir()
    os.chdir(tmp_path / "here")
    code, _, err = run(model, "--scheme", "int8", "--output", ".")
    assert code == 2 and "is the folder this runs in" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    """SIGHUP is what a closed terminal sends."""
    script = STOPPED.replace("NUMBER", number.name)
    command = [sys.executable, "-c", script, "quantize", str(model), "--scheme", "int8", "--output", "out"]
    ended = subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=240)
    assert ended.returncode == 128 + number, ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_refusals_are_words_and_leave_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    code, out, err = run(model, "--scheme", "awq")
    words = "loraplex: the group size 128 does not divide the 64 inputs of a linear; choose 16 or 32"
    assert (code, out, err.strip()) == (2, "", words)
    code, _, err = run(tmp_path / "nothing", "--scheme", "awq")
    assert code == 2 and "does not exist" in err
    code, _, err = run(model, "--scheme", "fp8", "--calibration", "missing.txt")
    assert code == 2 and "missing.txt cannot be read" in err
    code, _, err = run(model, "--scheme", "fp8", "--output", "tiny")
    assert code == 2 and "tiny exists already and is not an empty folder" in err
    assert run(model, "--scheme", "nf4")[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_the_help_names_every_scheme_and_default(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run("--help")
    assert code == 0 and "|".join(SCHEMES) in out and str(CALIBRATION_TOKENS) in out
