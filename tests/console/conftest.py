"""The browser, once for these tests; it is the system's (see `chromium`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.console.chromium import HOW, find_chromium
from tests.support.console import BrowserPage, ConsoleFixture, Visit, visiting


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Without a window. Where there is none, the tests are skipped with the command to type."""
    path = find_chromium()
    if path is None:
        pytest.skip(HOW)
    # the sandbox needs rights that root in a container does not have
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleFixture]:
    """A broker that nobody has to log in to, with something of everything; only to be looked at."""
    with ConsoleFixture(tmp_path_factory.mktemp("furnished")) as console:
        console.furnish()
        yield console


@pytest.fixture
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleFixture]:
    """A broker of the test's own, with nothing in it."""
    with ConsoleFixture(tmp_path_factory.mktemp("empty")) as console:
        yield console


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """`visit(console, **options)` opens a browser page of that console."""
    with ExitStack() as stack:

        def call(
            console: ConsoleFixture, trusted: tuple[str, ...] = (), **options: Any
        ) -> BrowserPage:
            return stack.enter_context(visiting(browser, console, trusted, **options))

        yield call
