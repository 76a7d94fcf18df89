"""Adapters with their own tokens and chat template, from upload to answer; transformers says what is right."""

import asyncio
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from transformers import PreTrainedTokenizerFast

from loraplex.registry.files.adapter_tokenizer import AdapterTokenizer, AddedToken
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.adapter_tokenizers.files import TEMPLATE_FILE, TOKENIZER_FILE
from loraplex.web.chat_templates import process
from loraplex.web.management.registration import FIELDS, add_from_folder
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state
from loraplex.web.text import text_processor_cache as text_processors
from tests.registry.helpers import CONFIG, passing_report, put, sha256

from .conftest import make_settings
from .fake_engine import FakeEngine
from .test_adapters_api import as_admin
from .test_template_workers import SLOW
from .tokenizer_folders import ADDED, OWN_TEMPLATE, save_tokenizer

__all__ = ["as_admin"]
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "What does <call> do, <|end|>? Zürich 😀"},
]
TURN, END, CALL = 300, 301, 302
OWN = AdapterTokenizer(
    added_tokens=[
        AddedToken(TURN, ADDED[0], normalized=False, special=True),
        AddedToken(END, ADDED[1], normalized=False, special=True),
        AddedToken(CALL, ADDED[2], normalized=False),
    ],
    chat_template=OWN_TEMPLATE,
    named_tokens={"eos_token": "<|end|>"},
)


@pytest.fixture
def settings(first_data: Path, checkpoint: Path, tmp_path: Path) -> Settings:
    data = Path(shutil.copytree(first_data, tmp_path / "data"))
    return make_settings(data, checkpoint).model_copy(update={"adapter_tokenizers": True})


