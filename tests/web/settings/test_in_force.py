"""What settings come to: the same in the API, on the system page and on the command line."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from loraplex.web.settings.in_force import SettingInForce, obstacle_to_restart, settings_in_force, value_words, words_of
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State

from ..fake_engine import FakeEngine


def rows(settings: Settings, info: Any = None) -> dict[str, SettingInForce]:
    return {row.name: row for row in settings_in_force(settings, info)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With settings in a file and in the environment."""
    (tmp_path / "loraplex.toml").write_text('port = 9001\nhost = "0.0.0.0"\n')
    secret = tmp_path / "secret"
    secret.write_text("3f9c1a2b4d5e6f708192a3b4")
    secret.chmod(0o600)
    monkeypatch.setenv("LORAPLEX_HOST", "127.0.0.1")
    monkeypatch.setenv("LORAPLEX_ADMIN_PASSWORD_FILE", str(secret))
    return tmp_path


def test_where_each_is_from(folder: Path) -> None:
    found = rows(Settings(data_dir=folder, seed=5))
    assert {name: (found[name].value, found[name].source) for name in ("seed", "host", "port", "max_queue")} == {
        "seed": (5, "flag"),
        "host": ("127.0.0.1", "environment"),
        "port": (9001, "file"),
        "max_queue": (512, "default"),
    }
    assert (found["tool_call_parser"].value, found["tool_call_parser"].source) == ("auto", "default")
    assert (found["admin_password"].value, found["admin_password"].source) == ("********", "environment")
    assert (found["served_name"].value, found["served_name"].source) == ("demo", "computed")
    assert found["database_url"].value == f"sqlite:///{folder}/loraplex.db"


async def test_what_the_engine_has_found_is_in_force(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    """The issue was a memory of the adapters that is `not set` on one page and 537 MB in the box of the start."""
    info = engine.info
    assert info is not None and state.settings.adapter_memory is None
    found = rows(state.settings, info)
    assert (found["adapter_memory"].value, found["adapter_memory"].given) == (info.adapter_memory, None)
    assert found["adapter_memory"].source == "computed"
    for name in ("dtype", "kv_cache_dtype", "device", "kv_cache_memory", "max_model_len", "num_kv_blocks"):
        assert found[name].source == "computed" and found[name].value not in (None, "auto"), name
    before = rows(state.settings)
    assert words_of(before["adapter_memory"]) == words_of(before["dtype"]) == "found at the start"


def test_a_change_of_the_file_needs_a_restart(folder: Path) -> None:
    settings = Settings(data_dir=folder)
    assert not any(row.needs_restart for row in rows(settings).values()) and not obstacle_to_restart(settings)
    (folder / "loraplex.toml").write_text('port = 9002\nhost = "0.0.0.0"\nadapter_memory = "1GiB"\n')
    found = rows(settings)
    assert {name: row.next for name, row in found.items() if row.needs_restart} == {
        "port": 9002,
        "adapter_memory": 1 << 30,
    }
    assert found["port"].value == 9001, "what is in force stays"
    for wrong, words in {"port = 0": "port: ", "prot = 1": "sets 'prot', which is not a setting"}.items():
        (folder / "loraplex.toml").write_text(wrong)
        assert words in obstacle_to_restart(settings) and rows(settings)["port"].value == 9001


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("adapter_memory", 512 << 20, "537 MB"),
        ("adapter_memory", None, "not set"),
        ("body_timeout", 30.0, "30 s"),
        ("log_json", False, "no"),
        ("adapter_folders", ["/a", "/b"], "/a, /b"),
    ],
)
def test_values_in_words(name: str, value: object, words: str) -> None:
    assert value_words(name, value) == words


async def test_the_api_and_the_system_page_agree(
    client: httpx.AsyncClient, state: State, admin: dict[str, str]
) -> None:
    (state.settings.data_dir / "loraplex.toml").write_text("max_queue = 7\n")
    answer = (await client.get("/api/v1/settings", headers=admin)).json()
    page = (await client.get("/system", headers=admin)).text
    cells = re.findall(r"<tr><td><code>(\w+)</code></td><td>(.*?)</td><td><span[^>]*>(.*?)</span></td>", page)
    shown = {name: (unescape(re.sub("<.*", "", value)).strip(), source) for name, value, source in cells}
    assert shown == {
        row["name"]: (value_words(row["name"], row["value"]), row["source"].replace("file", "loraplex.toml"))
        for row in answer["data"]
    }
    assert ">needs restart: 7</span>" in page and page.count("needs restart") == 1 and not answer["obstacle"]
    (state.settings.data_dir / "loraplex.toml").write_text("prot = 1\n")
    assert "A restart would fail: " in (await client.get("/system", headers=admin)).text
