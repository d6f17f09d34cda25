"""Logging in, what one may do then, and what becomes of a page when the session is over."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Request, expect

from sluicemq.cli.main import main
from tests.console.house import NARROW, House, Visit, Visitor
from tests.console.test_accessible import violations

PASSWORD = "correct horse battery"
UNAUTHORIZED = ("401", "403", "409")


def basic(user: str) -> dict[str, str]:
    text = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    return {"Authorization": f"Basic {text}"}


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A broker with a superuser `anna`, and `bert` who may look at and consume from orders.*"""
    directory = tmp_path_factory.mktemp("guarded")
    secret = directory / "secret"
    secret.write_text(PASSWORD)
    for arguments in (
        ["users", "add", "anna", "--superuser", "--password-file", str(secret)],
        ["users", "add", "bert", "--password-file", str(secret)],
        ["permissions", "grant", "bert", "orders.*", "browse", "consume"],
    ):
        assert main([*arguments, "--data-dir", str(directory)]) == 0
    with House(directory) as house:
        for name in ("orders.eu", "private"):
            path = f"/destinations/queue/{name}/messages"
            house.ask("POST", path, {"body": "hello"}, **basic("anna"))
        yield house


def log_in(visitor: Visitor, user: str, password: str = PASSWORD) -> Page:
    page = visitor.page
    if page.url == "about:blank":
        page.goto(visitor.house.url)
    page.get_by_label("User", exact=True).fill(user)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_role("button", name="Log in").click()
    return page


def test_who_is_wrong_is_told_so_and_who_is_right_comes_in(guarded: House, visit: Visit) -> None:
    visitor = visit(guarded, UNAUTHORIZED, viewport=NARROW)
    page = visitor.page
    page.goto(guarded.url + "#/destinations")
    page.get_by_role("button", name="Log in").wait_for()
    expect(page.get_by_label("User", exact=True)).to_be_focused()
    visitor.shoot("login-phone")
    assert not violations(page)
    log_in(visitor, "anna", "wrong")
    expect(page.locator("form [role=alert]")).to_have_text(re.compile("password"))
    expect(page.get_by_label("Password", exact=True)).to_be_focused()
    log_in(visitor, "anna")
    page.get_by_role("heading", name="Destinations", level=1).wait_for()
    visitor.see("private")
    assert not page.evaluate("document.cookie"), "scripts cannot read the session"


def test_changes_show_that_this_page_sent_them(guarded: House, visit: Visit) -> None:
    visitor = visit(guarded, UNAUTHORIZED)
    page = log_in(visitor, "anna")
    page.get_by_role("heading", name="Overview", level=1).wait_for()
    sent: list[Request] = []
    page.on("request", lambda request: sent.append(request))
    visitor.open("queue/private", "Came by")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()
    changes = [request for request in sent if request.method != "GET"]
    assert len(changes) == 1
    assert changes[0].headers["x-csrf-token"]
    assert not [
        request for request in sent if "x-csrf-token" in request.headers and request.method == "GET"
    ]


def test_one_sees_what_one_may_and_is_told_why_not(guarded: House, visit: Visit) -> None:
    visitor = visit(guarded, UNAUTHORIZED)
    page = log_in(visitor, "bert")
    page.get_by_role("heading", name="Overview", level=1).wait_for()
    pages = page.get_by_role("navigation", name="Pages", exact=True)
    assert not pages.get_by_role("link", name="Audit").count()
    assert not pages.get_by_role("link", name="Users").count()
    visitor.open("destinations", "orders.eu")
    assert not page.get_by_text("private").count()
    create = page.get_by_role("button", name="Create")
    assert create.get_attribute("aria-disabled") == "true"
    visitor.open("queue/orders.eu", "Came by")
    visitor.shoot("restricted")
    purge = page.get_by_role("button", name="Purge")
    assert purge.get_attribute("aria-disabled") == "true"
    purge.focus()
    page.keyboard.press("Enter")
    page.get_by_text("bert has no permission to manage here").first.wait_for()
    assert not page.get_by_role("dialog").count()
    assert page.get_by_role("button", name="Delete all").get_attribute("aria-disabled") is None
    assert not violations(page)
    visitor.open("audit")
    page.get_by_role("alert").filter(has_text="superuser").wait_for()
    visitor.open("queue/private")
    page.locator("main [role=alert]").first.wait_for()


def test_logging_out_leaves_nothing_behind(guarded: House, visit: Visit) -> None:
    visitor = visit(guarded, UNAUTHORIZED)
    page = log_in(visitor, "anna")
    page.get_by_role("heading", name="Overview", level=1).wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("button", name="Log in").wait_for()
    assert not page.get_by_text("private").count()
    page.reload()
    page.get_by_role("button", name="Log in").wait_for()


def test_a_token_instead_of_a_password(guarded: House, visit: Visit) -> None:
    token = guarded.ask("POST", "/users/anna/tokens", {"label": "t"}, **basic("anna"))["token"]
    visitor = visit(guarded, UNAUTHORIZED)
    page = visitor.page
    page.goto(guarded.url)
    page.get_by_role("button", name="Use a token").click()
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Overview", level=1).wait_for()


def test_a_session_that_is_over_leads_to_the_login_and_back(guarded: House, visit: Visit) -> None:
    visitor = visit(guarded, (*UNAUTHORIZED, "ERR_"))
    log_in(visitor, "anna")
    page = visitor.open("destinations", "private")
    visitor.context.clear_cookies()
    page.get_by_role("button", name="Log in").wait_for()
    log_in(visitor, "anna")
    page.get_by_role("heading", name="Destinations", level=1).wait_for()


def test_a_user_is_added_permitted_and_deleted(guarded: House, visit: Visit) -> None:
    visitor = visit(guarded, UNAUTHORIZED)
    log_in(visitor, "anna")
    page = visitor.open("users", "bert")
    page.get_by_role("button", name="Add a user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("no such name!")
    dialog.get_by_role("button", name="Add").click()
    dialog.get_by_role("alert").wait_for()
    dialog.get_by_label("Name").fill("carl")
    dialog.get_by_role("button", name="Add").click()
    page.get_by_role("heading", name="carl", level=1).wait_for()
    page.get_by_role("button", name="Permit").click()
    dialog.get_by_label("Destinations").fill("orders.*")
    dialog.get_by_label("browse:").click()
    dialog.get_by_role("button", name="Permit").click()
    visitor.see("orders.*: browse")
    page.get_by_role("button", name="New token").click()
    dialog.get_by_label("What it is for").fill("a test")
    dialog.get_by_role("button", name="Make it").click()
    dialog.get_by_text("It is shown this once").wait_for()
    page.keyboard.press("Escape")
    visitor.see("a test")
    visitor.shoot("user")
    assert not violations(page)
    page.get_by_role("button", name="Delete…").click()
    dialog.get_by_role("button", name="Delete the user").click()
    page.get_by_role("heading", name="Users", level=1).wait_for()
    assert [user["name"] for user in guarded.ask("GET", "/users", **basic("anna"))["items"]] == [
        "anna",
        "bert",
    ]
