"""Login, permissions, and the end of sessions in the console."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Request, Route, expect

from sluicemq.cli.main import main
from tests.console.test_accessible import violations
from tests.support.console import PHONE_VIEWPORT, REFRESH_MS, BrowserPage, ConsoleFixture, OpenPage
from tests.support.http import basic_auth

PASSWORD = "correct horse battery"
UNAUTHORIZED = ("401", "403", "409")


def auth_headers(user: str) -> dict[str, str]:
    return {"Authorization": basic_auth(user, PASSWORD)}


@pytest.fixture
def secured_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleFixture]:
    """Start a broker with the superuser `anna` and `bert`, who may browse and consume orders.*."""
    directory = tmp_path_factory.mktemp("secured")
    secret = directory / "secret"
    secret.write_text(PASSWORD)
    for arguments in (
        ["users", "add", "anna", "--superuser", "--password-file", str(secret)],
        ["users", "add", "bert", "--password-file", str(secret)],
        ["permissions", "grant", "bert", "orders.*", "browse", "consume"],
    ):
        assert main([*arguments, "--data-dir", str(directory)]) == 0
    with ConsoleFixture(directory) as console:
        for name in ("orders.eu", "private"):
            path = f"/destinations/queue/{name}/messages"
            console.request("POST", path, {"body": "hello"}, **auth_headers("anna"))
        yield console


def log_in(browser_page: BrowserPage, user: str, password: str = PASSWORD) -> Page:
    page = browser_page.page
    if page.url == "about:blank":
        page.goto(browser_page.console.url)
    page.get_by_label("User", exact=True).fill(user)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_role("button", name="Log in").click()
    return page


def test_login_rejects_a_wrong_password(
    secured_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(secured_console, UNAUTHORIZED, viewport=PHONE_VIEWPORT)
    page = browser_page.page
    page.goto(secured_console.url + "#/destinations")
    page.get_by_role("button", name="Log in").wait_for()
    expect(page.get_by_label("User", exact=True)).to_be_focused()
    browser_page.save_screenshot("login-phone")
    assert not violations(page)
    log_in(browser_page, "anna", "wrong")
    expect(page.locator("form [role=alert]")).to_have_text(re.compile("password"))
    expect(page.get_by_label("Password", exact=True)).to_be_focused()
    log_in(browser_page, "anna")
    page.get_by_role("heading", name="Destinations", level=1).wait_for()
    browser_page.wait_for_text("private")
    assert not page.evaluate("document.cookie"), "scripts cannot read the session"


def test_only_changing_requests_have_a_csrf_token(
    secured_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(secured_console, UNAUTHORIZED)
    page = log_in(browser_page, "anna")
    page.get_by_role("heading", name="Overview", level=1).wait_for()
    sent: list[Request] = []
    page.on("request", lambda request: sent.append(request))
    browser_page.open("queue/private", "Protocol")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()
    changes = [request for request in sent if request.method != "GET"]
    assert len(changes) == 1
    assert changes[0].headers["x-csrf-token"]
    assert not [
        request for request in sent if "x-csrf-token" in request.headers and request.method == "GET"
    ]


def test_pages_and_buttons_follow_the_permissions(
    secured_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(secured_console, UNAUTHORIZED)
    page = log_in(browser_page, "bert")
    page.get_by_role("heading", name="Overview", level=1).wait_for()
    pages = page.get_by_role("navigation", name="Pages", exact=True)
    assert not pages.get_by_role("link", name="Audit").count()
    assert not pages.get_by_role("link", name="Users").count()
    pages.get_by_role("link", name="Transactions").click()
    browser_page.wait_for_text("There are no transactions")
    browser_page.open("destinations", "orders.eu")
    assert not page.get_by_text("private").count()
    create = page.get_by_role("button", name="Create")
    assert create.get_attribute("aria-disabled") == "true"
    browser_page.open("queue/orders.eu", "Protocol")
    browser_page.save_screenshot("restricted")
    purge = page.get_by_role("button", name="Purge")
    assert purge.get_attribute("aria-disabled") == "true"
    purge.focus()
    page.keyboard.press("Enter")
    page.get_by_text("bert has no permission to manage here").first.wait_for()
    assert not page.get_by_role("dialog").count()
    move, delete = (page.get_by_role("button", name=f"{verb} all") for verb in ("Move", "Delete"))
    assert move.get_attribute("aria-disabled") is None
    assert delete.get_attribute("aria-disabled") == "true"
    page.get_by_label("Selector").fill("TRUE")
    page.get_by_role("button", name="Apply").click()
    expect(delete).not_to_have_attribute("aria-disabled", "true")
    assert not violations(page)
    browser_page.open("audit")
    page.get_by_role("alert").filter(has_text="superuser").wait_for()
    browser_page.open("queue/private")
    page.locator("main [role=alert]").first.wait_for()


def test_empty_lists_do_not_deny_what_the_user_may_not_see(
    secured_console: ConsoleFixture, open_page: OpenPage
) -> None:
    secured_console.request("PUT", "/users/nora", {"password": PASSWORD}, **auth_headers("anna"))
    browser_page = open_page(secured_console, UNAUTHORIZED)
    page = log_in(browser_page, "nora")
    browser_page.wait_for_text("You may not see any destination")
    expect(page.get_by_role("heading", name="Listeners")).to_be_hidden()
    browser_page.open("destinations", "There are no destinations that you may see")
    browser_page.open("dead-letters", "There are no dead-letter queues that you may see")


def test_wrong_current_password_does_not_end_the_session(
    secured_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(secured_console, UNAUTHORIZED)
    log_in(browser_page, "bert")
    page = browser_page.open("account", "orders.*")
    page.get_by_role("button", name="Change the password…").click()
    dialog = page.get_by_role("dialog")
    for current, text in (("wrong", "password is wrong"), (PASSWORD, "Password changed")):
        dialog.get_by_label("Current password").fill(current)
        dialog.get_by_label("New password").fill("another correct horse")
        dialog.get_by_role("button", name="Change").click()
        page.get_by_text(text).first.wait_for()
    expect(dialog).to_have_count(0)
    browser_page.open("destinations", "orders.eu")


def test_logout_ends_the_session(secured_console: ConsoleFixture, open_page: OpenPage) -> None:
    browser_page = open_page(secured_console, UNAUTHORIZED)
    page = log_in(browser_page, "anna")
    page.get_by_role("heading", name="Overview", level=1).wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("button", name="Log in").wait_for()
    assert not page.get_by_text("private").count()
    page.reload()
    page.get_by_role("button", name="Log in").wait_for()


def test_failed_logout_is_reported(secured_console: ConsoleFixture, open_page: OpenPage) -> None:
    browser_page = open_page(secured_console, (*UNAUTHORIZED, "503"))
    page = log_in(browser_page, "anna")
    page.get_by_role("heading", name="Overview", level=1).wait_for()

    def fail(route: Route) -> None:
        if route.request.method == "DELETE":
            route.fulfill(status=503)
        else:
            route.continue_()

    page.route("**/api/v1/session", fail)
    page.get_by_role("button", name="Log out").click()
    page.get_by_text("You are still logged in: the broker responded with status 503").wait_for()
    expect(page.get_by_role("link", name="anna")).to_be_visible()


def test_other_tabs_follow_a_logout_and_a_login(
    secured_console: ConsoleFixture, open_page: OpenPage
) -> None:
    first = open_page(secured_console, UNAUTHORIZED)
    log_in(first, "anna")
    first.open("queue/orders.eu", "Protocol")
    second = BrowserPage(first.context, secured_console, UNAUTHORIZED)
    second.open("", "Messages per second")
    second.page.get_by_role("button", name="Log out").click()
    first.page.get_by_role("button", name="Log in").wait_for()
    log_in(second, "bert")
    expect(first.page.get_by_role("link", name="bert")).to_be_visible()
    expect(first.page.get_by_role("link", name="Users")).to_have_count(0)
    expect(first.page.get_by_role("heading", name="orders.eu", level=1)).to_be_visible()
    for user in ("anna", "anna"):
        second.page.get_by_role("button", name="Log out").click()
        log_in(second, user)
    expect(first.page.get_by_role("link", name="anna")).to_be_visible()
    first.page.get_by_role("button", name="Pause").click()
    first.page.get_by_role("button", name="Resume").wait_for()
    assert not second.problems


def test_login_with_a_token(secured_console: ConsoleFixture, open_page: OpenPage) -> None:
    token = secured_console.request(
        "POST", "/users/anna/tokens", {"label": "t"}, **auth_headers("anna")
    )["token"]
    browser_page = open_page(secured_console, UNAUTHORIZED)
    page = browser_page.page
    page.goto(secured_console.url)
    page.get_by_role("button", name="Use a token").click()
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Overview", level=1).wait_for()


def test_command_for_a_token_quotes_the_name_of_the_user(
    secured_console: ConsoleFixture, open_page: OpenPage
) -> None:
    name = "CN=Ann Smith,O=Example"
    path = f"/users/{quote(name, safe='')}"
    secured_console.request("PUT", path, {}, **auth_headers("anna"))
    browser_page = open_page(secured_console, UNAUTHORIZED)
    log_in(browser_page, "anna")
    page = browser_page.open(path.removeprefix("/"), "No tokens")
    command = page.locator(".command code").inner_text()
    assert shlex.split(command) == ["sluicemq", "users", "token", "add", name, "--label", "ci"]


def test_expired_session_returns_to_the_page_after_login(
    secured_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(secured_console, (*UNAUTHORIZED, "ERR_"), has_clock=True)
    log_in(browser_page, "anna")
    page = browser_page.open("destinations", "private")
    browser_page.context.clear_cookies()
    page.clock.fast_forward(REFRESH_MS)
    page.get_by_role("button", name="Log in").wait_for()
    log_in(browser_page, "anna")
    page.get_by_role("heading", name="Destinations", level=1).wait_for()


def test_user_is_added_granted_a_permission_and_deleted(
    secured_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(secured_console, UNAUTHORIZED)
    log_in(browser_page, "anna")
    page = browser_page.open("users", "bert")
    page.get_by_role("button", name="Add a user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("no such name!")
    dialog.get_by_role("button", name="Add").click()
    dialog.get_by_role("alert").wait_for()
    dialog.get_by_label("Name").fill("carl")
    dialog.get_by_role("button", name="Add").click()
    page.get_by_role("heading", name="carl", level=1).wait_for()
    page.get_by_role("button", name="Grant…").click()
    dialog.get_by_role("textbox", name="Destinations").fill("orders.*")
    dialog.get_by_role("button", name="Grant").click()
    dialog.get_by_text("Select at least one operation").wait_for()
    dialog.get_by_label("browse:").click()
    dialog.get_by_role("button", name="Grant").click()
    browser_page.wait_for_text("orders.*: browse")
    page.get_by_role("button", name="New token").click()
    dialog.get_by_label("Label").fill("a test")
    dialog.get_by_label("Expires after").fill("99999999999")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.locator(":invalid").last).to_have_value("99999999999")
    dialog.get_by_label("Expires after").fill("30")
    dialog.get_by_role("button", name="Create").click()
    dialog.get_by_text("it is not shown again").wait_for()
    page.keyboard.press("Escape")
    browser_page.wait_for_text("a test")
    browser_page.save_screenshot("user")
    assert not violations(page)
    page.get_by_role("button", name="Delete…").click()
    dialog.get_by_role("button", name="Delete the user").click()
    page.get_by_role("heading", name="Users", level=1).wait_for()
    assert [
        user["name"]
        for user in secured_console.request("GET", "/users", **auth_headers("anna"))["items"]
    ] == [
        "anna",
        "bert",
    ]
