"""Requests that scan messages stop at the end of their scan time and continue later."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, NamedTuple

import pytest

from sluicemq.admin import clients, destinations
from sluicemq.admin.errors import ApiError
from sluicemq.admin.time_slices import RUN, TimeSlices
from sluicemq.broker import Destination, Window
from sluicemq.management.operation import SortedPageQuery
from sluicemq.model.access import Identity
from sluicemq.model.destination import Address, DestinationSettings, Kind
from tests.admin.context import AttachedConsumer, connection_item
from tests.admin.destinations import queue, read, send, topic
from tests.support.api import ApiFixture, in_event_loop
from tests.support.broker import Reader

MESSAGES = 300
MESSAGE_PATH = "/destinations/queue/q/messages"
TARGET = {"kind": "queue", "name": "target"}


class Scan(NamedTuple):
    """A request that scans all messages of `state`.

    It checks its deadline at least `iterations` times if it is not reached before.
    """

    method: str
    path: str
    body: dict[str, Any] | None = None
    state: str = "ready"
    iterations: int = 25


def action(name: str, **more: Any) -> Scan:
    state = more.get("state", "ready")
    return Scan("POST", f"{MESSAGE_PATH}/actions", {"action": name, **more}, state)


SCANS = {
    "list": Scan("GET", f"{MESSAGE_PATH}?limit=500"),
    "list by selector": Scan("GET", f"{MESSAGE_PATH}?limit=500&selector=JMSPriority=4"),
    "list unacked by selector": Scan(
        "GET", f"{MESSAGE_PATH}?limit=500&state=unacked&selector=JMSPriority=4", None, "unacked"
    ),
    "list delayed by selector": Scan(
        "GET", f"{MESSAGE_PATH}?limit=500&state=scheduled&selector=JMSPriority=4", None, "scheduled"
    ),
    "skip": Scan("GET", f"{MESSAGE_PATH}?offset=299", None, iterations=1),
    "delete by selector": action("delete", selector="JMSPriority = 4"),
    "delete all": action("delete", all=True),
    "move by selector": action("move", selector="JMSPriority = 4", target=TARGET),
    "copy all": action("copy", all=True, target=TARGET),
    "move delayed": action("move", all=True, state="scheduled", target=TARGET),
    "delete first delayed": Scan(
        "POST",
        f"{MESSAGE_PATH}/actions",
        {"action": "delete", "all": True, "state": "scheduled", "limit": 1},
        "scheduled",
        iterations=2,
    ),
    "reasons of dead letters": Scan("GET", "/dead-letters"),
    "purge": Scan("POST", "/destinations/queue/q/purge", {}, iterations=1),
    "purge unacked": Scan(
        "POST", "/destinations/queue/q/purge", {"unacked": True}, "unacked", iterations=1
    ),
}


@pytest.mark.parametrize("name", SCANS)
@in_event_loop
async def test_scan_stops_at_the_deadline(api_fixture: ApiFixture, name: str) -> None:
    scan = SCANS[name]
    broker = api_fixture.broker
    jobs = queue(broker)
    broker.destinations.declare(
        Address(Kind.QUEUE, "p"), DestinationSettings(dead_letter_queue="q")
    )
    schedule = {"deliver_at": broker.clock.wall + 60_000} if scan.state == "scheduled" else {}
    send(jobs, *map(str, range(MESSAGES)), broker=broker, **schedule)
    if scan.state == "unacked":
        read(broker, jobs, MESSAGES)
        broker.flush()
    http_client = api_fixture.http_client(local=True)
    api_fixture.scan_time.limit = 10
    api_fixture.scan_time.checks.clear()
    async with asyncio.timeout(30):
        response = await http_client.request(scan.method, scan.path, scan.body)
    assert response.status == 200, response
    document = response.json()
    if "items" in document and "scanned" in document:
        assert len(document["items"]) == (1 if name == "skip" else MESSAGES)
    elif "done" in document:
        assert document["processed"] == MESSAGES
    elif "purged" in document:
        assert document["purged"] == MESSAGES
    times = api_fixture.scan_time.checks
    assert len(times) >= scan.iterations
    # two checks may follow the first that is true: before the pause, and in
    # the flush
    assert max(times) <= api_fixture.scan_time.limit + 4


@in_event_loop
async def test_lists_end_with_their_connections(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    send(queue(broker), *map(str, range(MESSAGES)), broker=broker)
    http_client = api_fixture.http_client(local=True)
    api_fixture.scan_time.limit = 1
    for path in ("/destinations", f"{MESSAGE_PATH}?selector=TRUE"):
        http_client.caller.is_closed = False
        assert (await http_client.request("GET", path)).status == 200
        http_client.caller.is_closed = True
        broker.flush()  # ends the deadline of the request before
        api_fixture.scan_time.checks.clear()
        assert (await http_client.request("GET", path)).code == "client-disconnected"
        assert len(api_fixture.scan_time.checks) < 5


@pytest.mark.parametrize("path", ["/destinations?filter=q", "/dead-letters"])
@in_event_loop
async def test_list_checks_its_time_after_each_destination(
    api_fixture: ApiFixture, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        queue(api_fixture.broker, f"q{number}.dlq")
    checked = Counter[int]()
    may_see = destinations.may_see_destination

    def count(identity: Identity, destination: Destination) -> bool:
        checked[len(api_fixture.scan_time.checks)] += 1
        return may_see(identity, destination)

    monkeypatch.setattr(destinations, "may_see_destination", count)
    api_fixture.scan_time.limit = 1
    response = await api_fixture.http_client(local=True).request("GET", path)
    assert response.json()["total"] == 100
    assert max(checked.values()) <= 4


@in_event_loop
async def test_a_selector_examines_each_scheduled_message_once(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    deliver_at = broker.clock.wall + 60_000
    send(jobs, *map(str, range(MESSAGES)), broker=broker, deliver_at=deliver_at)
    stepped = Counter[int]()

    class Scheduled(dict[int, Any]):
        def values(self) -> Any:
            for sequence, delivery in self.items():
                stepped[sequence] += 1
                yield delivery

    jobs.queue.scheduled = Scheduled(jobs.queue.scheduled)
    path = f"{MESSAGE_PATH}?state=scheduled&selector=JMSPriority=9&limit=1"
    response = await api_fixture.http_client(local=True).request("GET", path)
    assert (response.json()["scanned"], response.json()["next_cursor"]) == (MESSAGES, None)
    assert set(stepped.values()) == {1}


@in_event_loop
async def test_users_take_turns_whatever_the_number_of_their_requests(
    api_fixture: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        queue(api_fixture.broker, f"q{number}")
    examined: list[str] = []
    may_see = destinations.may_see_destination

    def record(identity: Identity, destination: Destination) -> bool:
        examined.append(identity.name)
        return may_see(identity, destination)

    monkeypatch.setattr(destinations, "may_see_destination", record)
    monkeypatch.setattr(TimeSlices, "due", True)
    requests = []
    for name, count in (("anna", 9), ("bert", 1)):
        api_fixture.add(name, "*: browse")
        token = api_fixture.token(name)
        for _ in range(count):
            http_client = api_fixture.http_client()
            http_client.headers["Authorization"] = f"Bearer {token}"
            requests.append(http_client.request("GET", "/destinations"))
    await asyncio.gather(*requests)
    assert (examined.count("anna"), examined.count("bert")) == (90, 10)
    after_bert = examined[::-1].index("bert")
    assert after_bert > 50


@in_event_loop
async def test_requests_of_closed_connections_wait_for_no_slice(
    api_fixture: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, scheduled = api_fixture.broker.scans, []
    schedule = scans.schedule

    def record(step: Callable[[], object], *, outside: bool = False) -> None:
        scheduled.append(step)
        schedule(step, outside=outside)

    monkeypatch.setattr(scans, "schedule", record)
    monkeypatch.setattr(TimeSlices, "due", True)
    caller, turns = api_fixture.http_client(local=True).caller, asyncio.Lock()
    waits = [TimeSlices(api_fixture.broker, caller, turns).wait_if_due() for _ in range(9)]
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.sleep(0)
    caller.is_closed = True
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results[1:]] == [ApiError] * 8
    assert len(scheduled) == 1


@pytest.mark.parametrize("order", ["asc", "desc"])
@in_event_loop
async def test_list_is_sorted_in_several_slices(
    api_fixture: ApiFixture, order: Literal["asc", "desc"]
) -> None:
    numbers = [number * 7 % (10 * RUN) for number in range(10 * RUN)]
    compared = Counter[int]()

    class Key(int):
        def __lt__(self, other: int) -> bool:
            compared[len(api_fixture.scan_time.checks)] += 1
            return super().__lt__(other)

    async def items() -> AsyncIterator[int]:
        for number in numbers:
            yield number

    api_fixture.scan_time.limit = 1
    query = SortedPageQuery(order=order, limit=20, offset=2 * RUN - 10)
    page = await TimeSlices(api_fixture.broker).sorted_page(query, items(), Key, int)
    assert page.items == sorted(numbers, reverse=order == "desc")[2 * RUN - 10 : 2 * RUN + 10]
    assert (page.total, page.next_cursor) == (10 * RUN, str(2 * RUN + 10))
    assert max(compared.values()) <= 3 * RUN


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/transactions/x/rollback"), ("GET", "/connections/x")]
)
@in_event_loop
async def test_search_for_an_id_checks_its_time(
    api_fixture: ApiFixture, method: str, path: str
) -> None:
    registry: Any = api_fixture.context.connections
    for number in range(100):
        api_fixture.broker.transactions.begin()
        registry.views.append(connection_item(number))
    api_fixture.scan_time.limit = 10
    response = await api_fixture.http_client(local=True).request(method, path)
    assert response.status == 404
    assert sum(api_fixture.scan_time.checks) >= 100


LISTS = {
    "/consumers": "ConsumerItem",
    "/subscriptions": "SubscriptionItem",
    "/transactions": "TransactionItem",
}


@pytest.mark.parametrize("path", LISTS)
@in_event_loop
async def test_only_the_items_of_the_page_are_built(
    api_fixture: ApiFixture, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = api_fixture.broker
    registry: Any = api_fixture.context.connections
    for number in range(30):
        broker.transactions.begin()
        subscription = broker.subscribe(topic(broker), f"s{number}")
        consumer = broker.attach(subscription, Reader(broker), Window(1, True))
        registry.attached.append(AttachedConsumer(number, consumer))
    item_type = getattr(clients, LISTS[path])
    built = []

    def build(**fields: Any) -> Any:
        built.append(item_type(**fields))
        return built[-1]

    monkeypatch.setattr(clients, LISTS[path], build)
    response = await api_fixture.http_client().request("GET", f"{path}?limit=4&offset=7")
    assert response.json()["total"] == 30
    assert len(response.json()["items"]) == len(built) == 4


@in_event_loop
async def test_selector_beyond_the_limits_is_rejected(api_fixture: ApiFixture) -> None:
    queue(api_fixture.broker)
    http_client = api_fixture.http_client(local=True)
    for text in ("a=1%20OR%20" * 171 + "a", "a=%27" + "x" * 8192 + "%27"):
        response = await http_client.request("GET", f"{MESSAGE_PATH}?selector={text}")
        assert (response.status, response.code) == (400, "bad-selector")
    body = {"action": "delete", "selector": " OR ".join(["a = 1"] * 171)}
    response = await http_client.request("POST", f"{MESSAGE_PATH}/actions", body)
    assert (response.status, response.code) == (400, "bad-selector")
