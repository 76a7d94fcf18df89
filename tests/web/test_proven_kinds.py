"""With an engine: kinds of all sorts are seen to change logits, and what comes to nothing in a base is refused."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from loraplex.web.adapters import effect_check
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state
from tests.checkpoints import make_adapter, make_checkpoint
from tests.engine.model.test_kinds import BASES, KINDS, WITH_BIASES

from .adapters.test_effect_check import effects
from .conftest import make_settings, served
from .test_adapters_api import add

WEIGHTS = "adapter_model.safetensors"
SMALL = {"num_threads": 1, "num_kv_blocks": 128, "adapter_memory": 16 << 20}
PROVEN = (
    *("lora", "dora", "ia3", "embedding", "head-rslora", "saved-norms", "saved-ends", "alora", "alora-some"),
    *("alora-bias", "tokens", "tokens-alone", "tokens-of-the-head", "trained-added-tokens", "saved-added-head"),
    *("fewer-tokens", "biases-of-all"),
)
Change = Callable[[str, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine's engine is looked at all the same."""
    monkeypatch.setattr(effect_check, "PATIENCE", 120.0)


@asynccontextmanager
async def administered(
    settings: Settings, base: Path, **changes: int
) -> AsyncIterator[tuple[State, httpx.AsyncClient]]:
    state = open_state(settings.model_copy(update=SMALL | changes), base)
    token = state.registry.keys.create("admin", ["admin"], actor="system").token
    state.registry.snapshots.refresh()
    async with served(state) as client:
        assert state.start_error is None
        client.headers["authorization"] = f"Bearer {token}"
        yield state, client


