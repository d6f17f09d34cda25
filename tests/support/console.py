"""A broker with sample data for every page of the console, and a browser to open the pages."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient, connect
from sluicemq.clients.jmq import JavaObject, JmqClient, Queue, Topic, Xid
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.rows import row
from tests.support.http import Client
from tests.support.polling import wait_until

HOST: Final = "127.0.0.1"
LISTEN: Final = tuple(
    f"{name}://{HOST}:0" for name in ("http", "phpmq", "msglite", "vibemq", "jmq")
)
SCREENSHOT_DIRECTORY: Final = Path(__file__).parents[2] / "build" / "screenshots"
TIMEOUT_MS: Final = 60_000
"""Time limit for a page to show a text; other tests may delay the browser."""
REFRESH_MS: Final = 5_000
"""Longest interval in which a page of the console requests its data again."""

expect.set_options(timeout=TIMEOUT_MS)

SCRIPT_PAYLOAD: Final = "<img src=x onerror=\"window.hacked='%s'\">"
"""A text that runs as a script if it is inserted as HTML."""
NAVIGATE: Final = """hash => {
  if (location.hash === hash) return;
  document.querySelector('main h1')?.setAttribute('data-left', '');
  location.hash = hash;
}"""
"""Navigate by hash. Marks the old heading, which remains until the new page is rendered."""
DESKTOP_VIEWPORT: Final = {"width": 1280, "height": 900}
PHONE_VIEWPORT: Final = {"width": 360, "height": 740}


class ConsoleFixture:
    """A broker with a console, and clients of the broker."""

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, str] | None = None,
        listen: Sequence[str] = LISTEN,
    ) -> None:
        self.broker = LocalBroker(directory, listen, environment=dict(options or {}))
        self.stack = ExitStack()

    @property
    def url(self) -> str:
        """Return the URL of the console."""
        return f"http://{HOST}:{self.broker.port('http')}/console/"

    def port(self, protocol: str) -> int:
        return self.broker.port(protocol)

    def api(self, **headers: str) -> Client:
        return Client(self.broker.port("http"), None, **headers)

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """Send a request that must succeed, and return its response."""
        with self.api(**headers) as client:
            content = None if body is None else json.dumps(body).encode()
            response = client.request(method, path, content)
            assert response.status < 300, (method, path, response)
            return response.json() if response.body else None

    def create(self, name: str, kind: str = "queue", **settings: object) -> None:
        self.request("PUT", f"/destinations/{kind}/{quote(name, safe='')}", settings)

    def publish(self, name: str, **message: object) -> str:
        path = f"/destinations/queue/{quote(name, safe='')}/messages"
        return str(self.request("POST", path, message)["id"])

    def item(self, name: str, kind: str = "queue") -> Any:
        return self.request("GET", f"/destinations/{kind}/{quote(name, safe='')}")

    def jms(self, client_id: str = "") -> BlockingClient:
        return self.stack.enter_context(
            BlockingClient(JmqClient.connect, HOST, self.port("jmq"), client_id=client_id)
        )

    def phpmq(self) -> BlockingClient:
        return self.stack.enter_context(
            BlockingClient(PhpmqClient.connect, HOST, self.port("phpmq"))
        )

    def __enter__(self) -> ConsoleFixture:
        self.broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()
        # an orderly stop would wait for the idle connections that the browser keeps
        self.broker.kill()

    def create_sample_data(self) -> None:
        """Create at least one item for every table and chart of the console."""
        self.create("orders", max_attempts=5)
        self.publish("orders", body="hello", properties={"color": "red", "n": 5}, type="greeting")
        self.publish(
            "orders", body_json={"order": 17, "lines": [{"sku": "A-1", "n": 2}], "note": None}
        )
        self.publish("orders", body_base64=base64.b64encode(bytes(range(256))).decode())
        self.publish("orders", body_kind="none", correlation_id="c-1", priority=7)
        for number in range(120):
            self.publish("bulk", body=f"number {number}", properties={"even": number % 2 == 0})
        self.create("expiring", message_ttl=1, dead_letter=True)
        for number in range(3):
            self.publish("expiring", body=f"late {number}")
        self.create("mail")
        self.request("POST", "/destinations/queue/mail/pause")
        self._create_with_other_protocols()
        self.request("PUT", "/journal/slots/spark-bronze", {"position": 1})
        with self.api() as client:
            assert client.write([row("invoices", b"x")] * 3, writer="spark-orders").status == 200
        wait_until(lambda: self._dead_letters() == 3, "dead letters")

    def _dead_letters(self) -> int:
        queues = self.request("GET", "/dead-letters")["items"]
        return sum(item["ready"] for item in queues)

    def _create_with_other_protocols(self) -> None:
        """Create messages, subscriptions and transactions with other protocols."""
        jms = self.jms("desk")
        jms.start()
        session = jms.session()
        producer = session.producer(Queue("orders"))
        producer.send({"name": "Anna", "age": 33}, properties={"city": "Oslo"})
        producer.send([1, "two", 3.5])
        producer.send(JavaObject(b"\xac\xed\x00\x05t\x00\x05hello"))
        session.consumer(Topic("prices"), name="desk", durable=True, selector="market = 'eu'")
        other = jms.session()
        xid = Xid(1, b"global", b"branch")
        other.xa.start(xid)
        other.producer(Queue("orders")).send("in a transaction")
        other.xa.end(xid)
        other.xa.prepare(xid)
        vibemq = self.stack.enter_context(connect(f"vibemq://{HOST}:{self.port('vibemq')}"))
        vibemq.publish("events", {"kind": "login"})
        consumer = self.phpmq()
        self.publish("invoices", body="one")
        consumer.subscribe("invoices", 1)
        consumer.receive(10)


@contextmanager
def open_context(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """Open a browser context: pages that share cookies and storage."""
    context = browser.new_context(
        **{"viewport": DESKTOP_VIEWPORT, "color_scheme": "dark", **options}
    )
    context.set_default_timeout(TIMEOUT_MS)
    try:
        yield context
    finally:
        context.close()


class SharedContext:
    """A browser context for one test after another, without what the test before has left.

    An empty page of the same site keeps the process that draws the pages: the scripts of the
    console have been compiled in it.
    """

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self._empty_page = context.new_page()
        self._empty_page.route("**", lambda route: route.fulfill(content_type="text/html"))
        self._empty_page.goto(f"http://{HOST}/")
        self._devtools = context.new_cdp_session(self._empty_page)

    def clear(self) -> None:
        """Close the pages of the test, and delete its cookies and stored settings."""
        for page in self.context.pages:
            if page is not self._empty_page:
                page.close()
        self.context.clear_cookies()
        self._devtools.send(
            "Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "local_storage"}
        )


@contextmanager
def open_console(
    context: BrowserContext, console: ConsoleFixture, trusted: tuple[str, ...] = ()
) -> Iterator[BrowserPage]:
    """Open a page of the console, and check that no error occurred in it.

    `trusted` are parts of messages of the browser's console that are expected.
    """
    browser_page = BrowserPage(context, console, trusted)
    yield browser_page
    assert not browser_page.problems, browser_page.problems


class BrowserPage:
    """A browser tab. `problems` lists script errors and violations of the security policy."""

    def __init__(
        self, context: BrowserContext, console: ConsoleFixture, trusted: tuple[str, ...]
    ) -> None:
        self.context = context
        self.console = console
        self.trusted = trusted
        self.problems: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("pageerror", self._record_error)
        self.page.on("console", self._record_console_message)

    def _record_error(self, error: Error) -> None:
        self.problems.append(f"{error.message}\n{error.stack}")

    def _record_console_message(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(part in message.text for part in self.trusted):
            self.problems.append(message.text)

    def open(self, route: str = "", expect: str = "") -> Page:
        """Navigate to a route of the console and wait until it shows the text `expect`."""
        url = f"{self.console.url}#/{route}"
        if self.page.url.startswith(self.console.url):
            self.page.evaluate(NAVIGATE, f"#/{route}")
        else:
            self.page.goto(url)
        self.page.wait_for_selector("main h1:not([data-left])")
        if expect:
            self.wait_for_text(expect)
        return self.page

    def wait_for_text(self, text: str) -> None:
        """Wait until the page shows the text."""
        self.page.locator("main").get_by_text(text).first.wait_for()

    def save_screenshot(self, name: str) -> None:
        """Save a screenshot for manual inspection, if the variable SCREENSHOTS is set."""
        if not os.environ.get("SCREENSHOTS"):
            return
        SCREENSHOT_DIRECTORY.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOT_DIRECTORY / f"{name}.png", full_page=True)


OpenPage = Callable[..., BrowserPage]
