"""Accessibility: axe reports no violations on any page, in both themes and on a phone, and
no page scrolls horizontally. With SCREENSHOTS=1, screenshots are saved in build/screenshots."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.support.console import (
    DESKTOP_VIEWPORT,
    PHONE_VIEWPORT,
    BrowserPage,
    ConsoleFixture,
    OpenPage,
)

PAGES = {
    "overview": ("", "Messages per second"),
    "destinations": ("destinations", "expiring.dlq"),
    "messages": ("queue/orders", "hello"),
    "messages-selected": ("queue/bulk/messages?selector=even%20%3D%20TRUE", "found"),
    "publish": ("queue/orders/publish", "Publish"),
    "consumers": ("queue/invoices/consumers", "phpmq"),
    "subscriptions": ("topic/prices/subscriptions", "durable"),
    "charts": ("queue/orders/charts", "Backlog"),
    "settings": ("queue/orders/settings", "Lifetime and delivery"),
    "message": ("queue/orders/messages/{greeting}", "greeting"),
    "dead-letters": ("dead-letters", "expired"),
    "connections": ("connections", "127.0.0.1"),
    "transactions": ("transactions", "prepared"),
    "journal": ("journal", "spark-bronze"),
    "users": ("users", "No users"),
    "audit": ("audit", "PUT"),
    "configuration": ("configuration", "broker.data_dir"),
    "account": ("account", "Not logged in"),
    "not-found": ("nowhere", "Page not found"),
}
DISPLAYS: dict[str, dict[str, Any]] = {
    "dark": {"color_scheme": "dark", "viewport": DESKTOP_VIEWPORT},
    "light": {"color_scheme": "light", "viewport": DESKTOP_VIEWPORT},
    "phone": {"color_scheme": "light", "viewport": PHONE_VIEWPORT, "has_touch": True},
}

RULES: dict[str, tuple[str, ...]] = {"dark": (), "light": ("color-contrast",), "phone": ()}
"""Rules of axe by display, none for all; rules tested on another display are omitted."""


def violations(page: Page, *rules: str) -> list[str]:
    """Return the violations that axe reports, one per line; with `rules`, of these rules only."""
    # during animations colors are mixed, which would change the contrast
    page.evaluate(
        "Promise.all(document.getAnimations()"
        ".map((animation) => animation.finished.catch(() => 0)))"
    )
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(Axe().axe_script)
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found = page.evaluate("options => axe.run(options)", options)["violations"]
    return [
        f"{violation['id']}: {node['target']} {node['failureSummary']}"
        for violation in found
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("display", DISPLAYS)
def test_pages_have_no_accessibility_violations(
    display: str, sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console, **DISPLAYS[display])
    items = sample_console.request("GET", "/destinations/queue/orders/messages")["items"]
    greeting = next(item["id"] for item in items if item["type"] == "greeting")
    problems: dict[str, list[str]] = {}
    for name, (location, expected) in PAGES.items():
        page = browser_page.open(location.format(greeting=greeting), expected)
        browser_page.save_screenshot(f"{name}-{display}")
        page_problems = violations(page, *RULES[display])
        excess_width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if excess_width > 0:
            page_problems.append(f"{excess_width} px wider than the page")
        if page_problems:
            problems[name] = page_problems
    assert not problems, "\n".join(
        f"{name}: {page_problems}" for name, page_problems in problems.items()
    )


def test_dialogs_have_no_accessibility_violations(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console)
    page = browser_page.open("queue/bulk", "Protocol")
    dialogs: dict[str, Callable[[], None]] = {
        "purge": lambda: page.get_by_role("button", name="Purge").click(),
        "move": lambda: page.get_by_role("button", name="Move all").click(),
        "keys": lambda: page.keyboard.press("?"),
    }
    for name, open_dialog in dialogs.items():
        open_dialog()
        page.get_by_role("dialog").wait_for()
        browser_page.save_screenshot(f"dialog-{name}")
        assert not violations(page), name
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
    search(browser_page, "or")
    browser_page.save_screenshot("search")
    assert not violations(page)


def test_empty_pages_have_no_accessibility_violations(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(console, color_scheme="light")
    for name, location, expected in (
        ("overview", "", "sluicemq send phpmq://"),
        ("destinations", "destinations", "sluicemq send phpmq://"),
        ("dead-letters", "dead-letters", "There are no dead letters"),
        ("transactions", "transactions", "There are no transactions"),
        ("journal", "journal", "No retention slots"),
    ):
        page = browser_page.open(location, expected)
        browser_page.save_screenshot(f"empty-{name}")
        assert not violations(page), name


def test_keys_of_settings_are_not_broken_into_lines(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    page = open_page(sample_console).open("queue/orders/settings", "Lifetime and delivery")
    heights = page.locator(".field-check .field-key").evaluate_all(
        "keys => keys.map((key) => key.offsetHeight / parseFloat(getComputedStyle(key).fontSize))"
    )
    assert heights
    assert max(heights) < 2


def test_menu_opens_on_narrow_screens(sample_console: ConsoleFixture, open_page: OpenPage) -> None:
    browser_page = open_page(sample_console, viewport=PHONE_VIEWPORT)
    page = browser_page.open("destinations", "bulk")
    menu = page.get_by_role("button", name="Menu")
    assert menu.get_attribute("aria-expanded") == "false"
    assert not page.get_by_role("link", name="Audit").is_visible()
    menu.click()
    browser_page.save_screenshot("menu-phone")
    expect(menu).to_have_attribute("aria-expanded", "true")
    assert not violations(page)
    page.get_by_role("link", name="Audit").click()
    page.get_by_role("heading", name="Audit").wait_for()
    expect(menu).to_have_attribute("aria-expanded", "false")


def test_theme_follows_the_system_until_it_is_selected(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console, color_scheme="light")
    page = browser_page.open()
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert dark != light
    page.get_by_role("button", name="Dark mode").click()
    assert page.evaluate(background) == light
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate(background) == light
    page.keyboard.press("d")
    assert page.evaluate(background) == dark


def test_charts_have_a_text_summary_and_a_table(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    page = open_page(sample_console).open("", "Messages per second")
    flow = page.get_by_role("figure", name="Messages per second")
    expect(flow.get_by_role("img")).to_have_attribute(
        "aria-label",
        re.compile(r"Messages per second, since \d\d:\d\d\. publish rate: now \S+, between"),
    )
    assert not flow.get_by_role("table").count()
    flow.get_by_text("Values").click()
    flow.get_by_role("columnheader").first.wait_for()
    table = flow.get_by_role("table")
    assert table.get_by_role("columnheader").all_inner_texts() == [
        "time",
        "publish rate",
        "deliver rate",
    ]
    assert table.get_by_role("row").count() > 1
    expect(page.get_by_role("img", name=re.compile(r"^Ready messages: \d+"))).to_have_count(1)


def search(browser_page: BrowserPage, text: str) -> None:
    """Type a text into the search and wait for the results of the complete text."""
    browser_page.page.keyboard.press("/")
    browser_page.page.keyboard.type(text)
    browser_page.page.get_by_role("option", name=f"All destinations with “{text}”").wait_for()