@pytest.fixture(scope="module")
def folder(checkpoint: Path, adapter_folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter with all that a trainer saves beside it."""
    folder = tmp_path_factory.mktemp("own") / "adapter"
    shutil.copytree(adapter_folders[0], folder)
    save_tokenizer(checkpoint, folder, eos_token="<|end|>")
    return folder


@pytest.fixture(scope="module")
def theirs(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder)


async def register(state: State, name: str, weights: bytes, tokenizer: AdapterTokenizer | None) -> str:
    """A version without its checks: those have their own tests."""
    state.registry.adapters.add_version(
        name,
        put(state.registry.store, CONFIG),
        put(state.registry.store, weights),
        passing_report(sha256(weights)),
        base_fingerprint=state.base.signature.fingerprint,
        actor="cli",
        tokenizer=tokenizer,
    )
    await state.reconciler.reconcile()
    return sha256(weights)


@pytest_asyncio.fixture
async def own(client: httpx.AsyncClient, state: State) -> str:
    """The digest of the adapter `own`."""
    return await register(state, "own", b"own", OWN)


async def upload(
    client: httpx.AsyncClient, name: str, folder: Path, *left_out: str, optional: bool = False
) -> httpx.Response:
    body: dict[str, Any] = {"tokenizer_optional": optional}
    for file, field in FIELDS.items():
        if (folder / file).is_file() and file not in left_out:
            data = (folder / file).read_bytes()
            headers = {"x-content-sha256": hashlib.sha256(data).hexdigest()}
            put = await client.put(f"/api/v1/adapters/{name}/files/{file}", content=data, headers=headers)
            assert put.status_code == 201, put.text
            body[field] = put.json()["sha256"]
    return await client.post(f"/api/v1/adapters/{name}/versions", json=body)


async def chat(client: httpx.AsyncClient, model: str, **fields: Any) -> Any:
    body = {"model": model, "messages": CHAT, "temperature": 0, **fields}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_from_upload_to_prompt(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, folder: Path, theirs: PreTrainedTokenizerFast
) -> None:
    """The whole way over HTTP; the same weights without the files are another version of the same bytes."""
    added = await upload(client, "own", folder)
    assert added.status_code == 201, added.text
    [finding] = [found for found in added.json()["report"]["findings"] if found["check"] == "tokenizer"]
    assert (finding["level"], finding["message"]) == (
        "pass",
        "3 added tokens, own chat template, answers end with <|end|>",
    )
    await chat(client, "own")
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert engine.requests[-1].prompt_token_ids == expected
    assert {TURN, END, CALL} <= set(expected)
    await chat(client, "tiny")
    base = PreTrainedTokenizerFast.from_pretrained(state.model_folder)
    assert engine.requests[-1].prompt_token_ids == base.apply_chat_template(
        CHAT, add_generation_prompt=True, return_dict=False
    )
    assert (await upload(client, "own", folder)).status_code == 200
    second = await upload(client, "own", folder, *list(FIELDS)[2:])
    assert second.json()["version"]["number"] == 2
    assert second.json()["version"]["digest"] == added.json()["version"]["digest"]
    await chat(client, "own")
    assert max(engine.requests[-1].prompt_token_ids) < TURN
    await client.patch("/api/v1/adapters/own@2", json={"enabled": False})
    await chat(client, "own")
    assert engine.requests[-1].prompt_token_ids == expected


async def test_answers_have_their_text(client: httpx.AsyncClient, engine: FakeEngine, own: str) -> None:
    word = engine._tokenizer.encode("Hi", add_special_tokens=False)
    engine.says[own] = [TURN, *word, CALL, *word, END, *word]
    answer = (await chat(client, "own", logprobs=True, top_logprobs=2))["choices"][0]
    assert answer["message"]["content"] == "Hi<call>Hi"
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", None)
    assert engine.requests[-1].params.stop_token_ids == [END]
    tokens = [(entry["token"], bytes(entry["bytes"]).decode()) for entry in answer["logprobs"]["content"]]
    assert tokens[0] == ("<|turn|>", "<|turn|>") and ("<call>", "<call>") in tokens
    shown = (await chat(client, "own", skip_special_tokens=False))["choices"][0]["message"]["content"]
    assert shown == "<|turn|>Hi<call>Hi"
    stopped = (await chat(client, "own", stop=["<ca"]))["choices"][0]
    assert (stopped["message"]["content"], stopped["stop_reason"]) == ("Hi", "<ca")


async def test_its_end_token_is_like_any_other(client: httpx.AsyncClient, engine: FakeEngine, own: str) -> None:
    engine.says[own] = [CALL, END, CALL]
    asked = (await chat(client, "own", stop_token_ids=[END]))["choices"][0]
    assert (asked["message"]["content"], asked["stop_reason"]) == ("<call>", END)
    await chat(client, "own", ignore_eos=True, max_tokens=3)
    assert engine.requests[-1].params.stop_token_ids == []


async def test_completions_and_streams(client: httpx.AsyncClient, engine: FakeEngine, own: str) -> None:
    engine.says[own] = [CALL, END]
    body = {"model": "own", "prompt": "a<call>", "logprobs": 1, "echo": True, "max_tokens": 4}
    choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    assert choice["text"] == "a<call><call>"
    assert choice["logprobs"]["tokens"][-3:] == ["<call>", "<call>", "<|end|>"]
    assert engine.requests[-1].prompt_token_ids[-1] == CALL
    by_ids = await client.post("/v1/completions", json={"model": "own", "prompt": [CALL, END]})
    assert by_ids.status_code == 200
    stream = await client.post("/v1/chat/completions", json={"model": "own", "messages": CHAT, "stream": True})
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "<call>"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


async def test_tokenize_and_detokenize(client: httpx.AsyncClient, own: str, theirs: PreTrainedTokenizerFast) -> None:
    text = "<call> me<|end|>"
    answer = (await client.post("/tokenize", json={"model": "own", "prompt": text, "return_token_strs": True})).json()
    assert answer["tokens"] == theirs.encode(text)
    assert answer["token_strs"][-1] == "<|end|>"
    back = await client.post("/detokenize", json={"model": "own", "tokens": answer["tokens"]})
    assert back.json()["prompt"] == theirs.decode(answer["tokens"])
    chat = (await client.post("/tokenize", json={"model": "own", "messages": CHAT})).json()["tokens"]
    assert chat == theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    base = (await client.post("/tokenize", json={"prompt": text})).json()["tokens"]
    assert max(base) < TURN
    part = {"adapters": [{"name": "own", "scale": 0.5}]}
    for body in ({"prompt": text}, {"model": "tiny", "prompt": text}):
        assert (await client.post("/tokenize", json=body | part)).json()["tokens"] == answer["tokens"]
    found = await client.post("/detokenize", json={"tokens": answer["tokens"]} | part)
    assert found.json() == back.json()
    wrong = ({"model": "own"} | part, part | {"adapters": [{"name": "absent"}]}, {"adapters": part["adapters"] * 2})
    for names, status in zip(wrong, (400, 404, 400), strict=True):
        refused = await client.post("/tokenize", json={"prompt": text} | names)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, "adapters")


async def test_a_running_request_keeps_what_it_began_with(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, own: str
) -> None:
    engine.says[own] = [CALL] * 5 + [END]
    engine.delay = 0.05
    running = asyncio.create_task(chat(client, "own"))
    while not engine.running:
        await asyncio.sleep(0.01)
    await register(state, "own", b"own", AdapterTokenizer(chat_template="{{ messages[-1].content }}"))
    assert (await running)["choices"][0]["message"]["content"] == "<call>" * 5
    await chat(client, "own")
    expected = state.tokenizer.encode(CHAT[-1]["content"], add_special_tokens=False)
    assert engine.requests[-1].prompt_token_ids == expected
    await chat(client, "own@1")
    assert CALL in engine.requests[-1].prompt_token_ids


async def test_a_restart_and_a_small_memory(
    client: httpx.AsyncClient, state: State, own: str, monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    """What was forgotten is made again, and another process makes the same."""
    monkeypatch.setattr(text_processors, "MOST_KEPT", 1)
    await register(state, "other", b"other", AdapterTokenizer(named_tokens={"eos_token": "<pad>"}))
    for name in ("own", "other", "own", "other"):
        await chat(client, name)
        assert len(state.text_processors._kept) == 1
    again = open_state(state.settings, checkpoint, FakeEngine(state.tokenizer))
    resolved = again.registry.snapshots.current.resolve("own")
    assert resolved is not None
    text_processor = await again.text_processors.of(resolved.tokenizer_digest)
    assert text_processor.tokenizer.token_id("<call>") == CALL
    again.registry.close()


async def test_other_named_tokens_reach_the_bases_template(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    """An end token of the base's vocabulary that the base does not end with."""
    digest = await register(state, "own", b"own", AdapterTokenizer(named_tokens={"eos_token": "<pad>"}))
    engine.says[digest] = [42, 2, 42]
    answer = (await chat(client, "own"))["choices"][0]
    assert answer["message"]["content"] == state.tokenizer.decode([42])
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", None)


async def test_a_slow_template_delays_nobody_else(client: httpx.AsyncClient, state: State, own: str) -> None:
    await asyncio.gather(chat(client, "own"), chat(client, "own"))  # both workers are there
    await register(state, "slow", b"slow", AdapterTokenizer(chat_template=SLOW))
    slow = asyncio.create_task(client.post("/v1/chat/completions", json={"model": "slow", "messages": CHAT}))
    answers = 0
    while not slow.done():
        await chat(client, "tiny")
        await chat(client, "own")
        answers += 1
    refused = await slow
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "chat_template_error")
    assert "took longer than" in refused.json()["error"]["message"]
    assert answers > 1


