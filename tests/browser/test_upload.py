import asyncio
import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.async_api import Page, Route, expect
from safetensors.torch import load_file, save_file

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.adapter_tokenizers.files import TEMPLATE_FILE, TOKENIZER_LIMITS
from loraplex.web.state import State
from tests.web.fake_engine import FakeEngine
from tests.web.tokenizer_folders import save_tokenizer

from .conftest import MILLISECONDS, Hold, Watch

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

TRANSFER = """files => {
  const transfer = new DataTransfer();
  for (const [name, text] of files)
    transfer.items.add(new File([Uint8Array.from(atob(text), letter => letter.charCodeAt(0))], name));
  return transfer;
}"""


async def drop(page: Page, *files: Path) -> None:
    encoded = [(file.name, base64.b64encode(file.read_bytes()).decode()) for file in files]
    await page.wait_for_load_state()
    transfer = await page.evaluate_handle(TRANSFER, encoded)
    await page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})


async def drop_folder(page: Page, folder: Path) -> None:
    await drop(page, folder / WEIGHTS_FILE, folder / CONFIG_FILE)


async def send(page: Page, name: str) -> None:
    await page.get_by_label("Name (clients send it").fill(name)
    await page.get_by_role("button", name="Upload and check").click()


async def register(page: Page, name: str) -> None:
    await send(page, name)
    await page.get_by_role("button", name=f"Register {name}").click()


def changed(folder: Path, target: Path, tensor_change: Any = None, **config: Any) -> Path:
    """A copy of an adapter with other configuration fields, or its first tensor changed."""
    shutil.copytree(folder, target)
    fields = json.loads((target / CONFIG_FILE).read_text())
    (target / CONFIG_FILE).write_text(json.dumps(fields | config))
    if tensor_change is not None:
        tensors = load_file(target / WEIGHTS_FILE)
        first = min(tensors)
        save_file(tensors | {first: tensor_change(tensors[first])}, target / WEIGHTS_FILE)
    return target


async def test_files_chosen_before_the_script_runs_count(page: Page, adapter_folders: list[Path]) -> None:
    chosen = asyncio.Event()

    async def late(route: Route) -> None:
        await chosen.wait()
        await route.continue_()

    await page.route("**/js/upload.js", late)
    await page.goto("/upload", wait_until="commit")
    files = [adapter_folders[0] / file for file in (CONFIG_FILE, WEIGHTS_FILE)]
    await page.locator("#files").set_input_files(files)
    await expect(page.get_by_role("button", name="Upload and check")).to_be_disabled()
    chosen.set()
    await send(page, "sql")
    await expect(page.get_by_text("Checks passed. Ready to register.")).to_be_visible()


async def test_two_dropped_files_become_an_adapter(page: Page, engine: FakeEngine, adapter_folders: list[Path]) -> None:
    await page.goto("/upload")
    await drop_folder(page, adapter_folders[0])
    await send(page, "sql")
    await expect(page.get_by_text("Checks passed. Ready to register.")).to_be_visible()
    assert not engine.registered
    await page.get_by_role("button", name="Register sql").click()
    await expect(
        page.get_by_text("sql version 1 is registered. Requests for sql get version 1 from now on.")
    ).to_be_visible()
    await expect(page.locator("#report .tag", has_text="pass").first).to_be_visible()
    await expect(page.locator("#report .tag", has_text="fail")).to_have_count(0)
    assert len(engine.registered) == 1
    await page.get_by_role("link", name="Open its page").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("sql")
    await expect(page.locator("#snippet-1")).to_contain_text('"model": "sql"')


async def test_a_dropped_folder_brings_its_tokenizer(
    page: Page, state: State, adapter_folders: list[Path], checkpoint: Path, tmp_path: Path
) -> None:
    """And another adapter, chosen after it, does not get it."""
    state.settings = state.settings.model_copy(update={"adapter_tokenizers": True})
    folder = changed(adapter_folders[0], tmp_path / "own")
    save_tokenizer(checkpoint, folder)
    await page.goto("/upload")
    await drop(page, *folder.iterdir())
    for file in TOKENIZER_LIMITS:
        await expect(page.locator("#chosen")).to_contain_text(file)
    await register(page, "own")
    await page.get_by_role("link", name="Open its page").click()
    await expect(page.locator(".findings")).to_contain_text("3 added tokens, own chat template")
    await page.goto("/upload")
    await drop(page, *folder.iterdir())
    await expect(page.locator("#chosen")).to_contain_text(TEMPLATE_FILE)
    await drop_folder(page, adapter_folders[1])
    await expect(page.locator("#chosen")).not_to_contain_text(TEMPLATE_FILE)


