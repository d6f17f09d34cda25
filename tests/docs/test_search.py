"""The search of the built site works when its pages are opened from a directory."""

from __future__ import annotations

import warnings
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.support.programs import launch_chromium

ROOT = Path(__file__).parents[2]


def test_search_works_from_file(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # deprecation warnings of libraries
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path)))
    with launch_chromium() as browser:
        page = browser.new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto((tmp_path / "protocols" / "phpmq.html").as_uri())
        page.click(".md-search__input")
        page.keyboard.type("disk_free_limit_bytes")
        link = page.locator(".md-search-result__link", has_text="Limits").first
        link.click()
        page.wait_for_url("**/limits.html*")
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