async def test_a_worker_that_does_not_start_in_time_is_worth_another_try(
    client: httpx.AsyncClient, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "own", "messages": CHAT, "max_tokens": 1}
    with monkeypatch.context() as patched:
        patched.setattr(process, "START_SECONDS", 0.2)
        patched.setattr(process, "child_command", lambda module: [sys.executable, "-c", "import time; time.sleep(60)"])
        refused = await client.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2"), refused.text
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_sums_need_one_wording(client: httpx.AsyncClient, state: State, own: str) -> None:
    await register(state, "plain", b"plain", None)
    await register(state, "twin", b"twin", OWN)
    body: dict[str, Any] = {"model": "tiny", "messages": CHAT}
    for names, status in ((("own", "plain"), 400), (("own", "twin"), 200), (("own",), 200)):
        parts = [{"name": name} for name in names]
        response = await client.post("/v1/chat/completions", json={**body, "adapters": parts})
        assert response.status_code == status, response.text
        if status == 400:
            assert response.json()["error"]["param"] == "adapters"
            assert "different tokenizers" in response.json()["error"]["message"]


async def test_the_switch_off(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, own: str, folder: Path
) -> None:
    """Sent on purpose: refused. Beside an adapter: told and not used. Registered before: not served."""
    state.settings = state.settings.model_copy(
        update={"adapter_tokenizers": False, "adapter_folders": (folder.parent,)}
    )
    refused = await upload(client, "new", folder)
    assert refused.status_code == 400
    assert "LORAPLEX_ADAPTER_TOKENIZERS=true" in refused.json()["error"]["message"]
    loaded = await client.post("/v1/load_lora_adapter", json={"lora_name": "new", "lora_path": str(folder)})
    assert loaded.status_code == 200, loaded.text
    report = (await client.get("/api/v1/adapters/new/report")).json()["findings"]
    uploaded = await upload(client, "other", folder, optional=True)
    assert uploaded.status_code == 201, uploaded.text
    for findings in (report, uploaded.json()["report"]["findings"]):
        [warning] = [finding for finding in findings if finding["level"] == "warn"]
        assert "the base's tokenizer and chat template are used instead" in warning["message"]
        assert "adapter_tokenizers" in warning["remedy"]
    await chat(client, "new")
    assert max(engine.requests[-1].prompt_token_ids) < TURN
    state.text_processors.allowed = False
    gone = await client.post("/v1/chat/completions", json={"model": "own", "messages": CHAT})
    assert (gone.status_code, gone.json()["error"]["code"]) == (400, "adapter_unavailable")


