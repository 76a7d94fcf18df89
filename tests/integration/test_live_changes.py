"""Adapters come, change and go under load; whoever has begun with one ends with it."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from loraplex.engine.text.tokenizer import Tokenizer

from ..campaign import Campaign
from .live_server import LiveServer
from .reference import Reference
from .talk import COMPLETIONS, complete, engine_status, events, greedy, put_files, text_of, until, upload

PROMPT = "The quick brown fox jumps over the lazy dog. " * 3
VERSIONS, SWAPS, STREAMS, COUNT = 12, 200, 4, 32
PARTS = 4
"""A run takes one of so many parts of the swaps."""


def make_version(folder: Path, template: Path, seed: int) -> Path:
    """An adapter of the same shape with another effect."""
    tensors = load_file(template / "adapter_model.safetensors")
    source = torch.Generator().manual_seed(seed)
    changed = {
        name: tensor if "lora_A" in name else torch.randn(tensor.shape, generator=source) * 0.1
        for name, tensor in tensors.items()
    }
    folder.mkdir(parents=True)
    save_file(changed, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_bytes((template / "adapter_config.json").read_bytes())
    return folder


@dataclass
class Live:
    """What the name means. A swap is under way between `begun` and `done`."""

    begun: list[int] = field(default_factory=list)
    """Version after version, from the moment its request is sent."""
    done: int = 0
    """How many of them have been answered."""
    heard: int = 0
    spanned: int = 0
    """Streams that outlived the version they began with."""

    async def swap(self, http: httpx.AsyncClient, bodies: list[dict[str, str]], version: int) -> None:
        self.begun.append(version)
        response = await http.post("/api/v1/adapters/live/versions", json=bodies[version])
        assert response.status_code == 201, response.text
        self.done += 1

    async def listen(self, http: httpx.AsyncClient, expected: list[str]) -> None:
        """One stream: all of it is what one version says that the name meant when it began."""
        earliest, latest, text = self.done - 1, None, ""
        async for event in events(http, greedy("live", PROMPT, COUNT)):
            latest = len(self.begun) if latest is None else latest
            if event != "[DONE]":
                text += json.loads(event)["choices"][0]["text"]
        possible = {expected[version] for version in self.begun[earliest:latest]}
        assert text in possible, f"{text!a} is not what versions {self.begun[earliest:latest]} say"
        self.heard += 1
        self.spanned += self.done - 1 > earliest


@pytest.fixture(scope="module")
def versions(adapter_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("versions")
    return [make_version(root / str(seed), adapter_folders["eight"], seed) for seed in range(VERSIONS)]


async def test_many_swaps_under_a_live_name(
    server: LiveServer,
    http: httpx.AsyncClient,
    checkpoint: Path,
    versions: list[Path],
    tokenizer: Tokenizer,
    campaign: Campaign,
) -> None:
    judge = Reference(checkpoint, {folder.name: folder for folder in versions})
    prompt = tuple(tokenizer.encode(PROMPT))
    expected = [tokenizer.decode(judge.greedy(folder.name, prompt, COUNT), False) for folder in versions]
    assert len(set(expected)) == VERSIONS
    with server.client() as client:
        bodies = [put_files(client, "live", folder) for folder in versions]
    live, source, swaps = Live(), random.Random(campaign.seed), len(campaign.part(SWAPS, PARTS))
    await live.swap(http, bodies, 0)
    before = (await engine_status(http))["status"]

    async def stream_on() -> None:
        while live.done < swaps:
            await live.listen(http, expected)

    async def swap_on() -> None:
        while live.done < swaps:
            await live.swap(http, bodies, source.choice([v for v in range(VERSIONS) if v != live.begun[-1]]))

    await asyncio.gather(swap_on(), *(stream_on() for _ in range(STREAMS)))
    least_heard, least_spanned = campaign.enough(50, PARTS), campaign.enough(20, PARTS)
    assert live.heard > least_heard and live.spanned > least_spanned, (live.heard, live.spanned)

    async def hit() -> bool:
        return bool((await engine_status(http))["status"]["prefix_hits"] > before["prefix_hits"])

    await until(hit, 60, "the prefix cache was asked")
    assert (await engine_status(http))["status"]["integrity_errors"] == 0


async def test_removal_breaks_no_running_request(
    server: LiveServer,
    http: httpx.AsyncClient,
    adapter_folders: dict[str, Path],
    reference: Reference,
    tokenizer: Tokenizer,
) -> None:
    count = 400
    expected = tokenizer.decode(reference.greedy("twenty", tuple(tokenizer.encode(PROMPT)), count), False)
    with server.client() as client:
        upload(client, "leaving", adapter_folders["twenty"])
        await complete(http, greedy("leaving", "a", 1))
        # Nobody else shares its digest, so its pages have to go after the last user.
        client.delete("/api/v1/adapters/twenty").raise_for_status()
    stream = events(http, greedy("leaving", PROMPT, count))
    text = json.loads(await anext(stream))["choices"][0]["text"]
    assert (await http.delete("/api/v1/adapters/leaving")).status_code == 204
    refused = await http.post(COMPLETIONS, json=greedy("leaving", PROMPT, 1))
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert "leaving" not in (await http.get("/v1/models")).text
    reasons = []
    async for event in stream:
        if event != "[DONE]":
            choice: dict[str, Any] = json.loads(event)["choices"][0]
            text += choice["text"]
            reasons.append(choice["finish_reason"])
    assert (text, reasons[-1]) == (expected, "length")
    with server.client() as client:
        upload(client, "twenty", adapter_folders["twenty"])
    again = await text_of(http, greedy("twenty", PROMPT, count))
    assert again == expected


async def test_the_server_follows_the_command_line(
    server: LiveServer, http: httpx.AsyncClient, adapter_folders: dict[str, Path]
) -> None:
    async def known() -> bool:
        return (await http.post(COMPLETIONS, json=greedy("typed", PROMPT, 1))).status_code == 200

    async def gone() -> bool:
        return (await http.post(COMPLETIONS, json=greedy("typed", PROMPT, 1))).status_code == 404

    assert await gone()
    await asyncio.to_thread(server.command, "adapters", "add", "typed", str(adapter_folders["one"]))
    await until(known, 60, "the added adapter is served")
    assert await text_of(http, greedy("typed", PROMPT, 16)) == await text_of(http, greedy("one", PROMPT, 16))
    await asyncio.to_thread(server.command, "adapters", "remove", "typed", "--yes")
    await until(gone, 60, "the removed adapter is gone")
