"""README's two lines with a model of one's own, and every other word beside that server, typed in another folder."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loraplex.web.settings.in_force import value_words
from loraplex.web.settings.running_server import FILES
from tests.checkpoints import make_adapter, make_checkpoint
from tests.deployment.dockerfile import ROOT

from .live_server import LiveServer, environment

LINES = re.compile(r"^    \.venv/bin/loraplex ((?:serve --model|adapters add) .*?)(?: +#.*)?$", re.MULTILINE)
FEW = ("--concurrent", "1", "--prompt-tokens", "4", "--output-tokens", "2", "--rounds", "1")


@pytest.fixture(scope="module")
def lines() -> list[list[str]]:
    """What README has people type after `loraplex`."""
    return [line.split() for line in LINES.findall((ROOT / "README.md").read_text("utf-8"))]


class Home(LiveServer):
    """A server that was started as README says, in a folder with a model and an adapter of its owner's."""

    def __init__(self, home: Path, serve: list[str], adapter: str) -> None:
        self.home, self.model = home, home / serve[-1]
        make_checkpoint(self.model, "qwen3", seed=7, num_hidden_layers=3)
        make_adapter(home / adapter, self.model, rank=4)
        super().__init__(home, self.model, root_path="/tools", data_dir="data")
        del self.settings["model"], self.settings["served_name"]
        self.data_dir, self._serve = home / "data", serve

    def spawn(self) -> None:
        self.spawn_in(self.home, *self._serve)

    def word(self, *typed: str, **settings: object) -> "subprocess.CompletedProcess[str]":
        """In another folder, and without the server's settings."""
        elsewhere = self.home.parent
        command = [sys.executable, "-m", "loraplex", *typed]
        return subprocess.run(
            command, cwd=elsewhere, env=environment(settings), capture_output=True, text=True, timeout=240
        )


@pytest.fixture(scope="module")
def home(lines: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    serve, add = lines
    server = Home(tmp_path_factory.mktemp("home"), serve, add[-1])
    try:
        server.start()
        yield server
    finally:
        server.end()
    assert not list(server.data_dir.glob(FILES))


def test_the_two_lines_of_readme(home: Home, lines: list[list[str]]) -> None:
    """The second is typed beside the server, in the same folder and with the same data folder."""
    command = [sys.executable, "-m", "loraplex", *lines[1]]
    added = subprocess.run(
        command,
        cwd=home.home,
        env=environment({"data_dir": "data"}),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert added.returncode == 0 and added.stderr == "", added.stdout + added.stderr
    assert "support registered as version 1" in added.stdout
    assert "the engine ran a prompt" in added.stdout, "the engine that runs was asked"
    with home.client() as http:
        assert {model["id"] for model in http.get("/v1/models").json()["data"]} == {home.model.name, "support"}


@pytest.mark.parametrize("way", ["--data-dir", "LORAPLEX_DATA_DIR", "LORAPLEX_CONFIG"])
def test_an_adapter_from_another_folder(home: Home, way: str, tmp_path: Path) -> None:
    folder, settings, option = str(home.home / "runs" / "support-r16"), {}, []
    match way:
        case "--data-dir":
            option = ["--data-dir", str(home.data_dir)]
        case "LORAPLEX_DATA_DIR":
            settings = {"data_dir": home.data_dir}
        case _:
            (tmp_path / "my.toml").write_text(f"data_dir = {str(home.data_dir)!r}")
            settings = {"config": tmp_path / "my.toml"}
    told = home.word("adapters", "add", way.lower().strip("-_"), folder, *option, **settings)
    assert told.returncode == 0 and "the engine ran a prompt" in told.stdout, told.stdout + told.stderr


def test_without_its_data_folder_a_word_says_by_which_model_it_judged(home: Home, tmp_path: Path) -> None:
    told = home.word("adapters", "add", "support", str(home.home / "runs" / "support-r16"), data_dir=tmp_path)
    assert told.returncode == 1 and "support was not registered" in told.stdout
    assert "Checked against the model " in told.stderr
    assert told.stderr.endswith(f"examples/demo/model, without a server (data folder {tmp_path}).\n")


@pytest.mark.parametrize(
    "typed",
    [
        "adapters list --json",
        "aliases list --json",
        "keys list --json",
        "users list --json",
        "tenants list --json",
        "usage --json",
        "audit verify --json",
        "db upgrade --json",
        "config --json",
        f"bench --json {' '.join(FEW)}",
    ],
)
def test_every_word_finds_it(home: Home, typed: str) -> None:
    told = home.word(*typed.split(), "--data-dir", str(home.data_dir))
    assert told.returncode == 0 and told.stderr == "" and json.loads(told.stdout) is not None, told.stderr


def test_the_key_that_the_first_start_made_is_shown_by_a_word_and_in_no_log(home: Home) -> None:
    shown = home.word("credentials", "show", "--json", "--data-dir", str(home.data_dir))
    key = json.loads(shown.stdout)["api_key"]
    with home.client(key) as http:
        assert http.get("/v1/models").status_code == 200
    assert "loraplex credentials show" in home.log() and key not in home.log()


def test_config_doctor_the_box_and_the_system_page_agree(home: Home) -> None:
    """On what the server has found by itself, and on what it was given."""
    home.until_said("Ctrl-C stops it.")
    at = ("--data-dir", str(home.data_dir))
    config = json.loads(home.word("config", "--json", *at).stdout)
    doctor, box = home.word("doctor", *at).stdout, home.log()
    with home.client() as http:
        page, told = http.get("/system").text, http.get("/api/v1/settings").json()["data"]
    assert config == {row["name"]: row for row in told}
    adapters, cache = (value_words(name, config[name]["value"]) for name in ("adapter_memory", "kv_cache_memory"))
    words = f"adapters {adapters}, kv cache {cache}"
    assert words in box and words in doctor
    assert f"<td><code>adapter_memory</code></td><td>{adapters}</td>" in page
    assert f"<td><code>kv_cache_memory</code></td><td>{cache}</td>" in page
    assert config["adapter_memory"]["source"] == "environment" and config["kv_cache_memory"]["source"] == "computed"
    assert config["model"]["source"] == "flag" and config["max_queue"]["source"] == "default"


def test_words_that_work_by_themselves_take_its_settings(home: Home, tmp_path: Path) -> None:
    """Its model, its port: they are flags and variables of the server alone."""
    at = ("--data-dir", str(home.data_dir))
    doctor = home.word("doctor", *at)
    assert f"model at {home.model}" in doctor.stdout and "is serving there" in doctor.stdout, doctor.stdout
    certified = home.word("certify", *at, "--json")
    assert certified.returncode == 0 and json.loads(certified.stdout)["num_tokens"] > 0, certified.stderr
    kept = home.word("backup", *at, str(tmp_path / "kept.tar"))
    assert kept.returncode == 0, kept.stderr


def test_a_server_that_was_killed_is_not_asked(lines: list[list[str]], tmp_path: Path, home: Home) -> None:
    """Its file stays, and says nothing any more."""
    [file] = home.data_dir.glob(FILES)
    (tmp_path / file.name).write_bytes(file.read_bytes())
    listed = home.word("keys", "list", "--json", data_dir=tmp_path)
    assert listed.returncode == 0 and json.loads(listed.stdout) == [] and listed.stderr == ""