async def test_files_that_are_not_there_or_too_large(client: httpx.AsyncClient, folder: Path) -> None:
    needed = {}
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        data = (folder / file).read_bytes()
        headers = {"x-content-sha256": sha256(data)}
        await client.put(f"/api/v1/adapters/own/files/{file}", content=data, headers=headers)
        needed[FIELDS[file]] = sha256(data)
    missing = await client.post("/api/v1/adapters/own/versions", json={**needed, "chat_template_sha256": "0" * 64})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "chat_template_sha256")
    large = b" " * (129 << 10)
    headers = {"x-content-sha256": sha256(large)}
    refused = await client.put(f"/api/v1/adapters/own/files/{TEMPLATE_FILE}", content=large, headers=headers)
    assert refused.status_code == 413
    await client.put(f"/api/v1/adapters/own/files/{TOKENIZER_FILE}", content=large, headers=headers)
    smuggled = {**needed, "chat_template_sha256": sha256(large)}
    assert (await client.post("/api/v1/adapters/own/versions", json=smuggled)).status_code == 413


async def test_from_the_command_line(state: State, folder: Path) -> None:
    added, report = await asyncio.to_thread(
        add_from_folder, state.registry, state.base, "own", folder, "cli", tokenizers=True
    )
    assert added.version.tokenizer_digest is not None
    assert state.registry.tokenizers.get(added.version.tokenizer_digest) == OWN
    assert report.findings[-1].check == "tokenizer"
