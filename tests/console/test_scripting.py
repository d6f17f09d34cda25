"""The console inserts data of clients, URLs and forms as text, never as markup or script."""

from __future__ import annotations

from urllib.parse import quote

from playwright.sync_api import Page

from sluicemq.clients.jmq import Queue, Topic
from tests.support.console import SCRIPT_PAYLOAD, BrowserPage, ConsoleFixture, OpenPage

INJECTED_ELEMENTS = """() => [
  window.hacked ?? '',
  ...[...document.querySelectorAll('img, iframe, object, embed, form[action], b[data-x]')]
    .map((element) => element.outerHTML),
].filter(Boolean)"""


def script_in(place: str) -> str:
    return SCRIPT_PAYLOAD % place


def expect_no_injected_elements(browser_page: BrowserPage) -> None:
    injected = browser_page.page.evaluate(INJECTED_ELEMENTS)
    assert not injected, injected


def expect_text(page: Page, text: str) -> None:
    """Wait until the page shows the text unchanged."""
    page.locator("main").get_by_text(text).first.wait_for()


def test_stored_data_is_inserted_as_text(console: ConsoleFixture, open_page: OpenPage) -> None:
    name = script_in("queue")
    headers = {
        "correlation_id": script_in("correlation"),
        "type": script_in("type"),
        "message_id": script_in("id"),
    }
    properties = {script_in("property"): script_in("value")}
    console.publish(name, body=script_in("text"), properties=properties, **headers)
    console.publish(name, body_json={script_in("key"): [script_in("json")]})
    console.publish(
        "orders.dlq",
        body="x",
        properties={"deadLetterReason": script_in("reason"), "originalQueue": script_in("origin")},
    )
    console.create("orders", dead_letter=True)
    jms = console.jms(script_in("client"))
    session = jms.session()
    session.producer(Queue("maps")).send({script_in("map"): script_in("entry")})
    session.consumer(
        Topic("prices"),
        name=script_in("subscription"),
        durable=True,
        selector=f"a = '{script_in('selector').replace(chr(39), chr(39) * 2)}'",
    )
    browser_page = open_page(console)
    page = browser_page.open("", "Messages per second")
    expect_text(page, name)
    for location, texts in (
        ("destinations", [name]),
        (f"queue/{quote(name, safe='')}", [name]),
        ("dead-letters", ["orders.dlq", script_in("reason")]),
        ("connections", [script_in("client")]),
        ("topic/prices/subscriptions", [script_in("subscription")]),
        ("topic/prices/consumers", [script_in("selector")[:20]]),
        ("audit", ["PUT"]),
    ):
        browser_page.open(location)
        for text in texts:
            expect_text(page, text)
        expect_no_injected_elements(browser_page)
    expected_texts = {
        "text": [
            script_in("text"),
            script_in("property"),
            script_in("value"),
            script_in("correlation"),
            script_in("type"),
        ],
        "json": ["json"],
        "map": [script_in("map"), script_in("entry")],
    }
    path = f"/destinations/queue/{quote(name, safe='')}/messages"
    queue_page = f"queue/{quote(name, safe='')}"
    items_by_page = [(queue_page, item) for item in console.request("GET", path)["items"]]
    items_by_page += [
        ("queue/maps", item)
        for item in console.request("GET", "/destinations/queue/maps/messages")["items"]
    ]
    for location, item in items_by_page:
        browser_page.open(location)
        browser_page.open(f"{location}/messages/{item['id']}")
        for text in expected_texts[item["body_kind"]]:
            expect_text(page, text)
        expect_no_injected_elements(browser_page)
    dead_letter = console.request("GET", "/destinations/queue/orders.dlq/messages")["items"][0][
        "id"
    ]
    browser_page.open(f"queue/orders.dlq/messages/{dead_letter}", "Original destination")
    expect_text(page, script_in("reason"))
    expect_text(page, script_in("origin"))
    expect_no_injected_elements(browser_page)
    page.keyboard.press("/")
    page.keyboard.type("img")
    page.get_by_role("option").first.wait_for()
    expect_no_injected_elements(browser_page)


def test_dialogs_insert_names_as_text(console: ConsoleFixture, open_page: OpenPage) -> None:
    name = script_in("queue")
    console.publish(name, body="x")
    browser_page = open_page(console)
    page = browser_page.open(f"queue/{quote(name, safe='')}", "Protocol")
    for button in ("Purge", "Delete…", "Move all"):
        page.get_by_role("button", name=button).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text(name).first.wait_for()
        expect_no_injected_elements(browser_page)
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("dialog").get_by_role("button", name="Purge 1").click()
    page.get_by_text("1 message purged").wait_for()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text(f"{name} deleted").wait_for()
    expect_no_injected_elements(browser_page)


def test_url_parts_are_inserted_as_text(console: ConsoleFixture, open_page: OpenPage) -> None:
    text = quote(script_in("address"), safe="")
    browser_page = open_page(console, ("404", "400"))
    for location in (
        text,
        f"queue/{text}",
        f"topic/{text}/settings",
        f"queue/orders/{text}",
        f"queue/orders/messages/{text}",
        f"queue/orders/messages?selector={text}&state={text}",
        f"destinations?filter={text}&kind={text}&sort={text}&page={text}",
        f"users/{text}",
        f"queue/x?name_base64={text}",
        f"__proto__/{text}",
        "constructor",
    ):
        browser_page.page.goto(f"{console.url}#/{location}")
        browser_page.page.reload()
        browser_page.page.wait_for_selector("main h1, main [role=alert]")
        expect_no_injected_elements(browser_page)


def test_input_in_error_messages_is_inserted_as_text(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    console.publish("orders", body="x")
    browser_page = open_page(console, ("404", "400", "409"))
    page = browser_page.open("queue/orders", "Protocol")
    page.get_by_label("Selector").fill(script_in("selector"))
    page.get_by_role("button", name="Apply").click()
    page.locator("main [role=alert]").first.wait_for()
    expect_no_injected_elements(browser_page)
    browser_page.open("destinations", "orders")
    page.get_by_label("Name", exact=True).fill(script_in("filter"))
    browser_page.wait_for_text("No matching destinations")
    expect_no_injected_elements(browser_page)
    page.keyboard.press("Escape")
    page.get_by_role("combobox", name="Search").fill(script_in("search"))
    page.get_by_role("option").first.wait_for()
    expect_no_injected_elements(browser_page)


def test_content_security_policy_blocks_scripts(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(
        console, ("Trusted", "TrustedHTML", "Content Security Policy", "inline")
    )
    page = browser_page.open("", "Messages per second")
    script = """() => {
      const attempts = [
        () => { document.body.innerHTML = '<b>x</b>'; },
        () => { eval('1'); },
        () => { new Function('return 1')(); },
        () => { const script = document.createElement('script'); script.text = 'window.hacked = 1';
                document.body.append(script); if (!window.hacked) throw Error('not run'); },
      ];
      return attempts.map((attempt) => {
        try { attempt(); return 'done'; } catch { return 'stopped'; }
      });
    }"""
    # results of scripts of the page only: code that the test evaluates itself is not blocked
    assert page.evaluate(script)[0] == "stopped"
    assert page.evaluate(script)[3] == "stopped"
    assert page.evaluate("window.hacked") is None
    headers = page.request.get(console.url).headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