async def test_progress_is_shown_and_an_upload_can_be_cancelled(
    page: Page, engine: FakeEngine, adapter_folders: list[Path], hold: Hold
) -> None:
    await page.route("**/files/*", hold)
    await page.goto("/upload")
    await drop_folder(page, adapter_folders[0])
    await send(page, "sql")
    await expect(page.get_by_role("progressbar")).to_be_visible()
    await expect(page.locator("#progress-text")).to_contain_text("Reading: 100 %")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_text("Cancelled. Nothing was registered.")).to_be_visible()
    await expect(page.get_by_role("progressbar")).to_be_hidden()
    assert not engine.registered


async def test_progress_says_how_fast_and_how_long_still(page: Page, adapter_folders: list[Path], hold: Hold) -> None:
    """Of the sending, which stands still here when its first file has come."""

    async def hold_weights(route: Route) -> None:
        if route.request.method == "PUT" and route.request.url.endswith(WEIGHTS_FILE):
            hold(route)
        else:
            await route.continue_()

    await page.route("**/files/*", hold_weights)
    await page.goto("/upload")
    await drop_folder(page, adapter_folders[0])
    await send(page, "sql")
    told = r"Sending: \d+ %, [\d.]+\u00a0kB of [\d.]+\u00a0kB, [\d.]+\u00a0[kM]?B/s, \d+ s left"
    await expect(page.locator("#progress-text")).to_have_text(re.compile(told))
    await page.get_by_role("button", name="Cancel").click()


async def test_a_chosen_folder_counts_as_what_lies_directly_in_it(
    page: Page, engine: FakeEngine, adapter_folders: list[Path], tmp_path: Path
) -> None:
    """Training leaves checkpoints of the same names below it."""
    folder = changed(adapter_folders[0], tmp_path / "run")
    changed(adapter_folders[1], folder / "checkpoint-1", r=7)
    await page.goto("/upload")
    await page.locator("#folder").set_input_files(folder)
    await expect(page.locator("#chosen li[data-tone=good]")).to_have_count(2)
    await register(page, "sql")
    await expect(page.get_by_text("sql version 1 is registered")).to_be_visible()
    assert len(engine.registered) == 1


async def test_a_missing_file_is_named(page: Page, adapter_folders: list[Path]) -> None:
    await page.goto("/upload")
    await drop(page, adapter_folders[0] / CONFIG_FILE)
    await expect(page.get_by_text(f"{WEIGHTS_FILE} is missing")).to_be_visible()
    await expect(page.get_by_role("button", name="Upload and check")).to_be_disabled()
    await drop(page, adapter_folders[0] / WEIGHTS_FILE)
    await expect(page.get_by_text("is missing")).to_have_count(0)
    await expect(page.get_by_role("button", name="Upload and check")).to_be_enabled()


async def test_folders_of_a_folder_are_named_where_nothing_else_is_found(
    page: Page, adapter_folders: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(adapter_folders[0], tmp_path / "runs" / "checkpoint-100")
    await page.goto("/upload")
    await page.locator("#folder").set_input_files(tmp_path / "runs")
    await expect(page.locator("#chosen")).to_contain_text(
        "checkpoint-100/ was skipped: choose the folder that contains the files"
    )
    await page.locator("#folder").set_input_files(tmp_path / "runs" / "checkpoint-100")
    await expect(page.locator("#chosen")).not_to_contain_text("was skipped")


async def test_files_that_are_refused_stay_unsent_whatever_else_is_chosen(
    page: Page, engine: FakeEngine, adapter_folders: list[Path], tmp_path: Path, hold: Hold
) -> None:
    """A look at another source, or an upload that ends, allows nothing that the browser has refused."""
    send_button = page.get_by_role("button", name="Upload and check")
    broken = changed(adapter_folders[0], tmp_path / "broken", peft_type="PREFIX_TUNING")
    await page.goto("/upload")
    await drop_folder(page, broken)
    await expect(page.locator("#chosen li[data-tone=bad]")).to_have_count(1)
    await page.get_by_label("Hugging Face Hub").check()
    await expect(send_button).to_be_enabled()
    await page.get_by_label("This computer").check()
    await expect(send_button).to_be_disabled()
    await page.route("**/files/*", hold)
    await drop_folder(page, adapter_folders[0])
    await send(page, "sql")
    await expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    await page.get_by_label("Folder on the server").check()
    await expect(send_button).to_be_disabled()
    await page.get_by_label("This computer").check()
    await drop_folder(page, broken)
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_text("Cancelled. Nothing was registered.")).to_be_visible()
    await expect(send_button).to_be_disabled()
    assert not engine.registered


async def test_files_that_cannot_be_meant_are_explained(
    page: Page, adapter_folders: list[Path], tmp_path: Path
) -> None:
    pickle = tmp_path / "adapter_model.bin"
    pickle.write_bytes(b"\x80\x04")
    await page.goto("/upload")
    await drop(page, adapter_folders[0] / CONFIG_FILE, pickle)
    await expect(page.get_by_text("pickle files are not accepted; save with safe_serialization=True")).to_be_visible()
    other = tmp_path / "adapter.tar.xz"
    other.write_bytes(b"\xfd7zXZ")
    await drop(page, other)
    await expect(
        page.get_by_text("adapter.tar.xz was skipped: supported archives are zip, tar and tar.gz")
    ).to_be_visible()


