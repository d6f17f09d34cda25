"""The overview of the broker, its history, and its alarms."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from sluicemq.admin.history import STEP
from sluicemq.admin.overview import MAX_PREPARED_MS, MIN_MEASUREMENTS, alarms
from sluicemq.broker import Broker, EngineSettings, ManualClock
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.journal import MemoryJournal
from sluicemq.journal.space import SpaceLevel, SpaceReport
from sluicemq.management.broker import ListenerItem
from sluicemq.model.destination import Address, Kind
from sluicemq.model.histogram import Histogram
from sluicemq.model.message import Durability, Message
from tests.admin.context import context
from tests.admin.test_connections import connection_with, set_connections
from tests.server.conftest import Start
from tests.support.api import ApiFixture, HttpClient, in_event_loop
from tests.support.http import HTTP, PHPMQ, Client
from tests.support.polling import wait_until

LISTENER = ListenerItem("phpmq://x:1", "phpmq", False, 1, 10, 5, 2, 300, 400, {})


def advance_history(api_fixture: ApiFixture, count: int = 1) -> None:
    for _ in range(count * STEP):
        api_fixture.clock.advance(1000)
        deque(api_fixture.context.history.round(1.0), maxlen=0)


def send(api_fixture: ApiFixture, queue: str, *bodies: bytes) -> None:
    destination = api_fixture.broker.destinations.queue(queue)
    for body in bodies:
        message = Message(destination.address, body, durability=Durability.NONE)
        api_fixture.broker.publish(destination, message)
    api_fixture.broker.flush()


async def get_json(http_client: HttpClient, path: str) -> dict[str, Any]:
    response = await http_client.request("GET", path)
    assert response.status == 200, response
    document: dict[str, Any] = response.json()
    return document


@in_event_loop
async def test_overview_contains_totals(api_fixture: ApiFixture) -> None:
    connections: Any = set_connections(
        api_fixture, connection_with(1), connection_with(2, protocol="jmq")
    )
    connections.listeners = lambda: [LISTENER]
    api_fixture.broker.destinations.topic("news")
    send(api_fixture, "q", b"a", b"bcd")
    api_fixture.broker.transactions.begin()
    traffic = api_fixture.broker.traffic_of("phpmq")
    traffic.published += 2
    api_fixture.context.process.lag.record(0.004)
    advance_history(api_fixture)
    overview = await get_json(api_fixture.http_client(), "/overview")
    totals = overview["totals"]
    assert (totals["destinations"], totals["queues"], totals["topics"]) == (2, 1, 1)
    assert (totals["connections"], totals["ready"], totals["bytes"]) == (2, 2, 4)
    assert (totals["published"], totals["published_bytes"], totals["transactions"]) == (2, 4, 1)
    assert totals["publish_rate"] > 0
    assert overview["protocols"]["jmq"]["connections"] == 1
    assert overview["protocols"]["phpmq"]["published"] == 2
    assert overview["listeners"] == [msgspec.to_builtins(LISTENER)]
    assert overview["journal"]["enabled"] is False
    assert overview["loop_lag_ms"]["max"] == 4
    assert overview["message_memory_bytes"] > 4
    assert overview["state"] == "serving"
    assert overview["alarms"] == []
    history = overview["history"]
    assert history["publish_rate"] == [2 / STEP]
    assert (history["step_ms"], history["ready"]) == (STEP * 1000, [2])
    assert history["loop_lag_ms"] == [pytest.approx(4)]
    assert history["end"] == api_fixture.clock.wall


@in_event_loop
async def test_overview_is_created_once_a_second(api_fixture: ApiFixture) -> None:
    calls: list[int] = []
    connections: Any = api_fixture.context.connections

    def listeners() -> list[ListenerItem]:
        calls.append(1)
        return []

    connections.listeners = listeners
    http_client = api_fixture.http_client()
    for _ in range(5):
        await get_json(http_client, "/overview")
    assert len(calls) == 1
    await get_json(http_client, "/overview?fresh=true")
    assert len(calls) == 2
    api_fixture.clock.advance(1000)
    await get_json(http_client, "/overview")
    assert len(calls) == 3
    api_fixture.add("anna")
    anna = api_fixture.http_client()
    await anna.login("anna")
    await get_json(anna, "/overview?fresh=true")
    assert len(calls) == 3


@in_event_loop
async def test_listeners_are_visible_to_superusers_only(api_fixture: ApiFixture) -> None:
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", "nothing: browse")
    connections: Any = api_fixture.context.connections
    connections.listeners = lambda: [replace(LISTENER, connections=10)]
    anna, root, anonymous = (api_fixture.http_client() for _ in range(3))
    await anna.login("anna")
    await root.login("root")
    for _ in range(2):  # the page is cached per identity
        overview = await get_json(root, "/overview?fresh=true")
        assert overview["listeners"]
        assert [alarm["code"] for alarm in overview["alarms"]] == ["connections-full"]
        overview = await get_json(anna, "/overview?fresh=true")
        assert overview["listeners"] == overview["alarms"] == []
    for path in ("/overview", "/history"):
        assert (await anonymous.request("GET", path)).status == 401


@in_event_loop
async def test_history_of_the_broker_and_of_one_destination(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna", "jobs: browse")
    send(api_fixture, "jobs", b"a")
    advance_history(api_fixture, 3)
    send(api_fixture, "jobs", b"b")
    send(api_fixture, "secret", b"b")
    advance_history(api_fixture, 12)
    anna = api_fixture.http_client()
    await anna.login("anna")
    history = await get_json(anna, "/history?minutes=1")
    assert history["ready"] == [3] * 12
    history = await get_json(anna, "/history?minutes=60")
    assert history["ready"] == [1] * 3 + [3] * 12
    history = await get_json(anna, "/history?destination=jobs")
    assert history["ready"] == [1] * 3 + [2] * 12
    assert history["loop_lag_ms"] == history["fdatasync_ms"] == []
    assert history["publish_rate"][0] > 0
    assert (await get_json(anna, "/history?name_base64=am9icw"))["ready"] == history["ready"]
    # without permission the response does not depend on existence
    for name in ("secret", "nothing"):
        response = await anna.request("GET", f"/history?destination={name}")
        assert (response.status, response.code) == (403, "forbidden")
    response = await anna.request("GET", "/history?destination=jobs&kind=topic")
    assert (response.status, response.code) == (404, "destination-not-found")
    for query in ("minutes=0", "minutes=61", "minutes=x", "kind=file"):
        assert (await anna.request("GET", f"/history?{query}")).status == 400


def test_overview_of_a_running_broker(start: Start) -> None:
    broker = start(HTTP, PHPMQ)
    with Client(broker.port("http")) as client:
        overview = client.get("/overview").json()
        assert overview["resident_memory_bytes"] > 1 << 20
        assert overview["journal"]["enabled"] is True
        assert overview["journal"]["segments"] >= 1
        assert 0 <= overview["uptime_ms"] < 60_000
        assert [listener["protocol"] for listener in overview["listeners"]] == ["http", "phpmq"]

        with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as peer:
            peer.send("q", b"x")

        def measured() -> bool:
            overview = client.get("/overview").json()
            return bool(overview["loop_lag_ms"]["max"]) and bool(
                overview["journal"]["fdatasync_ms"]["max"]
            )

        wait_until(measured, "nothing is measured")


# --- alarms ---------------------------------------------------------------------------------------


class AlarmFixture:
    """A healthy broker, whose alarms tests raise."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        self.clock = ManualClock()
        settings = EngineSettings(max_destinations=10, memory_limit=1000)
        self.broker = Broker(journal or MemoryJournal(), self.clock, settings)
        self.context = context(self.broker)
        self.lag = Histogram()
        self.syncs = Histogram()
        self.listeners: list[ListenerItem] = [LISTENER]

    def codes(self) -> list[str]:
        current_alarms = list(
            alarms(self.context, self.listeners, self.lag.read(), self.syncs.read())
        )
        assert all(alarm.message.endswith(".") for alarm in current_alarms)
        return [alarm.code for alarm in current_alarms]


