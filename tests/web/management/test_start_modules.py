"""Adapters of lora_modules: registered at the start with the checks of uploads, once, and a bad one ends the start."""

import shutil
from pathlib import Path

import pytest

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.web.settings.lora_modules import LoraModule
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state

from ..conftest import served
from ..fake_engine import FakeEngine


def started(settings: Settings, checkpoint: Path, *modules: tuple[str, str]) -> State:
    named = tuple(LoraModule(name=name, path=path) for name, path in modules)
    state = settings.model_copy(update={"lora_modules": named})
    return open_state(state, checkpoint, FakeEngine(Tokenizer(checkpoint)))


async def test_they_serve_and_a_second_start_finds_them(
    settings: Settings, checkpoint: Path, adapter_folders: list[Path]
) -> None:
    first, second = adapter_folders
    modules = [("one", str(first)), ("two", str(second))]
    for _ in range(2):
        state = started(settings, checkpoint, *modules)
        async with served(state) as client:
            assert state.start_error is None
            models = [card["id"] for card in (await client.get("/v1/models")).json()["data"]]
            assert models == ["tiny", "one", "two"]
            ask = {"model": "two", "prompt": "hi", "max_tokens": 2}
            assert (await client.post("/v1/completions", json=ask)).status_code == 200
            versions = [len(state.registry.adapters.get(name).versions) for name in ("one", "two")]
            assert versions == [1, 1]
    state = started(settings, checkpoint, ("one", str(second)))
    async with served(state):
        assert len(state.registry.adapters.get("one").versions) == 2, "other files are another version"


async def test_a_folder_may_be_relative(
    settings: Settings, checkpoint: Path, adapter_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(adapter_folders[0].parent)
    state = started(settings, checkpoint, ("one", f"./{adapter_folders[0].name}"))
    async with served(state):
        assert state.start_error is None and state.registry.adapters.get("one").versions


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        ("one", "/no/such/folder", "/no/such/folder has no adapter_config.json"),
        ("tiny", "GOOD", "is the name of the base model"),
        ("One Two", "GOOD", "One Two"),
        ("one", "CUT", "one: "),
        ("one", "owner/name", "names no commit"),
    ],
)
async def test_a_bad_one_ends_the_start_by_its_name(
    settings: Settings, checkpoint: Path, adapter_folders: list[Path], tmp_path: Path, name: str, path: str, words: str
) -> None:
    cut = Path(shutil.copytree(adapter_folders[0], tmp_path / "cut"))
    (cut / "adapter_model.safetensors").write_bytes((cut / "adapter_model.safetensors").read_bytes()[:-9])
    found = {"GOOD": str(adapter_folders[0]), "CUT": str(cut)}.get(path, path)
    state = started(settings, checkpoint, (name, found))
    async with served(state) as client:
        assert state.start_error is not None
        assert state.start_error.startswith(f"lora_modules: {name}: ") and words in state.start_error
        assert (await client.get("/ready")).status_code == 503
