"""Every page of the dashboard has its picture in both themes; docs/dashboard.md shows them all, README the overview."""

import re
from pathlib import Path

from docs.screenshots import IMAGES, PAGES, THEMES

from loraplex.web.admin.menu import MENU
from tests.web.test_pages import PAGES as TESTED

ROOT = Path(__file__).resolve().parent.parent
README, DASHBOARD = ROOT / "README.md", ROOT / "docs" / "dashboard.md"
TEXTS = (README, DASHBOARD)
SHOWN = re.compile(r'(?:src|srcset)="([^"]+\.png)"|!\[[^]]*]\(([^)]+\.png)\)')


def shown_in(text: Path) -> list[Path]:
    return [(text.parent / (tag or link)).resolve() for tag, link in SHOWN.findall(text.read_text())]


def kind_of(path: str) -> tuple[str, bool]:
    """Its section, and whether it shows one thing of it."""
    section, _, rest = path.partition("?")[0].strip("/").partition("/")
    return section, bool(rest)


def test_every_page_has_a_picture() -> None:
    pictured = {kind_of(path) for path in PAGES.values()}
    assert {kind_of(path) for path in (*TESTED, *(entry.path for entry in MENU), "/login")} <= pictured


def test_pictures_are_those_of_the_pages_in_both_themes() -> None:
    wanted = {IMAGES / f"{name}-{theme}.png" for name in PAGES for theme in THEMES}
    assert set(IMAGES.glob("*.png")) == wanted


def test_the_dashboards_page_shows_every_picture_and_readme_the_overview() -> None:
    assert set(shown_in(DASHBOARD)) == set(IMAGES.glob("*.png"))
    assert set(shown_in(README)) == {IMAGES / f"overview-{theme}.png" for theme in THEMES}


def test_pictures_follow_the_theme_of_the_reader() -> None:
    for text in TEXTS:
        names = [picture.stem for picture in shown_in(text)]
        assert names[::2] == [name.removesuffix("light") + "dark" for name in names[1::2]], text.name


def test_every_picture_says_in_words_what_it_shows() -> None:
    for text in TEXTS:
        images = re.findall(r"<img[^>]*>", text.read_text())
        assert images and all(re.search(r' alt="[^"]{5,}"', image) for image in images), text.name