@pytest.fixture
def alarm_fixture() -> AlarmFixture:
    return AlarmFixture()


def test_healthy_broker_has_no_alarms(alarm_fixture: AlarmFixture) -> None:
    for _ in range(100):
        alarm_fixture.lag.record(0.001)
        alarm_fixture.syncs.record(0.01)
    alarm_fixture.lag.record(5.0)  # one measurement is too few
    alarm_fixture.broker.core.memory = 900
    for number in range(9):
        alarm_fixture.broker.destinations.queue(str(number))
    alarm_fixture.listeners = [replace(LISTENER, connections=9)]
    assert alarm_fixture.codes() == []


def test_each_condition_raises_its_alarm(alarm_fixture: AlarmFixture) -> None:
    alarm_fixture.broker.core.memory = 901
    assert alarm_fixture.codes() == ["memory"]
    alarm_fixture.broker.core.memory = 0
    alarm_fixture.listeners = [LISTENER, replace(LISTENER, connections=10)]
    assert alarm_fixture.codes() == ["connections-full"]
    alarm_fixture.listeners = []
    for _ in range(MIN_MEASUREMENTS):
        alarm_fixture.syncs.record(0.8)
    assert alarm_fixture.codes() == ["disk-slow"]
    alarm_fixture.syncs = Histogram()
    for _ in range(MIN_MEASUREMENTS):
        alarm_fixture.lag.record(0.2)
    assert alarm_fixture.codes() == ["loop-slow"]
    alarm_fixture.lag = Histogram()
    for number in range(10):
        alarm_fixture.broker.destinations.queue(str(number))
    assert alarm_fixture.codes() == ["destinations-full"]
    alarm_fixture.broker.remove(alarm_fixture.broker.destinations[Address(Kind.QUEUE, "0")])
    process: Any = alarm_fixture.context.process
    process.now = "stopping"
    assert alarm_fixture.codes() == ["not-serving"]


