"""Nothing that comes from elsewhere becomes a part of the page: what clients have stored in the
broker, and what an address or a form brings along."""

from __future__ import annotations

from urllib.parse import quote

from playwright.sync_api import Page

from sluicemq.protocols.jmq.client import Queue, Topic
from tests.console.house import EVIL, House, Visit, Visitor

INTRUDERS = """() => [
  window.hacked ?? '',
  ...[...document.querySelectorAll('img, iframe, object, embed, form[action], b[data-x]')]
    .map((one) => one.outerHTML),
].filter(Boolean)"""


def evil(where: str) -> str:
    return EVIL % where


def expect_nothing(visitor: Visitor) -> None:
    found = visitor.page.evaluate(INTRUDERS)
    assert not found, found


def told(page: Page, text: str) -> None:
    """The page shows it letter by letter."""
    page.locator("main").get_by_text(text).first.wait_for()


def test_what_clients_have_stored(house: House, visit: Visit) -> None:
    name = evil("queue")
    headers = {
        "correlation_id": evil("correlation"),
        "type": evil("type"),
        "message_id": evil("id"),
    }
    properties = {evil("property"): evil("value")}
    house.publish(name, body=evil("text"), properties=properties, **headers)
    house.publish(name, body_json={evil("key"): [evil("json")]})
    house.publish(
        "orders.dlq",
        body="x",
        properties={"deadLetterReason": evil("reason"), "originalQueue": evil("origin")},
    )
    house.create("orders", dead_letter=True)
    jms = house.jms(evil("client"))
    session = jms.session()
    session.producer(Queue("maps")).send({evil("map"): evil("entry")})
    session.consumer(
        Topic("prices"),
        name=evil("subscription"),
        durable=True,
        selector=f"a = '{evil('selector').replace(chr(39), chr(39) * 2)}'",
    )
    visitor = visit(house)
    page = visitor.open("", "Messages per second")
    told(page, name)
    for where, texts in (
        ("destinations", [name]),
        (f"queue/{quote(name, safe='')}", [name]),
        ("dead-letters", ["orders.dlq", evil("reason")]),
        ("connections", [evil("client")]),
        ("topic/prices/subscriptions", [evil("subscription")]),
        ("topic/prices/consumers", [evil("selector")[:20]]),
        ("audit", ["PUT"]),
    ):
        visitor.open(where)
        for text in texts:
            told(page, text)
        expect_nothing(visitor)
    told_of = {
        "text": [evil("text"), evil("property"), evil("value"), evil("correlation"), evil("type")],
        "json": ["json"],
        "map": [evil("map"), evil("entry")],
    }
    path = f"/destinations/queue/{quote(name, safe='')}/messages"
    here = f"queue/{quote(name, safe='')}"
    found = [(here, item) for item in house.ask("GET", path)["items"]]
    found += [
        ("queue/maps", item)
        for item in house.ask("GET", "/destinations/queue/maps/messages")["items"]
    ]
    for where, item in found:
        visitor.open(where)
        visitor.open(f"{where}/messages/{item['id']}")
        for text in told_of[item["kind"]]:
            told(page, text)
        expect_nothing(visitor)
    letter = house.ask("GET", "/destinations/queue/orders.dlq/messages")["items"][0]["id"]
    visitor.open(f"queue/orders.dlq/messages/{letter}", "Why it is a dead letter")
    told(page, evil("reason"))
    told(page, evil("origin"))
    expect_nothing(visitor)
    page.keyboard.press("/")
    page.keyboard.type("img")
    page.get_by_role("option").first.wait_for()
    expect_nothing(visitor)


def test_what_dialogs_say_of_it(house: House, visit: Visit) -> None:
    name = evil("queue")
    house.publish(name, body="x")
    visitor = visit(house)
    page = visitor.open(f"queue/{quote(name, safe='')}", "Came by")
    for button in ("Purge", "Delete…", "Move all"):
        page.get_by_role("button", name=button).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text(name).first.wait_for()
        expect_nothing(visitor)
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("dialog").get_by_role("button", name="Purge 1").click()
    page.get_by_text("1 message purged").wait_for()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    page.get_by_text(f"{name} is deleted").wait_for()
    expect_nothing(visitor)


def test_what_an_address_brings_along(house: House, visit: Visit) -> None:
    text = quote(evil("address"), safe="")
    visitor = visit(house, ("404", "400"))
    for where in (
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
        visitor.page.goto(f"{house.url}#/{where}")
        visitor.page.reload()
        visitor.page.wait_for_selector("main h1, main [role=alert]")
        expect_nothing(visitor)


def test_what_is_typed_and_comes_back_in_a_refusal(house: House, visit: Visit) -> None:
    house.publish("orders", body="x")
    visitor = visit(house, ("404", "400", "409"))
    page = visitor.open("queue/orders", "Came by")
    page.get_by_label("Selector").fill(evil("selector"))
    page.get_by_role("button", name="Select").click()
    page.locator("main [role=alert]").first.wait_for()
    expect_nothing(visitor)
    visitor.open("destinations", "orders")
    page.get_by_label("Name", exact=True).fill(evil("filter"))
    visitor.see("No destination is like that")
    expect_nothing(visitor)
    page.keyboard.press("Escape")
    page.get_by_role("combobox", name="Search").fill(evil("search"))
    page.get_by_role("option").first.wait_for()
    expect_nothing(visitor)


def test_the_policy_stops_what_slips_through(house: House, visit: Visit) -> None:
    visitor = visit(house, ("Trusted", "TrustedHTML", "Content Security Policy", "inline"))
    page = visitor.open("", "Messages per second")
    tried = """() => {
      const tries = [
        () => { document.body.innerHTML = '<b>x</b>'; },
        () => { eval('1'); },
        () => { new Function('return 1')(); },
        () => { const one = document.createElement('script'); one.text = 'window.hacked = 1';
                document.body.append(one); if (!window.hacked) throw Error('not run'); },
      ];
      return tries.map((one) => { try { one(); return 'done'; } catch { return 'stopped'; } });
    }"""
    # as a script of the page would: what the test itself evaluates is let through
    assert page.evaluate(tried)[0] == "stopped"
    assert page.evaluate(tried)[3] == "stopped"
    assert page.evaluate("window.hacked") is None
    headers = page.request.get(house.url).headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
