"""The site is complete: every page is in the navigation, every link and anchor has a target, a page
loads nothing from other hosts, and the search works."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.support.programs import launch_chromium

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """Links, anchors, and what a browser loads for a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if attributes.get("id"):
            self.anchors.add(str(attributes["id"]))
        if tag == "a" and attributes.get("href"):
            self.links.append(str(attributes["href"]))
        if tag in LOADED and attributes.get(LOADED[tag]):
            self.loads.append(str(attributes[LOADED[tag]]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does."""
    site_directory = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings(action="ignore"):  # deprecation warnings of libraries
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site_directory)))
    return site_directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_source_file_is_page(site: Path) -> None:
    for text in (ROOT / "docs").rglob("*.md"):
        assert (site / text.relative_to(ROOT / "docs").with_suffix(".html")).exists()


def _entries(item: object) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    elif isinstance(item, dict):
        for value in item.values():
            yield from _entries(value)
    elif isinstance(item, list):
        for value in item:
            yield from _entries(value)


def test_every_source_file_is_in_navigation_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    navigation_paths = sorted(_entries(yaml.safe_load(text)["nav"]))
    source_paths = sorted(
        str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")
    )
    assert navigation_paths == source_paths


def test_no_link_is_broken(site: Path, pages: dict[Path, Page]) -> None:
    broken_links = []
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_relative_to(site) or not target.exists():
                broken_links.append(f"{path.relative_to(site)}: {link}")
            elif url.fragment and target in pages:
                anchor = unquote(url.fragment)
                if anchor not in pages[target].anchors and not anchor.startswith("__"):
                    broken_links.append(f"{path.relative_to(site)}: {link}")
    assert broken_links == []


def test_nothing_is_loaded_from_other_hosts(site: Path, pages: dict[Path, Page]) -> None:
    for page in pages.values():
        assert not [url for url in page.loads if urlsplit(url).netloc]
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", sheet.read_text())


def test_search_works_from_file(site: Path) -> None:
    """The built pages are opened from a directory, without a web server."""
    with launch_chromium() as browser:
        page = browser.new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "protocols" / "phpmq.html").as_uri())
        page.click(".md-search__input")
        page.keyboard.type("disk_free_limit_bytes")
        link = page.locator(".md-search-result__link", has_text="Limits").first
        link.click()
        page.wait_for_url("**/limits.html*")
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize(
    ("page", "guide"), [("jmq", "openmq"), ("phpmq", "phpmq"), ("vibemq", "vibemq")]
)
def test_protocol_pages_link_to_their_migration_guide(page: str, guide: str) -> None:
    text = (ROOT / f"docs/protocols/{page}.md").read_text()
    assert f"[`sluicemq migrate {guide}`](../migration/{guide}.md)" in text
    assert not re.search(r"messages are not taken over|storage is not imported", text)


def test_links_of_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\(([^)#]+)", text)
    assert targets
    assert [
        target for target in targets if "://" not in target and not (ROOT / target).exists()
    ] == []
    assert len(text.splitlines()) <= 80