def test_old_prepared_transaction_is_an_alarm(alarm_fixture: AlarmFixture) -> None:
    transactions = alarm_fixture.broker.transactions
    transactions.prepare(transactions.begin(), b"x")
    alarm_fixture.clock.advance(MAX_PREPARED_MS)
    assert alarm_fixture.codes() == []
    alarm_fixture.clock.advance(1)
    assert alarm_fixture.codes() == ["prepared"]
    transactions.rollback(transactions.prepared[b"x"])
    assert alarm_fixture.codes() == []


class NearlyFullJournal(MemoryJournal):
    """A journal on a nearly full disk, with most space retained by a slot."""

    level = SpaceLevel.ENOUGH

    def space_state(self) -> SpaceReport:
        return SpaceReport(self.level, 100, 10_000, 500, 625, 30, 64)

    def bytes_held_by_slots(self) -> dict[str, int]:
        return {"lake": 4711}


def test_disk_space_names_the_slots_that_hold_it() -> None:
    alarm_fixture = AlarmFixture(NearlyFullJournal())
    journal = alarm_fixture.broker.journal
    assert isinstance(journal, NearlyFullJournal)
    assert alarm_fixture.codes() == []
    journal.level = SpaceLevel.LOW
    assert alarm_fixture.codes() == ["disk-space"]
    [alarm] = alarms(
        alarm_fixture.context, [], alarm_fixture.lag.read(), alarm_fixture.syncs.read()
    )
    assert "lake holds 4711 bytes" in alarm.message
    journal.level = SpaceLevel.EXHAUSTED
    assert alarm_fixture.codes() == ["disk-full"]


def test_few_measurements_are_no_alarm(alarm_fixture: AlarmFixture) -> None:
    for _ in range(MIN_MEASUREMENTS - 1):
        alarm_fixture.syncs.record(2.0)
        alarm_fixture.lag.record(2.0)
    assert alarm_fixture.codes() == []
