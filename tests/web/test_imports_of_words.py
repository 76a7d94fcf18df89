"""What each word of the command line imports: no word waits for what it does not use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from loraplex.web.cli.adapters import adapters
from loraplex.web.cli.app import app

from ..integration.live_server import free_port

SERVER = ("fastapi", "starlette", "uvicorn", "jinja2", "prometheus_client", "llguidance", "loraplex.web.state")
ENGINE = ("torch", "numba", "triton", "transformers")
DATABASE = ("sqlalchemy", "alembic", "pwdlib")
SETTINGS = ("pydantic_settings",)
CLIENT = ("httpx",)
IN_PROCESS = tuple({*SERVER} - {"fastapi", "starlette"})
"""What no word needs for the admin API in its own process."""
HEAVY = (*SERVER, *ENGINE, *DATABASE, *SETTINGS, *CLIENT)
TELL = """
import json, sys
from loraplex.__main__ import main
try:
    main()
finally:
    sys.stderr.write("\\n" + json.dumps(sorted(sys.modules)))
"""
WORDS = {
    "--help": (["--help"], 0, HEAVY),
    "--version": (["--version"], 0, HEAVY),
    "a word that there is not": (["sevre"], 2, HEAVY),
    "the help of a group": (["adapters", "--help"], 0, (*SERVER, *ENGINE, *DATABASE, *CLIENT)),
    "the help of serve": (["serve", "--help"], 0, (*SERVER, *ENGINE, *DATABASE, *CLIENT)),
    "the settings": (["config"], 0, (*SERVER, *ENGINE, *DATABASE, *CLIENT)),
    "a secret": (["secrets", "check", "/nowhere/secret"], 2, HEAVY),
    "keys": (["keys", "list"], 0, (*IN_PROCESS, *ENGINE, "alembic")),
    "users": (["users", "list"], 0, (*IN_PROCESS, *ENGINE, "alembic")),
    "tenants": (["tenants", "list"], 0, (*IN_PROCESS, *ENGINE, "alembic")),
    "usage": (["usage"], 0, (*IN_PROCESS, *ENGINE, "alembic")),
    "the audit log": (["audit", "list"], 0, (*IN_PROCESS, *ENGINE, "alembic")),
    "adapters": (["adapters", "list"], 0, (*IN_PROCESS, *ENGINE, "alembic")),
    "aliases": (["aliases", "list"], 0, (*IN_PROCESS, *ENGINE, "alembic")),
    **{
        f"{word} of a server": ([word, "list", "--server", "http://127.0.0.1:PORT"], 2, (*SERVER, *ENGINE, *DATABASE))
        for word in ("keys", "users", "tenants", "adapters", "aliases")
    },
    "a weak setting": (["serve", "--admin-password", "short"], 2, (*SERVER, *ENGINE, *DATABASE, *CLIENT)),
}
"""What is typed, the exit code, and what it must not have imported; the database is at the newest."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> dict[str, str]:
    """Of this process, with settings of our own and a database that is at the newest."""
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("LORAPLEX_")}
    folder = tmp_path_factory.mktemp("data")
    ours = {"DATA_DIR": folder, "MODEL": checkpoint, "KEY": "lp-imports-test-key-012345"}
    environment = theirs | {f"LORAPLEX_{name}": str(value) for name, value in ours.items()}
    subprocess.run([sys.executable, "-m", "loraplex", "db", "upgrade"], env=environment, check=True, timeout=120)
    return environment


@pytest.mark.parametrize("case", WORDS)
def test_a_word_imports_only_what_it_needs(case: str, environment: dict[str, str]) -> None:
    words, code, forbidden = WORDS[case]
    typed = [word.replace("PORT", str(free_port())) for word in words]
    command = [sys.executable, "-c", TELL, *typed]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == code and "Traceback" not in ended.stderr, ended.stderr
    modules = json.loads(ended.stderr.splitlines()[-1])
    assert "loraplex.web.cli.app" in modules and sorted({*forbidden} & {*modules}) == []


@pytest.mark.parametrize("of", [app, adapters.app], ids=["loraplex", "loraplex adapters"])
def test_the_help_says_of_a_word_what_the_word_says_of_itself(of: object) -> None:
    """It is written twice, so that the help of all imports none."""
    group = get_command(of)
    assert isinstance(group, TyperGroup)
    for name, stand_in in group.commands.items():
        written = stand_in.make_context(name, ["--help"], resilient_parsing=True).command
        assert written.name == name and written.help is not None
        assert written.help.split("\n\n")[0] == stand_in.help.split("\n\n")[0]
