"""The search of the built site works when its pages are opened from a directory."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from playwright.sync_api import sync_playwright

from tests.console.chromium import HOW, find_chromium

TOP = Path(__file__).parents[2]


def test_search_works_from_a_file(tmp_path: Path) -> None:
    path = find_chromium()
    if path is None:
        pytest.skip(HOW)
    with warnings.catch_warnings(action="ignore"):  # of libraries about each other
        build(load_config(str(TOP / "mkdocs.yml"), site_dir=str(tmp_path)))
    # the sandbox needs rights that root in a container does not have
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        page = browser.new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto((tmp_path / "protocols" / "phpmq.html").as_uri())
        page.click(".md-search__input")
        page.keyboard.type("disk_free_limit_bytes")
        link = page.locator(".md-search-result__link", has_text="Limits").first
        link.click()
        page.wait_for_url("**/limits.html*")
        browser.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