def changed(folder: Path, change: Change) -> Path:
    tensors = load_file(folder / WEIGHTS)
    save_file({name: change(name, tensor).contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    return folder


def only(part: str, *place: int | slice) -> Change:
    """LoRA's B is zero but for tensors with this part in their names, which are zero but for this place."""

    def keep(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if part not in name:
            return torch.zeros_like(tensor) if "lora_B" in name else tensor
        kept = torch.zeros_like(tensor)
        kept[place] = tensor[place]
        return kept

    return keep


def copies_but_for(base: Path, row: int) -> Change:
    """The saved embedding is the base's in all rows but one; all else does nothing."""
    own = load_file(base / "model.safetensors")["model.embed_tokens.weight"]

    def keep(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if "embed_tokens" not in name:
            return torch.zeros_like(tensor) if "lora_B" in name else tensor
        kept = own.clone()
        kept[row] = tensor[row]
        return kept

    return keep


ALL = slice(None)


def sparse(folder: Path, base: Path) -> dict[str, Path]:
    """Adapters that do something to one token alone, or very little."""

    def made(name: str, change: Change, kinds: tuple[str, ...], **settings: object) -> Path:
        return changed(make_adapter(folder / name, base, rank=2, seed=3, kinds=kinds, **settings), change)

    return {
        "one-column": made("one-column", only("embedding_A", ALL, 123), ("embed_tokens",)),
        "one-head-row": made("one-head-row", only("lm_head.lora_B", 211), ("lm_head",)),
        "one-saved-row": made("one-saved-row", copies_but_for(base, 77), ("q_proj",), modules_to_save=["embed_tokens"]),
        "norm-alone": made("norm-alone", only("norm"), ("q_proj",), modules_to_save=["norm"]),
        "hardly": made("hardly", lambda name, tensor: tensor * 1e-3, ("v_proj",)),
    }


async def test_kinds_of_all_sorts_are_seen_to_change_logits(tmp_path: Path) -> None:
    family, overrides = BASES["llama-with-biases"]
    base = make_checkpoint(tmp_path / "base", family, **overrides)
    kinds = {name: (KINDS | WITH_BIASES)[name] for name in PROVEN}
    made = {name: kind.make(tmp_path / name, base, seed) for seed, (name, kind) in enumerate(kinds.items())}
    made |= sparse(tmp_path, base)
    async with administered(make_settings(tmp_path / "data", base), base) as (state, client):
        for name, folder in made.items():
            response = await add(client, name, folder)
            assert response.status_code == 201, (name, response.text)
            found = effects(response.json()["report"])
            assert found[-1][0] == "pass" and "log-probabilities differ by up to" in found[-1][1], (name, found)
        assert state.engine.status is not None and state.engine.status.integrity_errors == 0


async def test_what_comes_to_nothing_in_its_base_is_refused(tmp_path: Path) -> None:
    """The attention's output is multiplied by zeros here, so whatever queries, keys and values are is no matter."""
    base = make_checkpoint(tmp_path / "base")
    tensors = {name: tensor * ("o_proj" not in name) for name, tensor in load_file(base / "model.safetensors").items()}
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    async with administered(make_settings(tmp_path / "data", base), base) as (state, client):
        for kinds in (("q_proj", "v_proj"), ("k_proj",)):
            response = await add(client, "vain", make_adapter(tmp_path / kinds[0], base, kinds=kinds))
            assert response.status_code == 400
            assert effects(response.json()["report"]) == [
                (
                    "fail",
                    "the adapter does not change the logits: the engine ran a prompt of 24 tokens with and without it, "
                    "and log-probabilities are the same",
                )
            ]
        good = await add(client, "good", make_adapter(tmp_path / "good", base, kinds=("o_proj",)))
        assert good.status_code == 201, good.text
        async with asyncio.timeout(60):
            while [spec.digest for spec in state.engine.status.adapters] != [good.json()["version"]["digest"]]:
                await asyncio.sleep(0.1)


async def test_what_no_load_will_ever_bring_is_refused(tmp_path: Path) -> None:
    """Its file is good: that an output has no weight, or that it is larger than the memory, only the engine knows."""
    base = make_checkpoint(tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.weight"][3] = 0
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    dora = make_adapter(tmp_path / "dora", base, rank=2, kinds=("q_proj",), use_dora=True)
    changed(dora, lambda name, tensor: 0 * tensor if "lora_B" in name and "layers.0" in name else tensor)
    giant = make_adapter(tmp_path / "giant", base, rank=512)
    settings = make_settings(tmp_path / "data", base)
    async with administered(settings, base, adapter_memory=2 << 20) as (_, client):
        for folder, words in (
            (dora, "q_proj of layer 0 has an output of no weight"),
            (giant, "of 2.1 MB adapter memory"),
        ):
            response = await add(client, "vain", folder)
            assert response.status_code == 400
            level, message = effects(response.json()["report"])[-1]
            assert level == "fail" and message.startswith("the engine cannot serve it here: ") and words in message
        assert (await client.get("/api/v1/adapters")).json()["data"] == []


async def test_a_busy_engine_with_room_and_without(checkpoint: Path, tmp_path: Path) -> None:
    """Answers that run meanwhile are the same as before."""
    folders = [make_adapter(tmp_path / str(seed), checkpoint, rank=8, seed=seed) for seed in (1, 2)]
    settings = make_settings(tmp_path / "data", checkpoint).model_copy(update={"max_loaded_adapters": 1})
    async with administered(settings, checkpoint) as (_, client):
        assert (await add(client, "one", folders[0])).status_code == 201
        await client.patch("/api/v1/adapters/one", json={"pinned": True})
        body = {"model": "one", "prompt": "The quick", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        expected = (await client.post("/v1/completions", json=body)).json()["choices"]
        ended = asyncio.Event()

        async def ask_again() -> int:
            count = 0
            while not ended.is_set():
                assert (await client.post("/v1/completions", json=body)).json()["choices"] == expected
                count += 1
            return count

        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(ask_again()) for _ in range(3)]
            again = await add(client, "same", folders[0])
            other = await add(client, "other", folders[1])
            ended.set()
        assert all(stream.result() for stream in streams)
        assert "differ by up to" in effects(again.json()["report"])[-1][1]
        level, message = effects(other.json()["report"])[-1]
        assert (level, other.status_code) == ("warn", 201) and "pinned" in message, message
