"""The whole way through HTTP with the engine process: upload, use, survive its death."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
import torch

from loraplex.engine.ipc.client import EngineClient
from loraplex.web.server import Server
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state
from tests.checkpoints import make_adapter, reference_model
from tests.integration.live_server import free_port

from .conftest import KEY
from .test_adapters_api import add
from .tokenizer_folders import save_tokenizer

GROWN = 330
"""Tokens of a model whose base knows 320."""


@pytest_asyncio.fixture
async def real(settings: Settings, checkpoint: Path) -> AsyncIterator[State]:
    small = {"port": free_port(), "num_threads": 1, "num_kv_blocks": 128, "adapter_memory": 8 << 20}
    small["adapter_tokenizers"] = True
    state = open_state(settings.model_copy(update=small), checkpoint)
    server = Server(state)
    task = asyncio.create_task(server.serve())
    await asyncio.wait_for(state.started.wait(), 240)
    assert state.start_error is None
    yield state
    server.should_exit = True
    await asyncio.wait_for(task, 60)


@pytest_asyncio.fixture
async def http(real: State) -> AsyncIterator[httpx.AsyncClient]:
    token = real.registry.keys.create("admin", ["admin"], actor="system").token
    real.registry.snapshots.refresh()
    headers = {"authorization": f"Bearer {token}"}
    address = f"http://127.0.0.1:{real.settings.port}"
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
        yield client


async def test_a_beam_search_answers_what_transformers_does(
    http: httpx.AsyncClient, real: State, checkpoint: Path
) -> None:
    model = reference_model(checkpoint)
    prompt = real.tokenizer.encode("The quick brown")
    found = model.generate(  # type: ignore[operator]
        torch.tensor([prompt]), num_beams=3, num_return_sequences=3, max_new_tokens=8, do_sample=False, pad_token_id=0,
        eos_token_id=None, attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
    )  # fmt: skip
    expected = [real.tokenizer.decode(output[len(prompt) :]) for output in found.tolist()]
    body = await complete(http, "tiny", prompt=prompt, use_beam_search=True, n=3, temperature=1.0, top_p=0.5)
    assert [choice["text"] for choice in body["choices"]] == expected
    assert body["usage"]["completion_tokens"] == 24
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "use_beam_search": True, "n": 2}
    answer = await http.post("/v1/chat/completions", json=chat | {"max_tokens": 5, "stream": True})
    assert answer.status_code == 200 and answer.text.count('"finish_reason":"') == 2
    refused = await http.post("/v1/chat/completions", json=chat | {"frequency_penalty": 1.0})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "frequency_penalty")
    wide = await http.post("/v1/chat/completions", json=chat | {"n": 16, "stop_token_ids": [5, 6, 7, 8, 9]})
    assert (wide.status_code, wide.json()["error"]["param"]) == (400, "n")


async def complete(client: httpx.AsyncClient, model: str, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": "The quick brown", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    response = await client.post("/v1/completions", json=body | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def _judge_what_the_base_has_read(client: httpx.AsyncClient) -> dict[str, Any]:
    """The answer of `judge`, which acts from token 310 on, to a prompt that the base has answered."""
    prompt = [*range(3, 43), 310, *range(43, 50)]
    await complete(client, "tiny", prompt=prompt)
    return await complete(client, "judge", prompt=prompt)


async def test_upload_use_and_a_killed_engine(
    real: State, http: httpx.AsyncClient, adapter_folders: list[Path], checkpoint: Path, tmp_path: Path
) -> None:
    base = await complete(http, "tiny")
    for name, folder in zip(("one", "two"), adapter_folders, strict=True):
        assert (await add(http, name, folder)).status_code == 201
    texts = {name: (await complete(http, name))["choices"][0]["text"] for name in ("one", "two")}
    assert len({base["choices"][0]["text"], *texts.values()}) == 3
    together = await asyncio.gather(*(complete(http, name, n=2) for name in ("tiny", "one", "two")))
    for answer, text in zip(together, (base["choices"][0]["text"], *texts.values()), strict=True):
        assert {choice["text"] for choice in answer["choices"]} == {text}

    await _asked_by_its_profile_as_spelled_out(http, "one")
    await _embeddings_are_those_of_peft(http, checkpoint, adapter_folders[0])
    judge = make_adapter(tmp_path / "judge", checkpoint, rank=2, alora_invocation_tokens=[310])
    assert (await add(http, "judge", judge)).status_code == 201
    verdict = await _judge_what_the_base_has_read(http)
    assert verdict["usage"]["prompt_tokens_details"]["cached_tokens"] == 32

    streams = [asyncio.create_task(_stream(http, name)) for name in ("tiny", "one", "two")]
    async with asyncio.timeout(60):
        while real.requests.taken < 3:
            await asyncio.sleep(0.005)
    assert isinstance(real.engine, EngineClient)
    assert real.engine.pid is not None
    os.kill(real.engine.pid, signal.SIGKILL)
    for events in await asyncio.gather(*streams):
        assert events[-1] == "[DONE]"
        assert "error" in json.loads(events[-2])
        assert not any("error" in json.loads(event) for event in events[:-2])
    async with asyncio.timeout(240):
        while (await http.get("/ready")).status_code != 200:
            await asyncio.sleep(0.05)
    assert (await complete(http, "one"))["choices"][0]["text"] == texts["one"]
    assert (await _judge_what_the_base_has_read(http))["choices"] == verdict["choices"]
    assert (await http.get("/health", headers={"authorization": f"Bearer {KEY}"})).status_code == 200


async def _embeddings_are_those_of_peft(client: httpx.AsyncClient, checkpoint: Path, adapter: Path) -> None:
    """Of the base and of "one", over HTTP."""
    prompts = [[5, 6, 7], [*range(3, 120)]]
    reference: Any = reference_model(checkpoint, {"one": adapter})
    for name, prepare in (("tiny", reference.disable_adapter_layers), ("one", reference.enable_adapter_layers)):
        prepare()
        response = await client.post("/v1/embeddings", json={"model": name, "input": prompts})
        assert response.status_code == 200, response.text
        for prompt, entry in zip(prompts, response.json()["data"], strict=True):
            with torch.no_grad():
                hidden = reference.get_base_model().model(torch.tensor([prompt])).last_hidden_state[0]
            alike = torch.cosine_similarity(hidden.mean(dim=0), torch.tensor(entry["embedding"]), dim=0)
            assert float(alike) > 0.99999, (name, len(prompt))


async def _asked_by_its_profile_as_spelled_out(client: httpx.AsyncClient, name: str) -> None:
    """The same tokens with the same log-probabilities, greedy and drawn."""
    system, user = {"role": "system", "content": "Answer in SQL."}, {"role": "user", "content": "Who is above 30?"}
    for sampling in ({"temperature": 0}, {"temperature": 1.5, "top_p": 0.9, "seed": 7, "presence_penalty": 0.5}):
        spelled = {**sampling, "stop": ["\n\n\n"], "max_tokens": 12}
        profile = {**spelled, "system_prompt": system["content"]}
        assert (await client.put(f"/api/v1/adapters/{name}/profile", json=profile)).status_code == 200
        body = {"model": name, "logprobs": True, "top_logprobs": 5, "ignore_eos": True}
        short = await client.post("/v1/chat/completions", json=body | {"messages": [user]})
        assert (await client.delete(f"/api/v1/adapters/{name}/profile")).status_code == 204
        whole = await client.post("/v1/chat/completions", json=body | spelled | {"messages": [system, user]})
        bare = await client.post("/v1/chat/completions", json=body | spelled | {"messages": [user]})
        assert short.status_code == 200, short.text
        assert short.json()["choices"] == whole.json()["choices"] != bare.json()["choices"]
        assert short.json()["usage"]["completion_tokens"] == 12


async def _stream(client: httpx.AsyncClient, model: str) -> list[str]:
    """The data of all events; a refusal before the first is one error and [DONE], too."""
    body = {"model": model, "prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}
    response = await client.post("/v1/completions", json=body)
    if response.status_code == 503:
        return [response.text, "[DONE]"]
    return [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]


async def test_loaded_by_path_into_memory_and_out_of_it(
    real: State, http: httpx.AsyncClient, adapter_folders: list[Path], checkpoint: Path, tmp_path: Path
) -> None:
    real.settings = real.settings.model_copy(update={"adapter_folders": (adapter_folders[0].parent, tmp_path)})
    base = await complete(http, "tiny")
    texts = set()
    for name, folder in zip(("one", "two"), adapter_folders, strict=True):
        loaded = await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)})
        assert loaded.text == f"Success: LoRA adapter '{name}' added successfully."
        texts.add((await complete(http, name))["choices"][0]["text"])
    assert len(texts | {base["choices"][0]["text"]}) == 3
    assert 'running_lora_adapters="one,two",waiting_lora_adapters=""' in await _metrics(http, 'adapters="one,two"')
    await http.post("/v1/unload_lora_adapter", json={"lora_name": "one"})
    assert 'running_lora_adapters="two"' in await _metrics(http, 'adapters="two"')
    gone = await http.post("/v1/completions", json={"model": "one", "prompt": "a"})
    assert gone.json()["error"]["code"] == "model_not_found"
    await _answers_as_transformers(http, checkpoint, tmp_path / "own")


async def _answers_as_transformers(client: httpx.AsyncClient, checkpoint: Path, folder: Path) -> None:
    """With its own template and tokens, the last of them in rows that the base does not have."""
    make_adapter(folder, checkpoint, rank=2, vocab_size=GROWN)
    theirs = save_tokenizer(checkpoint, folder, more=GROWN - 303)
    assert theirs.convert_tokens_to_ids("<call>") == GROWN - 1
    loaded = await client.post("/v1/load_lora_adapter", json={"lora_name": "own", "lora_path": str(folder)})
    assert loaded.status_code == 200, loaded.text
    messages = [{"role": "user", "content": "What does <call> do?"}]
    body = {"model": "own", "messages": messages, "max_tokens": 8, "temperature": 0, "skip_special_tokens": False}
    answer = await client.post("/v1/chat/completions", json=body | {"ignore_eos": True})
    prompt = theirs.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    model = reference_model(checkpoint, {"own": folder}, GROWN)
    made = model.generate(**prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False, eos_token_id=None)
    text = theirs.decode(made[0, prompt["input_ids"].shape[1] :])
    assert answer.json()["choices"][0]["message"]["content"] == text


async def _metrics(client: httpx.AsyncClient, awaited: str) -> str:
    """The metrics once the heartbeat has brought what is awaited."""
    async with asyncio.timeout(60):
        while awaited not in (text := (await client.get("/metrics")).text):
            await asyncio.sleep(0.05)
    return text
