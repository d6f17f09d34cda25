"""Fixtures of the console tests: the browser, brokers and pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support.console import (
    BrowserPage,
    ConsoleFixture,
    OpenPage,
    SharedContext,
    open_console,
    open_context,
)
from tests.support.programs import launch_chromium


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Run a headless browser."""
    with launch_chromium() as chromium:
        yield chromium


@pytest.fixture(scope="package")
def sample_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleFixture]:
    """Start a broker without users and with data for every page, which tests must not change."""
    with ConsoleFixture(tmp_path_factory.mktemp("sample")) as console:
        console.create_sample_data()
        yield console


@pytest.fixture
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleFixture]:
    """Start an empty broker for the test."""
    with ConsoleFixture(tmp_path_factory.mktemp("empty")) as console:
        yield console


@pytest.fixture(scope="package")
def shared_context(browser: Browser) -> Iterator[SharedContext]:
    """Open the browser context of the tests that need no other."""
    with open_context(browser) as context:
        yield SharedContext(context)


@pytest.fixture
def open_page(browser: Browser, shared_context: SharedContext) -> Iterator[OpenPage]:
    """Return a function that opens a browser page: `open_page(console, **options)`.

    With options, the page has a browser context of its own, which starts with empty caches. With
    `has_clock`, so that tests need not wait for the timers of the console, the clock of its page
    can be moved on: `page.clock.fast_forward(milliseconds)`.
    """
    with ExitStack() as stack:
        stack.callback(shared_context.clear)

        def call(
            console: ConsoleFixture,
            trusted: tuple[str, ...] = (),
            has_clock: bool = False,
            **options: Any,
        ) -> BrowserPage:
            context = shared_context.context
            if options or has_clock:
                context = stack.enter_context(open_context(browser, **options))
            if has_clock:
                context.clock.install()
            return stack.enter_context(open_console(context, console, trusted))

        yield call
