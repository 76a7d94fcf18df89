"""Archives on the upload page: unpacked in the browser, and refused in words where they are hostile."""

import asyncio
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.state import State
from tests.web.fake_engine import FakeEngine

from .conftest import Watch
from .test_upload import drop, drop_folder, register, send

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

CONFIG = b'{"peft_type": "LORA", "r": 4}'
Files = list[tuple[str, bytes]]


def zipped(files: Files, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(files: Files, mode: str = "w:gz", kind: bytes = tarfile.REGTYPE) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(data), kind, "/etc/passwd"
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def changed(data: bytes, offset: int, form: str, value: int) -> bytes:
    """A zip whose first entry in its list of files has another number at an offset."""
    place = data.index(b"PK\x01\x02") + offset
    return data[:place] + struct.pack(form, value) + data[place + struct.calcsize(form) :]


@pytest.mark.parametrize("name", ["adapter.zip", "adapter.tar", "adapter.tar.gz"])
async def test_an_archive_becomes_an_adapter(
    page: Page, engine: FakeEngine, adapter_folders: list[Path], tmp_path: Path, name: str
) -> None:
    """The one nearest to the root, among what training leaves; a long folder name needs tar's extensions."""
    folder = adapter_folders[0]
    files = [(file, (folder / file).read_bytes()) for file in (WEIGHTS_FILE, CONFIG_FILE)]
    root = "run-" + "x" * 120
    inside = [(f"{root}/{file}", data) for file, data in files] + [
        (f"{root}/checkpoint-1/{CONFIG_FILE}", b"{}"),
        (f"{root}/README.md", b"..."),
    ]
    archive = tmp_path / name
    archive.write_bytes(zipped(inside) if name.endswith("zip") else tarred(inside, "w:gz" if name[-1] == "z" else "w"))
    await page.goto("/upload")
    await drop(page, archive)
    await expect(page.get_by_text(f"{name} unpacked in your browser")).to_be_visible()
    await register(page, "sql")
    await expect(page.get_by_text("sql version 1 is registered")).to_be_visible()
    assert len(engine.registered) == 1


async def test_hostile_archives_are_refused_in_words(page: Page, state: State, tmp_path: Path) -> None:
    state.settings = state.settings.model_copy(update={"max_adapter_bytes": 1 << 20})
    good: Files = [(CONFIG_FILE, CONFIG), (WEIGHTS_FILE, b"w" * 1000)]
    bomb: Files = [(CONFIG_FILE, CONFIG), (WEIGHTS_FILE, b"\0" * (3 << 20))]
    two: Files = [(f"{one}/{name}", data) for one in "ab" for name, data in good]
    many: Files = [(f"{number}", b"") for number in range(5000)]
    cases: dict[str, tuple[Callable[[], bytes], str]] = {
        "up.zip": (lambda: zipped([*good, ("../../etc/cron", b"x")]), "points outside the archive"),
        "root.tar": (lambda: tarred([*good, ("/etc/passwd", b"x")], "w"), "points outside the archive"),
        "back.zip": (lambda: zipped([*good, ("a\\..\\b", b"x")]), "points outside the archive"),
        "bomb.zip": (lambda: zipped(bomb), "more than the limit of 1.0"),
        "bomb.tgz": (lambda: tarred(bomb), "unpacks to"),
        "liar.zip": (lambda: changed(zipped(bomb[::-1]), 24, "<I", 1000), "unpacks to more than 1.0"),
        "crc.zip": (lambda: changed(zipped(good), 16, "<I", 1), "its checksum is wrong"),
        "secret.zip": (lambda: changed(zipped(good), 8, "<H", 1), "is encrypted"),
        "odd.zip": (lambda: zipped(good, zipfile.ZIP_LZMA), "unsupported compression method"),
        "twice.tar": (lambda: tarred([*good, good[0]], "w"), "is in it twice"),
        "two.zip": (lambda: zipped(two), "several adapters"),
        "many.zip": (lambda: zipped(many), "5000 entries"),
        "link.tar": (lambda: tarred([(CONFIG_FILE, b"")], "w", tarfile.SYMTYPE), "is a link or a device"),
        "none.zip": (lambda: zipped([("README.md", b"")]), f"there is no {CONFIG_FILE} in it"),
        "cut.tar": (lambda: tarred(good, "w")[:1500], "it is cut off"),
        "cut.zip": (lambda: zipped(good)[:-30], "it is cut off"),
        "text.tar": (lambda: b"no archive at all" * 100, "it is not a tar archive"),
        "text.tgz": (lambda: b"no archive at all" * 100, "cannot be unpacked"),
    }
    await page.goto("/upload")
    for name, (make, words) in cases.items():
        (tmp_path / name).write_bytes(make())
        await drop(page, tmp_path / name)
        chosen = page.locator("#chosen")
        await expect(chosen).to_contain_text(f"{name} cannot be used:")
        await expect(chosen).to_contain_text(words)
        await expect(page.get_by_role("button", name="Upload and check")).to_be_disabled()


async def test_an_upload_goes_on_after_a_broken_connection(
    page: Page, engine: FakeEngine, adapter_folders: list[Path], watch: Watch
) -> None:
    """And after a server that found it slow, had no place for it, or was away behind its proxy for a moment."""
    watch.expected = ["ERR_", "408", "502", "503", "504"]
    full = {"error": {"message": "All 8 uploads are under way."}}
    breaks = [
        lambda route: route.abort(),
        lambda route: route.fulfill(status=408),
        lambda route: route.fulfill(status=503, headers={"retry-after": "1"}, json=full),
    ]
    away, read = [504, 502], asyncio.Event()

    async def break_often(route: Route) -> None:
        if route.request.method == "PUT" and breaks:
            await breaks.pop(0)(route)
        elif route.request.method == "GET" and away:
            await route.fulfill(status=away.pop(), content_type="text/html", body="<h1>Bad gateway</h1>")
        else:
            if not breaks:
                await read.wait()  # the words go with the next answer
            await route.continue_()

    await page.route("**/files/*", break_often)
    await page.goto("/upload")
    await drop_folder(page, adapter_folders[0])
    await page.get_by_label("Name").fill("sql")
    await page.get_by_role("button", name="Upload and check").click()
    await expect(page.get_by_text("Waiting to retry. All 8 uploads are under way.")).to_be_visible()
    read.set()
    await page.get_by_role("button", name="Register sql").click()
    await expect(page.get_by_text("sql version 1 is registered")).to_be_visible()
    assert not breaks and not away


async def test_the_server_reads_a_folder_that_its_operator_allows(
    page: Page, state: State, adapter_folders: list[Path]
) -> None:
    await page.goto("/upload")
    await page.get_by_label("Folder on the server").check()
    await expect(page.get_by_text("No folders are allowed yet.")).to_be_visible()
    state.settings = state.settings.model_copy(update={"adapter_folders": (adapter_folders[0].parent,)})
    await page.reload()
    await page.get_by_label("Folder on the server").check()
    await page.get_by_label("Absolute path on the server").fill("/etc")
    await send(page, "sql")
    await expect(page.get_by_text("is not inside an allowed")).to_be_visible()
    await page.get_by_label("Absolute path on the server").fill(str(adapter_folders[0]))
    await register(page, "sql")
    await expect(page.get_by_text("sql version 1 is registered")).to_be_visible()
    await page.get_by_label("Hugging Face Hub").check()
    await page.get_by_label("Repository and commit").fill("owner/name@main")
    await send(page, "sql")
    await expect(page.get_by_text("which is not a commit")).to_be_visible()
