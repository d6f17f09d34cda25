"""Keyboard operation: focus, tab order and shortcuts."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.console.test_accessible import search
from tests.support.console import REFRESH_MS, ConsoleFixture, OpenPage

FOCUSED = """() => {
  const element = document.activeElement;
  return `${element.tagName} ${element.ariaLabel || element.textContent}`;
}"""
OUTLINED = """() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
}"""
REACHABLE = """() => [...document.querySelectorAll(
    'a[href], button:not([disabled]), input:not([disabled]), select, textarea, summary')]
  .filter((element) => element.checkVisibility()).length"""


@pytest.mark.parametrize("route", ["", "destinations", "queue/orders", "queue/orders/settings"])
def test_tab_reaches_all_controls_with_a_visible_focus(
    route: str, sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console)
    page = browser_page.open(route)
    page.locator("main a").first.wait_for()
    control_count = page.evaluate(REACHABLE)
    page.evaluate("window.focused = new Set(); document.activeElement.blur()")
    for _ in range(control_count + 10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
        assert page.evaluate(OUTLINED), page.evaluate(FOCUSED)
        page.evaluate("focused.add(document.activeElement)")
    assert page.evaluate("focused.size") >= control_count


def test_first_tab_stop_skips_the_navigation(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    page = open_page(sample_console).open("destinations", "bulk")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) == "A Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url.endswith("#/destinations")


def test_g_and_a_key_open_a_page_and_focus_its_heading(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    page = open_page(sample_console).open("", "Messages per second")
    for key, heading in (
        ("d", "Destinations"),
        ("l", "Dead letters"),
        ("c", "Connections"),
        ("t", "Transactions"),
        ("j", "Journal & pipeline"),
        ("u", "Users"),
        ("a", "Audit"),
        ("s", "Configuration"),
        ("o", "Overview"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.get_by_role("heading", name=heading, level=1).wait_for()
        expect(page.get_by_role("heading", name=heading, level=1)).to_be_focused()
        expect(page).to_have_title(f"{heading} · SluiceMQ")
        expect(page.locator("nav.sidebar [aria-current=page]")).to_contain_text(heading)


def test_search_is_operated_by_keyboard(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console)
    page = browser_page.open("", "Messages per second")
    search(browser_page, "inv")
    box = page.get_by_role("combobox", name="Search")
    assert box.get_attribute("aria-expanded") == "true"
    page.keyboard.press("ArrowDown")
    selected_option = page.locator("[role=option][aria-selected=true]")
    assert selected_option.inner_text().startswith("invoices")
    assert box.get_attribute("aria-activedescendant") == selected_option.get_attribute("id")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="invoices", level=1).wait_for()
    search(browser_page, "exp")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Destinations", level=1).wait_for()
    browser_page.wait_for_text("expiring.dlq")
    assert page.get_by_label("Name", exact=True).input_value() == "exp"
    search(browser_page, "audit")
    page.keyboard.press("Escape")
    assert box.get_attribute("aria-expanded") == "false"
    assert box.input_value() == ""


def test_dialogs_trap_and_restore_the_focus(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    page = open_page(sample_console).open("queue/bulk", "Protocol")
    page.get_by_role("button", name="Delete…").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Delete bulk?")
    dialog.wait_for()
    # Enter must not delete
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    for _ in range(6):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    expect(page.get_by_role("button", name="Delete…")).to_be_focused()
    assert sample_console.item("bulk")["ready"] == 120


def test_focus_stays_near_controls_that_an_operation_replaces(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    for number in range(3):
        console.publish("orders.dlq", body=f"{number}")
    page = open_page(console, has_clock=True).open("queue/orders.dlq", "Protocol")
    dialog = page.get_by_role("dialog")
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Delete 1").focus()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Delete 1 message").click()
    expect(page.get_by_role("button", name="Delete all")).to_be_focused()
    page.get_by_role("checkbox").last.focus()
    last_id = console.request("GET", "/destinations/queue/orders.dlq/messages")["items"][-1]["id"]
    path = "/destinations/queue/orders.dlq/messages/actions"
    console.request("POST", path, {"action": "delete", "ids": [last_id]})
    page.clock.fast_forward(REFRESH_MS)
    expect(page.get_by_role("checkbox")).to_have_count(1)
    expect(page.get_by_role("checkbox")).to_be_focused()
    page.goto(f"{console.url}#/dead-letters")
    purge = page.get_by_role("button", name="Purge orders.dlq")
    purge.focus()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Purge all").click()
    page.get_by_text("1 message purged").wait_for()
    expect(purge).to_be_focused()


def test_dialogs_close_when_the_user_goes_back(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console)
    browser_page.open("destinations", "bulk")
    page = browser_page.open("queue/bulk", "Protocol")
    page.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("heading").click()
    page.keyboard.press("?")
    expect(dialog).to_have_count(1)
    page.go_back()
    page.get_by_role("heading", name="Destinations", level=1).wait_for()
    expect(dialog).to_have_count(0)


def test_shortcuts_can_be_disabled_and_are_ignored_in_inputs(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    page = open_page(sample_console).open("destinations", "bulk")
    page.get_by_label("Name", exact=True).focus()
    page.keyboard.type("gd?/")
    assert page.get_by_label("Name", exact=True).input_value() == "gd?/"
    assert not page.get_by_role("dialog").count()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    page.get_by_label("Enable single-key shortcuts").click()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("a")
    page.keyboard.press("/")
    assert page.url.endswith("#/destinations") or "filter=" in page.url
    assert page.evaluate("document.activeElement.getAttribute('role')") != "combobox"


def test_empty_list_keeps_the_focus_when_it_is_requested_again(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    console.create("orders")
    page = open_page(console, has_clock=True).open("queue/orders", "No ready messages")
    copy = page.get_by_role("button", name="Copy: sluicemq send")
    copy.focus()
    for _ in range(2):
        with page.expect_response("**/queue/orders/messages?*"):
            page.clock.fast_forward(REFRESH_MS)
    expect(copy).to_be_focused()


def test_rows_keep_the_focus_while_values_change(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    for name in ("a", "b", "c"):
        console.publish(name, body="x")
    browser_page = open_page(console, has_clock=True)
    page: Page = browser_page.open("destinations?sort=ready&order=desc", "c")
    link = page.get_by_role("link", name="a", exact=True)
    link.focus()
    for _ in range(5):
        console.publish("a", body="x")
    page.clock.fast_forward(REFRESH_MS)
    page.locator("tbody tr").first.get_by_role("link", name="a", exact=True).wait_for()
    expect(link).to_be_focused()