@pytest.mark.parametrize("kind", ["IA3", "ADALORA", "LOHA", "LOKR", "VERA"])
async def test_every_kind_that_the_server_takes_may_be_sent(
    page: Page, adapter_folders: list[Path], tmp_path: Path, kind: str
) -> None:
    folder = changed(adapter_folders[0], tmp_path / "kind")
    (folder / CONFIG_FILE).write_text(json.dumps({"peft_type": kind}))
    await page.goto("/upload")
    await drop_folder(page, folder)
    await expect(page.get_by_role("button", name="Upload and check")).to_be_enabled()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not valid JSON"),
        ('{"peft_type": "P_TUNING"}', 'its peft_type is "P_TUNING"; supported: LORA, IA3, ADALORA, LOHA, LOKR, VERA'),
        ('{"peft_type": "LORA"}', "has no rank r"),
    ],
)
async def test_a_wrong_configuration_is_seen_before_anything_is_sent(
    page: Page, adapter_folders: list[Path], tmp_path: Path, text: str, words: str
) -> None:
    folder = changed(adapter_folders[0], tmp_path / "wrong")
    (folder / CONFIG_FILE).write_text(text)
    await page.goto("/upload")
    await drop_folder(page, folder)
    await expect(page.get_by_text(words)).to_be_visible()
    await expect(page.get_by_role("button", name="Upload and check")).to_be_disabled()


@pytest.mark.parametrize(
    "tensor_change",
    [lambda tensor: torch.full_like(tensor, torch.nan), lambda tensor: tensor[:, :-1].contiguous()],
    ids=["NaN", "wrong shape"],
)
async def test_broken_weights_show_the_failing_checks_and_register_nothing(
    page: Page, state: State, engine: FakeEngine, adapter_folders: list[Path], tmp_path: Path, tensor_change: Any
) -> None:
    await page.goto("/upload")
    await drop_folder(page, changed(adapter_folders[0], tmp_path / "broken", tensor_change))
    await send(page, "broken")
    await expect(page.get_by_text("broken was not registered.")).to_be_visible()
    await expect(page.locator("#report .findings li").first).to_contain_text("fail")
    assert not engine.registered
    assert not state.registry.snapshots.current.of_tenant()


async def test_bytes_that_are_here_are_not_sent_again(page: Page, adapter_folders: list[Path], tmp_path: Path) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(Path(request.url).name) if request.method == "PUT" else None)
    await page.goto("/upload")
    await drop_folder(page, changed(adapter_folders[0], tmp_path / "wrong", r=7))
    await send(page, "sql")
    await expect(page.get_by_text("sql was not registered.")).to_be_visible()
    assert sent == [CONFIG_FILE, WEIGHTS_FILE]
    await drop(page, adapter_folders[0] / CONFIG_FILE)
    await send(page, "sql")
    await expect(page.get_by_text(f"not sent again: {WEIGHTS_FILE}.")).to_be_visible()
    await page.get_by_role("button", name="Register sql").click()
    await expect(page.get_by_text("sql version 1 is registered")).to_be_visible()
    assert sent == [CONFIG_FILE, WEIGHTS_FILE, CONFIG_FILE]


async def test_a_name_that_cannot_be_is_refused_by_the_form(page: Page, adapter_folders: list[Path]) -> None:
    await page.goto("/upload")
    await drop_folder(page, adapter_folders[0])
    await send(page, "Not A Name")
    assert await page.evaluate("document.getElementById('name').validity.patternMismatch")
    await expect(page.locator("#report")).to_be_hidden()


async def test_the_name_of_the_base_is_refused_before_anything_is_sent(page: Page, adapter_folders: list[Path]) -> None:
    sent: list[str] = []
    page.on("request", lambda request: "/files/" in request.url and sent.append(request.url))
    await page.goto("/upload")
    await drop_folder(page, adapter_folders[0])
    await send(page, "tiny")
    await expect(page.get_by_text("'tiny' is the name of the base model. Choose another name")).to_be_visible()
    assert sent == []


async def test_a_broken_connection_is_said(page: Page, adapter_folders: list[Path], watch: Watch) -> None:
    watch.expected = ["ERR_"]
    await page.route("**/files/*", lambda route: route.abort())
    await page.goto("/upload")
    await drop_folder(page, adapter_folders[0])
    await send(page, "sql")
    # Six tries, between which it waits for sixteen seconds.
    await expect(page.get_by_text("Not uploaded. Connection lost.")).to_be_visible(timeout=3 * MILLISECONDS)
    await expect(page.get_by_role("button", name="Upload and check")).to_be_enabled()
