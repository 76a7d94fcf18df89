"""Clicks: a person's way through pages, with each click counted."""

from collections.abc import Sequence
from pathlib import Path

from playwright.async_api import FilePayload, Locator


class Clicks:
    """Each press counts one. So does each field that is typed into, since a person clicks into it first. A choice in a
    list counts two: the list opens, then one of its lines is chosen. A choice of files counts one."""

    def __init__(self) -> None:
        self.count = 0

    async def press(self, target: Locator) -> None:
        self.count += 1
        await target.click()

    async def type(self, target: Locator, text: str) -> None:
        self.count += 1
        await target.fill(text)

    async def choose(self, target: Locator, option: str) -> None:
        self.count += 2
        await target.select_option(option)

    async def choose_files(self, target: Locator, files: Sequence[Path] | Path | FilePayload) -> None:
        """`files`: a folder for a field that takes folders."""
        self.count += 1
        await target.set_input_files(files)
