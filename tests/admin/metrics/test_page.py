"""`GET /metrics` of an application and of a broker process."""

from __future__ import annotations

import asyncio
import gc
import http.client
from pathlib import Path

from sluicemq.admin.app import Application
from sluicemq.admin.collectors import (
    FRESH_SECONDS,
    Pauses,
    RequestCounts,
    ScrapeState,
    usage,
)
from sluicemq.admin.http_session import HttpService
from sluicemq.admin.metrics import (
    FAMILIES,
    PROCESS,
    TEXT,
    Exposition,
)
from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.rows import row
from tests.admin.context import context
from tests.admin.metrics.reading import Scrape, parse
from tests.admin.test_http_session import HEAD, SessionFixture, in_event_loop, read_responses
from tests.server.conftest import Start
from tests.support.http import HTTP, PHPMQ, TIMEOUT, Client, basic_auth

SCRAPE_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def get_metrics(port: int, accept: str = "", **headers: str) -> tuple[int, str, bytes]:
    """Return status, media type and body of a scrape."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    connection.request("GET", "/metrics", headers={"Accept": accept, **headers})
    response = connection.getresponse()
    result = response.status, response.getheader("Content-Type", ""), response.read()
    connection.close()
    return result


def get_scrape(broker: LocalBroker) -> Scrape:
    status, media, body = get_metrics(broker.port("http"))
    assert (status, media) == (200, TEXT)
    return parse(body)


def test_broker_with_all_features_exports_all_families(start: Start) -> None:
    broker = start(HTTP, PHPMQ)
    port = broker.port("http")
    with Client(port) as client:
        client.write([row("orders", b"one"), row("orders", b"two")])
        client.write([row("topic:news", b"x")], writer="other")
        assert client.request("PUT", "/journal/slots/reader", b'{"position": 1}').status == 200
        client.request("DELETE", "/journal/slots/nobodys")
        scrape = get_scrape(broker)
    assert scrape.value("sluicemq_journal_slot_sequence", slot="reader") == 1
    lag = scrape.value("sluicemq_journal_slot_lag_records", slot="reader")
    durable = scrape.value("sluicemq_journal_durable_sequence")
    assert lag is not None
    assert durable is not None
    assert lag == durable - 1
    assert scrape.value("sluicemq_journal_slot_lost", slot="reader") == 0
    size = scrape.value("sluicemq_journal_size_bytes")
    assert scrape.value("sluicemq_journal_slot_lag_bytes", slot="reader") == size
    orders = {"destination": "orders", "kind": "queue"}
    assert scrape.value("sluicemq_destination_messages_published_total", **orders) == 2
    assert scrape.value("sluicemq_protocol_messages_published_total", protocol="http") == 3
    assert scrape.value("sluicemq_protocol_connections", protocol="http") == 2
    listener = {"listener": f"http://127.0.0.1:{port}", "protocol": "http"}
    assert scrape.value("sluicemq_listener_connections", **listener) == 2
    assert (
        scrape.value(
            "sluicemq_http_requests_total",
            method="PUT",
            route="/api/v1/journal/slots/{name}",
            status="200",
        )
        == 1
    )
    assert scrape.value("sluicemq_audit_events_total", event="change") == 2
    assert scrape.value("sluicemq_journal_fdatasync_duration_seconds_count")
    resident = scrape.value("process_resident_memory_bytes")
    assert resident is not None
    assert resident > 1 << 20
    free_bytes = scrape.value("sluicemq_journal_disk_free_bytes")
    disk_size = scrape.value("sluicemq_journal_disk_size_bytes")
    assert free_bytes is not None
    assert disk_size is not None
    assert 0 < free_bytes <= disk_size
    exported = set(scrape.families)
    # absent: traces (disabled), subscriptions, and connections closed because of a limit
    missing = {family.name for family in FAMILIES} - exported
    assert missing == {
        "sluicemq_listener_connections_closed",
        "sluicemq_tracing_spans",
        *(family.name for family in FAMILIES if family.name.startswith("sluicemq_subscription_")),
    }


def test_broker_with_users_requires_authentication(start: Start, tmp_path: Path) -> None:
    directory = ["--data-dir", str(tmp_path / "broker")]
    (tmp_path / "secret").write_text("correct horse battery\n")
    for user, *rights in (("monitor", "*", "browse"), ("anna", "*s", "browse", "consume")):
        secret = str(tmp_path / "secret")
        assert main(["users", "add", user, "--password-file", secret, *directory]) == 0
        assert main(["permissions", "grant", user, *rights, *directory]) == 0
    broker = start(HTTP)
    port = broker.port("http")
    assert get_metrics(port)[0] == 401
    assert get_metrics(port, Authorization=basic_auth("anna", "correct horse battery"))[0] == 403
    assert get_metrics(port, Authorization=basic_auth("monitor", "correct horse battery"))[0] == 200
    broker.stop()
    # unless public metrics are enabled
    environment = {"SLUICEMQ_HTTP__PUBLIC_METRICS": "true"}
    assert get_metrics(start(HTTP, environment=environment).port("http"))[0] == 200


@in_event_loop
async def test_concurrent_scrapes_get_the_same_response() -> None:
    fixture = SessionFixture()
    scrape_state = ScrapeState(fixture.broker)
    fixture.http = HttpService(
        Application(context(fixture.broker, scrape_state=scrape_state)), HEAD
    )
    transports = [fixture.connect() for _ in range(3)]
    for transport in transports:
        transport.session.receive(SCRAPE_REQUEST)
    await fixture.run_until_idle()
    [first], *remaining = [read_responses(transport) for transport in transports]
    assert first[0] == 200
    assert all(other_responses == [first] for other_responses in remaining)
    # a later scrape gets a new response
    scrape_state.built_at -= FRESH_SECONDS
    transport = fixture.connect()
    transport.session.receive(SCRAPE_REQUEST)
    await fixture.run_until_idle()
    [(_, second_body)] = read_responses(transport)
    route = {"method": "GET", "route": "/metrics", "status": "200"}
    assert parse(second_body).value("sluicemq_http_requests_total", **route) == 3


@in_event_loop
async def test_scrape_of_ten_thousand_destinations_does_not_block_the_event_loop() -> None:
    """The event loop continues between slices, and the number of samples is bounded."""
    fixture = SessionFixture()
    fixture.scan_time.limit = 500
    for number in range(10_000):
        fixture.broker.destinations.declare(
            Address(Kind.QUEUE, f"q{number}"), DestinationSettings()
        )
    scrape_state = ScrapeState(fixture.broker, limit=100)
    fixture.http = HttpService(
        Application(context(fixture.broker, scrape_state=scrape_state)), HEAD
    )
    transport = fixture.connect()
    transport.session.receive(SCRAPE_REQUEST)
    iterations = 0
    while not transport.written:
        iterations += 1
        await asyncio.sleep(0)
        fixture.run_event_loop()
    [(status, body)] = read_responses(transport)
    assert status == 200
    names = parse(body).names("sluicemq_destination_messages_ready")
    assert len(names) == 100  # the others have no messages, so there is no sum
    assert iterations > 5


def test_requests_without_an_endpoint_share_one_label() -> None:
    async def requests() -> Scrape:
        fixture = SessionFixture()
        for line in (b"GET /a", b"GET /b", b"FOO /c", b"POST /metrics"):
            transport = fixture.connect()
            transport.session.receive(
                line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
            )
            await fixture.run_until_idle()
        transport = fixture.connect()
        transport.session.receive(SCRAPE_REQUEST)
        await fixture.run_until_idle()
        [(_, body)] = read_responses(transport)
        return parse(body)

    scrape = asyncio.run(requests())
    name = "sluicemq_http_requests_total"
    assert scrape.value(name, method="", route="", status="404") == 3
    assert scrape.value(name, method="", route="", status="405") == 1
    assert scrape.names(name, "method") == {""}


def test_requests_are_counted_and_timed() -> None:
    requests = RequestCounts()
    requests.record("GET", "/a", 200, 0.5)
    requests.record("GET", "/a", 404, 0.25)
    exposition = Exposition()
    requests.add_to(exposition)
    scrape = parse(exposition.text())
    route = {"method": "GET", "route": "/a"}
    assert scrape.value("sluicemq_http_requests_total", **route, status="404") == 1
    assert scrape.value("sluicemq_http_request_duration_seconds_count", **route) == 2
    assert scrape.value("sluicemq_http_request_duration_seconds_sum", **route) == 0.75


def test_garbage_collection_pauses_are_measured_from_the_first_scrape() -> None:
    pauses = Pauses()
    gc.collect()
    assert pauses.durations.read().count == 0
    pauses.begin()
    pauses.begin()
    try:
        gc.collect()
        assert pauses.durations.read().count == 1
    finally:
        gc.callbacks.pop()
    assert not any(getattr(callback, "__self__", None) is pauses for callback in gc.callbacks)


def test_process_metrics_match_the_operating_system() -> None:
    now = usage()
    assert now[PROCESS["cpu"]] > 0
    assert now[PROCESS["started"]] > 0
    assert now[PROCESS["threads"]] >= 1
    assert now[PROCESS["resident"]] > 1 << 20
    with Path("/dev/null").open() as first:
        assert usage()[PROCESS["files"]] >= 4
        assert first.fileno() >= 0
