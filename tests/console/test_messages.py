"""Operations on messages: publish, select, display, move, redrive and delete."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from sluicemq.cli.message_options import FAILURE_REASONS
from sluicemq.clients.jmq import Queue, Topic, Xid
from sluicemq.model.rows import row
from tests.console.test_accessible import violations
from tests.faults.plan import SMALL_SEGMENTS
from tests.support.console import REFRESH_MS, ConsoleFixture, OpenPage
from tests.support.polling import wait_until

ROOT = Path(__file__).parents[2]
BODIES = (
    ("greeting", "hello"),
    ("json", '"lines"'),
    ("bytes", "0000f0"),
    ("none", "The message has no body"),
    ("map", "Anna"),
    ("stream", "two"),
    ("object", "ac ed 00 05"),
)


def test_every_kind_of_message_is_displayed(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console)
    items = sample_console.request("GET", "/destinations/queue/orders/messages?limit=50")["items"]
    kinds = {item["type"] or item["body_kind"]: item["id"] for item in items}
    for kind, expected in BODIES:
        browser_page.open(f"queue/orders/messages/{kinds[kind]}", expected)
        browser_page.save_screenshot(f"body-{kind}")
    page = browser_page.page
    browser_page.open(f"queue/orders/messages/{kinds['greeting']}", "color")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == b"hello"


def test_empty_bodies_are_reported(console: ConsoleFixture, open_page: OpenPage) -> None:
    producer = console.jms().session().producer(Queue("orders"))
    bodies: tuple[object, ...] = ({}, [], "", b"")
    for body in bodies:
        producer.send(body)
    browser_page = open_page(console)
    for item in console.request("GET", "/destinations/queue/orders/messages")["items"]:
        browser_page.open(f"queue/orders/messages/{item['id']}", "The body is empty")


def test_console_states_that_it_displays_a_part_of_the_bytes(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    body = base64.b64encode(b"\xff" * 20_000).decode()
    message = console.publish("orders", body_base64=body)
    browser_page = open_page(console)
    browser_page.open(f"queue/orders/messages/{message}", "Only the first 16,384 bytes")


def test_deeply_nested_json_is_displayed(console: ConsoleFixture, open_page: OpenPage) -> None:
    depth = 50_000
    message = console.publish("orders", body="[" * depth + "]" * depth)
    page = open_page(console).open(f"queue/orders/messages/{message}")
    text = page.get_by_role("region", name="Body, JSON").text_content() or ""
    assert text.startswith("[\n  [\n    [")
    assert len(text) < 4 * depth


def test_message_with_an_expiration_in_the_far_future_is_displayed(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    seconds = 9e12
    console.jms().session().producer(Queue("orders")).send("hello", ttl=seconds)
    [item] = console.request("GET", "/destinations/queue/orders/messages")["items"]
    browser_page = open_page(console)
    browser_page.open(f"queue/orders/messages/{item['id']}", "after the year 275760")


def test_publish_select_move_and_delete(console: ConsoleFixture, open_page: OpenPage) -> None:
    browser_page = open_page(console, ("400",))
    page = browser_page.open("destinations", "There are no destinations yet")
    page.get_by_role("button", name="Create").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("stock/new ones")
    dialog.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name="stock/new ones", level=1).wait_for()
    browser_page.wait_for_text("No ready messages")
    page.get_by_role("link", name="Publish").click()
    for color in ("red", "green", "red"):
        page.get_by_label("Body", exact=True).fill(f"a {color} one")
        if not page.get_by_label("Name of the property").count():
            page.get_by_role("button", name="Add a property").click()
            page.get_by_label("Name of the property").fill("color")
        page.get_by_label("Value of the property").fill(color)
        page.get_by_role("button", name="Publish").click()
        page.get_by_text("Published as message").last.wait_for()
        page.locator(".note").last.evaluate("note => note.remove()")
    page.get_by_role("link", name="Messages", exact=True).click()
    browser_page.wait_for_text("1 to 3 of 3")
    page.get_by_label("Selector").fill("color = 'red'")
    page.get_by_role("button", name="Apply").click()
    browser_page.wait_for_text("2 messages found")
    page.get_by_label("Selector").fill("color = ")
    page.get_by_role("button", name="Apply").click()
    page.locator("main").get_by_role("alert").first.wait_for()
    page.get_by_label("Selector").fill("")
    page.get_by_role("button", name="Apply").click()
    browser_page.wait_for_text("1 to 3 of 3")
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Move 1").click()
    dialog.get_by_label("Target").fill("elsewhere")
    dialog.get_by_role("button", name="Move 1 message").click()
    page.get_by_text("1 message moved").wait_for()
    browser_page.wait_for_text("1 to 2 of 2")
    assert console.item("elsewhere")["ready"] == 1
    page.get_by_role("button", name="Delete all").click()
    dialog.get_by_text("deleted permanently").wait_for()
    dialog.get_by_role("button", name="Delete all messages").click()
    page.get_by_text("2 messages deleted").wait_for()
    browser_page.wait_for_text("No ready messages")


def test_cancelled_operation_stops_and_reports_what_it_has_done(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    for number in range(30):
        console.publish("orders", body=f"{number}")
    page = open_page(console).open("queue/orders", "Protocol")
    dialog = page.get_by_role("dialog")
    requests: list[object] = []

    def limit(route: Route) -> None:
        requests.append({**route.request.post_data_json, "limit": 10})
        if len(requests) == 2:
            dialog.get_by_role("button", name="Cancel").click()
        route.continue_(post_data=json.dumps(requests[-1]))

    page.route("**/messages/actions*", limit)
    page.get_by_role("button", name="Delete all").click()
    dialog.get_by_role("button", name="Delete all messages").click()
    page.get_by_text("20 messages deleted; stopped before the others: cancelled").wait_for()
    expect(page.locator("tbody tr")).to_have_count(10)
    assert len(requests) == 2


def test_large_numbers_are_published_as_typed(console: ConsoleFixture, open_page: OpenPage) -> None:
    console.create("orders")
    page = open_page(console).open("queue/orders/publish")
    page.get_by_label("Body type").select_option("json")
    body = '{"id": 12345678901234567890, "b": 1.0}'
    page.get_by_label("Body", exact=True).fill(body)
    page.get_by_role("button", name="Add a property").click()
    page.get_by_label("Name of the property").fill("n")
    page.get_by_label("Type of the property").select_option("int")
    page.get_by_label("Value of the property").fill("9007199254740993")
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("Published as message").wait_for()
    [item] = console.request("GET", "/destinations/queue/orders/messages")["items"]
    message = console.request("GET", f"/destinations/queue/orders/messages/{item['id']}")
    assert message["body"]["value"] == body
    assert message["properties"]["n"] == {"type": "int", "value": "9007199254740993"}


def test_invalid_boolean_property_is_rejected(console: ConsoleFixture, open_page: OpenPage) -> None:
    console.create("orders")
    page = open_page(console, ("400",)).open("queue/orders/publish")
    page.get_by_label("Body", exact=True).fill("x")
    page.get_by_role("button", name="Add a property").click()
    page.get_by_label("Name of the property").fill("paid")
    page.get_by_label("Type of the property").select_option("boolean")
    page.get_by_label("Value of the property").fill("yes")
    page.get_by_role("button", name="Publish").click()
    page.get_by_text(re.compile("the property 'paid' is not of type boolean|Published")).wait_for()
    assert not console.request("GET", "/destinations/queue/orders/messages")["items"]
    page.get_by_label("Value of the property").fill("True")
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("Published as message").wait_for()


def test_two_properties_with_the_same_name_are_refused(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    console.create("orders")
    page = open_page(console).open("queue/orders/publish")
    for value in ("red", "green"):
        page.get_by_role("button", name="Add a property").click()
        page.get_by_label("Name of the property").last.fill("color")
        page.get_by_label("Value of the property").last.fill(value)
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("Two properties have the same name").wait_for()
    assert not console.item("orders")["ready"]


def test_every_reason_of_a_failure_is_explained() -> None:
    page = (ROOT / "docs/messages.md").read_text()
    table = page.partition("| Reason | Meaning |")[2].partition("## ")[0]
    documented = set(re.findall(r"`([a-z-]+)`(?=.* \|)", table))
    script = (ROOT / "src/sluicemq/admin/console/actions.js").read_text()
    assert set(re.findall(r'^  "?([a-z-]+)"?: "', script, re.MULTILINE)) == documented
    assert set(FAILURE_REASONS) == documented


def test_deleted_message_returns_to_the_list_of_its_subscription(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    session = console.jms("desk").session()
    for name in ("a", "b"):
        session.consumer(Topic("prices"), name=name, durable=True).close()
    session.producer(Topic("prices")).send("one")
    browser_page = open_page(console)
    page = browser_page.open("topic/prices", "one")
    page.get_by_label("Subscription").select_option("b, client desk")
    link = page.get_by_role("link", name=re.compile(r"^\d+$"))
    expect(link).to_have_attribute("href", re.compile(r"desk%2Fb|desk/b"))
    link.click()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    browser_page.wait_for_text("No ready messages")
    expect(page.get_by_label("Subscription").locator(":checked")).to_have_text("b, client desk")


def test_subscriptions_are_selected_by_the_names_that_clients_use(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    page = open_page(sample_console).open("topic/prices")
    expect(page.get_by_label("Subscription").locator("option")).to_have_text(["desk, client desk"])


def test_scheduled_messages_can_be_redelivered(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    console.publish("orders", body="now")
    console.publish("orders", body="later", delay_ms=3_600_000)
    browser_page = open_page(console)
    page = browser_page.open("queue/orders", "now")
    redeliver = page.get_by_role("button", name="Redeliver all")
    page.get_by_label("State").select_option("scheduled")
    redeliver.click()
    page.get_by_role("dialog").get_by_role("button", name="Redeliver").click()
    page.get_by_text("1 message redelivered").wait_for()
    page.get_by_label("State").select_option("ready")
    browser_page.wait_for_text("later")
    expect(redeliver).to_have_count(0)


def test_long_queue_is_browsed_by_page(sample_console: ConsoleFixture, open_page: OpenPage) -> None:
    browser_page = open_page(sample_console)
    page = browser_page.open("queue/bulk", "1 to 50 of 120")
    page.get_by_role("button", name="Next").click()
    browser_page.wait_for_text("51 to 100 of 120")
    page.get_by_role("button", name="Next").click()
    browser_page.wait_for_text("101 to 120 of 120")
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    expect(page).to_have_url(re.compile("offset=100"))
    page.get_by_label("Position to go to").fill("33")
    page.get_by_role("button", name="Go to").click()
    browser_page.wait_for_text("33 to 82 of 120")
    page.reload()
    browser_page.wait_for_text("33 to 82 of 120")


def test_double_click_opens_one_page_of_selected_messages(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console)
    page = browser_page.open("queue/bulk/messages?selector=even%20%3D%20TRUE", "50 messages found")
    page.get_by_role("button", name="Next").dblclick()
    browser_page.wait_for_text("10 messages found")
    page.get_by_role("button", name="Previous").click()
    browser_page.wait_for_text("50 messages found")
    page.get_by_role("button", name="Next").click()
    browser_page.wait_for_text("10 messages found")
    expect(page.get_by_role("button", name="Previous")).to_be_enabled()


def test_second_click_while_previews_are_requested_opens_no_other_page(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console)
    page = browser_page.open("queue/bulk/messages?selector=even%20%3D%20TRUE", "50 messages found")
    previews = re.compile(r"/bulk/messages\?.*body=true.*cursor=")
    page.route(previews, lambda route: None)  # the list is requested again after 4 s
    with page.expect_request(previews):
        page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    page.unroute(previews)
    browser_page.wait_for_text("10 messages found")


def test_previews_of_removed_rows_are_dropped(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console)
    page = browser_page.open("queue/bulk", "1 to 50 of 120")
    page.evaluate(
        """() => { const set = Map.prototype.set;
        window.previews = 0;
        Map.prototype.set = function (key, value) {
          set.call(this, key, value);
          if (String(value).startsWith('number')) window.previews = this.size;
          return this;
        }; }"""
    )
    page.get_by_role("button", name="Next").click()
    browser_page.wait_for_text("51 to 100 of 120")
    page.get_by_role("button", name="Next").click()
    browser_page.wait_for_text("101 to 120 of 120")
    assert page.evaluate("previews") == 70


def test_late_response_does_not_replace_the_next_page(
    sample_console: ConsoleFixture, open_page: OpenPage
) -> None:
    browser_page = open_page(sample_console, has_clock=True)
    page = browser_page.open("queue/bulk", "1 to 50 of 120")

    def hold_first_page(route: Route) -> None:
        if "offset=" in route.request.url:
            route.continue_()

    page.route("**/queue/bulk/messages?*", hold_first_page)
    with page.expect_request("**/queue/bulk/messages?*") as late:
        page.clock.fast_forward(REFRESH_MS)
    with page.expect_event("requestfailed", lambda request: request == late.value):
        page.get_by_role("button", name="Next").click()
    browser_page.wait_for_text("51 to 100 of 120")


def test_previous_page_is_shown_after_the_last_one_is_consumed(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    for number in range(60):
        console.publish("orders", body=f"{number}")
    browser_page = open_page(console, has_clock=True)
    page = browser_page.open("queue/orders/messages?offset=50", "51 to 60 of 60")
    console.request(
        "POST",
        "/destinations/queue/orders/messages/actions",
        {"action": "delete", "all": True, "limit": 20},
    )
    page.clock.fast_forward(REFRESH_MS)
    browser_page.wait_for_text("1 to 40 of 40")
    expect(page.get_by_text("No ready messages")).to_have_count(0)
    browser_page.open("queue/orders/messages?offset=1000", "1 to 40 of 40")


def test_redrive_moves_dead_letters_to_their_original_queue(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    console.create("orders", message_ttl=1, dead_letter=True)
    for number in range(3):
        console.publish("orders", body=f"{number}")
    browser_page = open_page(console)
    page = browser_page.open("dead-letters", "expired 3")
    console.create("orders", message_ttl=0)
    page.get_by_role("link", name="orders.dlq").click()
    page.get_by_role("link", name="Messages", exact=True).wait_for()
    page.locator("tbody a").first.click()
    browser_page.wait_for_text("Original destination")
    page.get_by_role("button", name="Redrive").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive message").click()
    page.get_by_text("1 message redriven").wait_for()
    assert console.item("orders")["ready"] == 1
    browser_page.open("dead-letters", "expired 2")
    page.get_by_role("button", name="Redrive all of orders.dlq").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive all dead letters").click()
    page.get_by_text("2 messages redriven").wait_for()
    assert console.item("orders")["ready"] == 3
    console.publish("orders.dlq", body="x")
    page.get_by_role("button", name="Purge orders.dlq").click()
    page.get_by_role("dialog").get_by_role("button", name="Purge all dead letters").click()
    page.get_by_text("1 message purged").wait_for()


def test_dead_letters_of_a_queue_with_any_name_can_be_redriven(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    console.create("orders", message_ttl=1, dead_letter=True, dead_letter_queue="failed")
    console.publish("orders", body="x")
    browser_page = open_page(console)
    page = browser_page.open("dead-letters", "expired 1")
    console.create("orders", message_ttl=0)
    browser_page.open("queue/failed/messages", "1 to 1 of 1")
    page.get_by_role("button", name="Redrive all").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive all messages").click()
    page.get_by_text("1 message redriven").wait_for()
    browser_page.open("queue/orders/messages", "1 to 1 of 1")
    expect(page.get_by_role("button", name="Redrive all")).to_have_count(0)


def test_reasons_of_the_first_dead_letters_are_counted(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    with console.api() as client:
        assert client.write([row("orders.dlq", b"x")] * 1_001, writer="w").status == 200
    browser_page = open_page(console)
    browser_page.open("dead-letters", "of the first 1,000 messages")
    browser_page.page.get_by_text("(none) 1,000").wait_for()


def test_purge_of_a_long_queue_may_take_longer_than_other_requests(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    console.publish("orders", body="x")
    page = open_page(console).open("queue/orders", "Protocol")
    page.evaluate(
        """() => { const original = AbortSignal.timeout.bind(AbortSignal);
        AbortSignal.timeout = (ms) => original(ms <= 60_000 ? 0 : ms); }"""
    )
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("dialog").get_by_role("button", name="Purge 1").click()
    page.get_by_text("1 message purged").wait_for()


def test_purge_and_delete_state_what_is_lost(console: ConsoleFixture, open_page: OpenPage) -> None:
    for _ in range(7):
        console.publish("orders", body="x" * 100)
    consumer = console.phpmq()
    consumer.subscribe("orders", 2)
    consumer.receive(10)
    browser_page = open_page(console)
    page = browser_page.open("queue/orders", "Protocol")
    page.get_by_text("5", exact=True).first.wait_for()
    page.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog", name="Purge orders?")
    dialog.get_by_text("5 ready messages").wait_for()
    dialog.get_by_text("2 unacked messages will be kept").wait_for()
    page.keyboard.press("Escape")
    assert console.item("orders")["ready"] == 5
    page.get_by_role("button", name="Purge").click()
    dialog.get_by_role("button", name="Purge 5 messages").click()
    page.get_by_text("5 messages purged").wait_for()
    assert console.item("orders")["ready"] == 0
    page.get_by_role("button", name="Delete…").click()
    delete_dialog = page.get_by_role("dialog", name="Delete orders?")
    delete_dialog.get_by_text("2 unacked messages").wait_for()
    delete_dialog.get_by_text("1 consumer").wait_for()
    delete_dialog.get_by_role("button", name="Delete").click()
    page.get_by_role("heading", name="Destinations", level=1).wait_for()
    page.get_by_text("orders deleted").wait_for()


def test_purge_and_delete_of_a_topic_state_the_subscriptions(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    session = console.jms("desk").session()
    for name in ("a", "b", "c"):
        session.consumer(Topic("prices"), name=name, durable=True).close()
    for number in range(4):
        session.producer(Topic("prices")).send(f"{number}")
    page = open_page(console).open("topic/prices", "4 B")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Delete…").click()
    dialog.get_by_text("3 subscriptions, up to 4 ready messages of each").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Purge").click()
    dialog.get_by_text("up to 4 ready messages of each subscription").wait_for()
    dialog.get_by_role("button", name="Purge", exact=True).click()
    page.get_by_text("12 messages purged").wait_for()


def test_scheduled_messages_are_shown_as_a_part_of_the_ready_ones(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    console.publish("orders", body="later", delay_ms=3_600_000)
    page = open_page(console).open("queue/orders", "5 B, 1 scheduled")
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("dialog").get_by_text("1 ready message (5 B), including").wait_for()


def test_pause_and_resume_with_the_keyboard(console: ConsoleFixture, open_page: OpenPage) -> None:
    console.publish("orders", body="x")
    browser_page = open_page(console)
    page = browser_page.open("queue/orders", "Protocol")
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Resume").wait_for()
    browser_page.wait_for_text("paused")
    assert console.item("orders")["paused"]
    expect(page.get_by_role("button", name="Resume")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Pause").wait_for()
    assert not console.item("orders")["paused"]


def test_only_changed_settings_are_sent(console: ConsoleFixture, open_page: OpenPage) -> None:
    console.create("orders", max_messages=100, message_ttl=60_000)
    browser_page = open_page(console)
    page = browser_page.open("queue/orders/settings", "Lifetime and delivery")
    sent: list[object] = []

    def record_change(request: Request) -> None:
        if request.method == "PUT":
            sent.append(request.post_data_json)

    page.on("request", record_change)
    assert page.get_by_label("Maximum ready messages").input_value() == "100"
    assert page.get_by_label("Message TTL").input_value() == "1 min"
    browser_page.wait_for_text("message_ttl")
    page.get_by_label("Retry delay", exact=True).fill("5 parsecs")
    page.get_by_role("button", name="Save").click()
    assert not sent
    page.get_by_label("Retry delay", exact=True).fill("1.5 s")
    page.get_by_label("Maximum message size").fill("10 MiB")
    page.get_by_label("Maximum ready messages").fill("-5")
    page.get_by_role("button", name="Save").click()
    assert not sent
    page.get_by_label("Maximum ready messages").fill("5000")
    page.get_by_label("Dead-letter undeliverable messages").check()
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Settings saved").wait_for()
    assert sent == [
        {
            "max_messages": 5000,
            "max_message_bytes": 10_485_760,
            "retry_delay": 1_500,
            "dead_letter": True,
        }
    ]
    settings = console.item("orders")["settings"]
    assert settings["max_messages"] == 5000
    assert settings["message_ttl"] == 60_000
    browser_page.wait_for_text("Dead letters go to orders.dlq")


def test_dialogs_of_rows_state_the_latest_figures(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    jms = console.jms("desk")
    session = jms.session()
    session.consumer(Topic("prices"), name="desk", durable=True).close()
    browser_page = open_page(console, has_clock=True)
    page = browser_page.open("topic/prices/subscriptions", "durable")
    producer = session.producer(Topic("prices"))
    for number in range(3):
        producer.send(f"{number}")
    page.clock.fast_forward(REFRESH_MS)
    page.get_by_role("row").filter(has_text="3").get_by_role("button", name="Delete desk…").click()
    page.get_by_role("dialog").get_by_text("3 messages will be deleted").wait_for()
    page.keyboard.press("Escape")
    browser_page.open("connections", "desk")
    session.consumer(Queue("orders"))
    page.clock.fast_forward(REFRESH_MS)
    row = page.get_by_role("row").filter(has_text="jmq")
    expect(row.locator("[data-label=Consumers]")).to_have_text("1")
    row.get_by_role("button", name="Close").click()
    page.get_by_role("dialog").get_by_text("It has 1 consumer;").wait_for()


def test_consumer_links_to_its_connection_and_back(
    console: ConsoleFixture, open_page: OpenPage
) -> None:
    consumer = console.phpmq()
    consumer.subscribe("orders", 1)
    browser_page = open_page(console)
    page = browser_page.open("queue/orders/consumers", "phpmq")
    page.get_by_role("link", name=re.compile("number")).click()
    page.get_by_role("heading", name="Connection", level=1).wait_for()
    browser_page.wait_for_text("Listener")
    page.locator("main").get_by_role("link", name="orders").click()
    page.get_by_role("heading", name="orders", level=1).wait_for()
    browser_page.open("connections", "127.0.0.1")
    page.get_by_role("row").filter(has_text="phpmq").get_by_role("link").click()
    browser_page.wait_for_text("orders")
    assert not violations(page)
    page.get_by_role("button", name="Close").click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.get_by_role("heading", name="Connections", level=1).wait_for()


def test_connection_is_closed(console: ConsoleFixture, open_page: OpenPage) -> None:
    jms = console.jms("clerk")
    assert jms.ping() >= 0
    browser_page = open_page(console)
    page = browser_page.open("connections?filter=clerk", "clerk")
    close = page.get_by_role("button", name="Close")
    assert close.count() == 1
    before = console.request("GET", "/connections?filter=clerk")["items"][0]["id"]
    close.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("for a test")
    dialog.get_by_role("button", name="Close").click()
    page.get_by_text(re.compile("Connection from .* closed")).wait_for()
    # the client reconnects
    connections = console.request("GET", "/connections?filter=clerk")["items"]
    assert before not in [item["id"] for item in connections if item["state"] == "open"]


def test_prepared_transaction_is_committed(console: ConsoleFixture, open_page: OpenPage) -> None:
    session = console.jms().session()
    xid = Xid(1, b"global", b"branch")
    session.xa.start(xid)
    session.producer(Queue("orders")).send("one")
    session.xa.end(xid)
    session.xa.prepare(xid)
    browser_page = open_page(console)
    page = browser_page.open("transactions", "prepared")
    browser_page.wait_for_text(f"1:{b'global'.hex()}:{b'branch'.hex()}")
    page.get_by_role("button", name="Commit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("1 published message will become ready").wait_for()
    dialog.get_by_role("button", name="Commit").click()
    browser_page.wait_for_text("There are no transactions")
    assert console.item("orders")["ready"] == 1


def test_slot_is_deleted_and_all_segments_stay_listed(tmp_path: Path, open_page: OpenPage) -> None:
    with ConsoleFixture(tmp_path, SMALL_SEGMENTS) as console:
        for _ in range(4):
            console.publish("orders", body="x" * 700_000)
        wait_until(lambda: len(console.request("GET", "/journal")["segments"]) > 2, "segments")
        console.request("PUT", "/journal/slots/spark", {"position": 1})
        page = open_page(console).open("journal", "spark")
        page.get_by_role("button", name="Delete spark").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        page.get_by_text("Slot spark deleted").wait_for()
        page.get_by_text("No retention slots").wait_for()
        segments = console.request("GET", "/journal")["segments"]
        names = page.get_by_role("table", name="Segments").locator("tbody th")
        expect(names).to_have_text(
            [str(segment["first_sequence"]) for segment in reversed(segments)]
        )


def _reading(page: Page, name: str) -> Locator:
    return page.locator(".reading", has_text=name).locator(".figure")


@pytest.mark.parametrize("name", ["~", "..", "a/b c?d#e&f=g%20", "zählerstände", "topic"])
def test_destination_page_accepts_any_name(
    name: str, console: ConsoleFixture, open_page: OpenPage
) -> None:
    with console.api() as client:
        assert client.write([row(name, b"hello")]).status == 200
    browser_page = open_page(console)
    page = browser_page.open("destinations")
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", name=name, level=1).wait_for()
    browser_page.wait_for_text("1 to 1 of 1")
    expect(_reading(page, "Ready")).to_have_text("1")
    page.locator("tbody a").first.click()
    browser_page.wait_for_text("hello")
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete message").click()
    page.get_by_text("1 message deleted").wait_for()
