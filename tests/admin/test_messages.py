"""Messages over HTTP: pages by offset, cursor and selector, and single decoded messages."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import threading
import zlib
from typing import Any
from urllib.parse import quote

import pytest

from sluicemq.admin import messages
from sluicemq.admin.messages import MAX_BODIES, PREVIEWED_BYTES, view_of_body
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.management.messages import GET_MESSAGE, GET_MESSAGE_BODY
from sluicemq.management.operation import ApiOperation
from sluicemq.management.settings import HttpSettings
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import JournalDamaged
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.protocols.java import Byte, Char, Float, Long, Short, dumps, dumps_map, dumps_stream
from tests.admin.destinations import queue, read, send, topic, unacked_numbers
from tests.server.conftest import Start
from tests.support.api import ApiFixture, HttpClient, in_event_loop
from tests.support.http import HTTP, Client
from tests.support.polling import wait_until

MESSAGES_PATH = "/destinations/queue/q/messages"
SCRIPT = "<script>alert(1)</script>"


async def get_page(http_client: HttpClient, query: str = "", path: str = MESSAGES_PATH) -> Any:
    response = await http_client.request("GET", f"{path}{query}")
    assert response.status == 200, response
    return response.json()


async def bodies(http_client: HttpClient, query: str = "", path: str = MESSAGES_PATH) -> list[str]:
    listing = await get_page(http_client, f"{query}{'&' if query else '?'}body=true", path)
    return [item["body"]["value"] for item in listing["items"]]


@in_event_loop
async def test_offset_selects_the_page(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    order = []
    for priority in (4, 9, 0):
        texts = [f"{priority}.{number}" for number in range(30)]
        send(jobs, *texts, broker=broker, priority=priority)
        order.append((-priority, texts))
    expected = [text for _, texts in sorted(order) for text in texts]
    http_client = api_fixture.http_client(local=True)
    for offset in (0, 1, 29, 30, 31, 59, 88, 89, 90, 500):
        listing = await get_page(http_client, f"?offset={offset}&limit=7&body=true")
        assert [item["body"]["value"] for item in listing["items"]] == expected[offset : offset + 7]
        assert [item["position"] for item in listing["items"]] == list(
            range(offset, min(offset + 7, max(90, offset)))
        )
        assert listing["total"] == 90
        assert (listing["next_cursor"] is None) == (offset + 7 >= 90)


@pytest.mark.parametrize("query", ["", "&selector=priority%20IS%20NULL%20OR%201=1"])
@in_event_loop
async def test_cursor_continues_while_messages_change(api_fixture: ApiFixture, query: str) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    send(jobs, *[str(number) for number in range(40)], broker=broker)
    http_client = api_fixture.http_client(local=True)
    texts: list[str] = []
    cursor = ""
    while True:
        listing = await get_page(http_client, f"?limit=10&body=true&cursor={cursor}{query}")
        texts += [item["body"]["value"] for item in listing["items"]]
        if listing["next_cursor"] is None:
            break
        cursor = listing["next_cursor"]
        reader = read(broker, jobs, 3)
        reader.acknowledge()
        reader.detach()
        if len(texts) < 40:
            send(jobs, f"new {len(texts)}", broker=broker)
    old_texts = [text for text in texts if not text.startswith("new")]
    # no duplicates, and no message that was there all the time is missing
    assert old_texts == sorted(set(old_texts), key=int)
    assert old_texts[-1] == "39"
    assert {str(number) for number in range(20, 40)} <= set(old_texts)
    assert texts[-1].startswith("new")


@in_event_loop
async def test_selector_page_ends_at_its_limit_and_continues(api_fixture: ApiFixture) -> None:
    object.__setattr__(api_fixture.context, "http", HttpSettings(max_scan_messages=30))
    broker = api_fixture.broker
    jobs = queue(broker)
    for number in range(100):
        send(jobs, str(number), broker=broker, properties={"n": number, "odd": number % 2 == 1})
    http_client = api_fixture.http_client(local=True)
    query = f"?selector={quote('n > 70 AND odd')}&body=true"
    listing = await get_page(http_client, query)
    assert listing["items"] == []
    assert listing["scanned"] < 60
    assert listing["total"] is None
    rounds, texts = 1, []
    while listing["next_cursor"] is not None:
        listing = await get_page(http_client, f"{query}&cursor={listing['next_cursor']}")
        texts += [item["body"]["value"] for item in listing["items"]]
        rounds += 1
    assert texts == [str(number) for number in range(71, 100, 2)]
    assert rounds >= 3


@in_event_loop
async def test_invalid_selectors_cursors_and_offsets_are_rejected(api_fixture: ApiFixture) -> None:
    queue(api_fixture.broker)
    http_client = api_fixture.http_client(local=True)
    for query, code in (
        ("?selector=n%20%3E", "bad-selector"),
        ("?cursor=nonsense", "bad-cursor"),
        ("?cursor=5.1.99999999999999999999", "bad-cursor"),
        ("?cursor=4.9999999999999999999.0", "bad-cursor"),
        ("?offset=-1", "bad-parameter"),
        ("?limit=501", "bad-parameter"),
        ("?offset=1&cursor=4.0.0", "bad-parameter"),
        ("?offset=1&selector=n=1", "bad-parameter"),
        ("?state=lost", "bad-parameter"),
    ):
        response = await http_client.request("GET", f"{MESSAGES_PATH}{query}")
        assert (response.status, response.code) == (400, code), query
    response = await http_client.request("GET", f"{MESSAGES_PATH}?subscription=none")
    assert (response.status, response.code) == (404, "subscription-not-found")
    response = await http_client.request("GET", "/destinations/queue/none/messages")
    assert (response.status, response.code) == (404, "destination-not-found")


@in_event_loop
async def test_state_selects_unacked_and_scheduled_messages(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, retry_delay=1000)
    send(jobs, "a", "b", "c", "d", broker=broker)
    send(jobs, "scheduled", broker=broker, deliver_at=broker.clock.wall + 9000)
    reader = read(broker, jobs, 3)
    broker.release(reader.consumer, unacked_numbers(reader.consumer)[:1], timed_out=True)
    broker.flush()
    transaction = broker.transactions.begin()
    broker.transactions.acknowledge(
        transaction, reader.consumer, unacked_numbers(reader.consumer)[0]
    )
    broker.revoke(reader.consumer.window)
    broker.flush()
    http_client = api_fixture.http_client(local=True)
    unacked_page = await get_page(http_client, "?state=unacked&body=true")
    assert [(item["body"]["value"], item["unacked_by"]) for item in unacked_page["items"]] == [
        ("c", "consumer"),
        ("d", "consumer"),
        ("b", "transaction"),
    ]
    assert [item["attempts"] for item in unacked_page["items"]] == [1, 1, 1]
    assert not any(item["redelivered"] for item in unacked_page["items"])
    assert unacked_page["total"] == 3
    scheduled_items = (await get_page(http_client, "?state=scheduled&body=true"))["items"]
    wall = broker.clock.wall
    assert [(item["body"]["value"], item["deliver_at"]) for item in scheduled_items] == [
        ("scheduled", wall + 9000),
        ("a", wall + 1000),
    ]
    assert [item["redelivered"] for item in scheduled_items] == [False, True]
    assert await bodies(http_client, "?state=unacked&offset=1&limit=1") == ["d"]
    first = await get_page(http_client, "?state=unacked&limit=2")
    assert await bodies(http_client, f"?state=unacked&cursor={first['next_cursor']}") == ["b"]
    assert await bodies(http_client, "?state=scheduled&selector=JMSPriority=9") == []
    assert await bodies(http_client, "?state=scheduled&selector=JMSPriority=4") == [
        "scheduled",
        "a",
    ]


@in_event_loop
async def test_messages_of_a_subscription_are_listed(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    news_topic = topic(broker, retain_without_subscriptions=True)
    send(news_topic, "held", broker=broker)
    path = "/destinations/topic/t/messages"
    http_client = api_fixture.http_client(local=True)
    assert await bodies(http_client, "", path) == ["held"]
    broker.subscribe(news_topic, "all/one", durable=True)
    assert await bodies(http_client, "", path) == []
    assert await bodies(http_client, "?subscription=all%2Fone", path) == ["held"]
    [item] = (await get_page(http_client, "?subscription=all%2Fone", path))["items"]
    assert item["subscription"] == "all/one"
    response = await http_client.request("GET", f"{path}/{item['id']}?subscription=all%2Fone")
    assert response.json()["body"]["value"] == "held"
    assert (await http_client.request("GET", f"{path}/{item['id']}")).code == "message-not-found"


@in_event_loop
async def test_message_has_every_field(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    properties = {
        "flag": True,
        "n": -3,
        "big": 1 << 60,
        "pi": 3.5,
        "inf": float("inf"),
        "s": SCRIPT,
        "raw": b"\x00\xff",
        "none": None,
        "\udc80": "\ud800",
    }
    [number] = send(
        queue(broker),
        '{"a": [1]}',
        broker=broker,
        kind=BodyKind.JSON,
        priority=7,
        expiration=broker.clock.wall + 5000,
        message_id="m-1",
        correlation_id="c-1",
        reply_to=Address(Kind.TOPIC, "answers"),
        type="order",
        properties=properties,
        origin=Origin.VIBEMQ,
    )
    item = await get_page(api_fixture.http_client(local=True), f"/{number}")
    wall = broker.clock.wall
    expected = {
        "id": str(number),
        "state": "ready",
        "protocol": "vibemq",
        "body_kind": "json",
        "size": 10,
        "priority": 7,
        "timestamp": wall,
        "published": wall,
        "expiration": wall + 5000,
        "deliver_at": 0,
        "attempts": 0,
        "redelivered": False,
        "durability": "lazy",
        "message_id": "m-1",
        "correlation_id": "c-1",
        "reply_to": {"kind": "topic", "name": "answers"},
        "type": "order",
        "property_count": 9,
        "body": {"kind": "json", "encoding": "json", "value": '{"a": [1]}', "truncated": False},
        "dead_letter": None,
    }
    assert {name: item[name] for name in expected} == expected
    assert item["properties"] == {
        "flag": {"type": "boolean", "value": True},
        "n": {"type": "int", "value": -3},
        "big": {"type": "int", "value": str(1 << 60)},
        "pi": {"type": "float", "value": 3.5},
        "inf": {"type": "float", "value": "inf"},
        "s": {"type": "string", "value": SCRIPT},
        "raw": {"type": "bytes", "value": "AP8="},
        "none": {"type": "null", "value": None},
        "\\udc80": {"type": "string", "value": "\\ud800"},
    }


def message(body: bytes, kind: BodyKind, origin: Origin = Origin.JMQ) -> Message:
    return Message(Address(Kind.QUEUE, "q"), body, kind, origin)


def test_bodies_are_decoded_by_the_protocols_own_code() -> None:
    encoded = dumps_map({"a": 1, "b": Byte(2), "s": "x", "raw": b"\1", "n": None, "f": Float(0.5)})
    view = view_of_body(message(encoded, BodyKind.MAP), 65536)
    assert (view.kind, view.encoding) == ("map", "map")
    assert {name: (entry.type, entry.value) for name, entry in view.value.items()} == {
        "a": ("int", 1),
        "b": ("byte", 2),
        "s": ("string", "x"),
        "raw": ("bytes", "AQ=="),
        "n": ("null", None),
        "f": ("float", 0.5),
    }
    stream = dumps_stream([True, Short(3), Char("c"), Long(1 << 40), 2.5])
    view = view_of_body(message(stream, BodyKind.STREAM), 65536)
    assert [(entry.type, entry.value) for entry in view.value] == [
        ("boolean", True),
        ("short", 3),
        ("char", "c"),
        ("long", 1 << 40),
        ("double", 2.5),
    ]
    view = view_of_body(message(dumps({"a": 1}), BodyKind.OBJECT), 65536)
    assert (view.kind, view.encoding, view.class_) == ("object", "object", "java.util.HashMap")
    assert base64.b64decode(view.value) == dumps({"a": 1})


@pytest.mark.parametrize(
    ("body", "kind", "origin", "encoding", "value"),
    [
        (b"plain", BodyKind.BYTES, Origin.PHPMQ, "text", "plain"),
        (b"\xff\x00", BodyKind.BYTES, Origin.PHPMQ, "base64", "/wA="),
        (b"bytes", BodyKind.BYTES, Origin.VIBEMQ, "base64", "Ynl0ZXM="),
        (b"\xff", BodyKind.TEXT, Origin.JMQ, "base64", "/w=="),
        (b"", BodyKind.NONE, Origin.JMQ, "text", ""),
        (b"broken", BodyKind.MAP, Origin.JMQ, "base64", "YnJva2Vu"),
        (b"broken", BodyKind.STREAM, Origin.JMQ, "base64", "YnJva2Vu"),
        (b"broken", BodyKind.OBJECT, Origin.JMQ, "object", "YnJva2Vu"),
        (b"", BodyKind.OBJECT, Origin.JMQ, "object", ""),
    ],
)
def test_body_encoding_depends_on_kind_and_origin(
    body: bytes, kind: BodyKind, origin: Origin, encoding: str, value: str
) -> None:
    view = view_of_body(message(body, kind, origin), 100)
    assert (view.encoding, view.value, view.truncated) == (encoding, value, False)


def test_long_body_is_cut_and_a_long_map_is_not_decoded() -> None:
    text = "é" * 100
    view = view_of_body(message(text.encode(), BodyKind.TEXT), 99)
    assert (view.value, view.truncated) == ("é" * 49, True)
    view = view_of_body(message(bytes(100), BodyKind.BYTES, Origin.VIBEMQ), 9)
    assert (base64.b64decode(view.value), view.truncated) == (bytes(9), True)
    stream = dumps_map({"a": "x" * 100})
    view = view_of_body(message(stream, BodyKind.MAP), 50)
    assert (view.encoding, view.truncated) == ("base64", True)


@in_event_loop
async def test_body_is_downloaded_and_never_rendered(api_fixture: ApiFixture) -> None:
    [number] = send(queue(api_fixture.broker), SCRIPT, broker=api_fixture.broker)
    response = await api_fixture.http_client(local=True).request(
        "GET", f"{MESSAGES_PATH}/{number}/body"
    )
    assert response.body == SCRIPT.encode()
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"].startswith("attachment;")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_user_who_reads_slowly_downloads_few_bodies_at_a_time(start: Start) -> None:
    broker = start(HTTP, "phpmq://127.0.0.1:0")
    port = broker.port("http")
    body = bytes(32 << 20)
    with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
        client.send("a", body)
        client.confirm()
    with Client(port) as client, contextlib.ExitStack() as stack:
        path = "/destinations/queue/a/messages"
        [item] = client.get(path).json()["items"]
        request = f"GET /api/v1{path}/{item['id']}/body HTTP/1.1\r\nHost: localhost\r\n\r\n"
        sockets = []
        for _ in range(MAX_BODIES + 2):
            sockets.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)))
            sockets[-1].sendall(request.encode())

        def downloads() -> int:
            connections = client.get("/connections").json()["items"]
            return sum(65_536 < connection["sent_bytes"] < len(body) for connection in connections)

        wait_until(lambda: downloads() == MAX_BODIES)
        sockets.pop(0).close()
        with sockets.pop(0) as reader:
            received = 0
            while received < len(body):
                received += len(reader.recv(1 << 20))
        wait_until(lambda: downloads() == MAX_BODIES)


@in_event_loop
async def test_messages_are_read_when_they_can_be_decoded(
    api_fixture: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = api_fixture.broker
    numbers = send(queue(broker), *"abcdefgh", broker=broker)
    read_numbers: list[int] = []
    read_message = broker.read

    def record(delivery: Any) -> Message:
        read_numbers.append(delivery.sequence)
        return read_message(delivery)

    may_continue = threading.Event()

    def view(message: Message, max_bytes: int) -> Any:
        may_continue.wait(30)
        return view_of_body(message, max_bytes)

    monkeypatch.setattr(broker, "read", record)
    monkeypatch.setattr(messages, "view_of_body", view)
    requests = [
        asyncio.create_task(
            api_fixture.http_client(local=True).request("GET", f"{MESSAGES_PATH}/{number}")
        )
        for number in numbers
    ]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(read_numbers) == MAX_BODIES
    may_continue.set()
    responses = await asyncio.gather(*requests)
    assert [response.json()["body"]["value"] for response in responses] == [*"abcdefgh"]


@pytest.mark.parametrize("operation", [GET_MESSAGE, GET_MESSAGE_BODY])
@in_event_loop
async def test_waiting_request_for_a_body_ends_with_its_connection(
    api_fixture: ApiFixture, operation: ApiOperation[Any, Any]
) -> None:
    [number] = send(queue(api_fixture.broker), "x", broker=api_fixture.broker)
    path = operation.path.format(kind="queue", name="q", id=number)
    [endpoint] = (entry for entry in api_fixture.endpoints if entry.operation is operation)
    service: Any = endpoint.handler
    bodies_in_memory = service.__self__._bodies[operation.operation_id, "(local)"]
    for _ in range(MAX_BODIES):
        await bodies_in_memory.acquire()
    closed_client, http_client = (api_fixture.http_client(local=True) for _ in range(2))
    requests = [
        asyncio.create_task(client.request("GET", path)) for client in (closed_client, http_client)
    ]
    await asyncio.sleep(0.01)
    closed_client.caller.closing.set()
    response = await asyncio.wait_for(requests[0], 1)
    assert (response.status, response.code) == (503, "stopping")
    assert not requests[1].done()
    # other users have a limit of their own
    api_fixture.add("anna", "q: browse")
    other_client = api_fixture.http_client()
    await other_client.login("anna")
    assert (await asyncio.wait_for(other_client.request("GET", path), 1)).status == 200
    bodies_in_memory.release()
    assert b"x" in (await requests[1]).body


@in_event_loop
async def test_large_compressed_bodies_do_not_delay_other_clients(
    api_fixture: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists do not decompress bodies; other requests decompress them in other threads."""
    text = "x" * (PREVIEWED_BYTES + 1)
    native_flags = bytes(62) + b"\x04"  # the flag of a compressed body
    compressed = message(zlib.compress(text.encode()), BodyKind.TEXT)
    compressed.native = native_flags
    broker = api_fixture.broker
    broker.publish(queue(broker), compressed)
    broker.flush()
    threads = []
    for name in ("raw_body", "view_of_body"):
        function = getattr(messages, name)

        def record_thread(*arguments: Any, function: Any = function) -> Any:
            threads.append(threading.current_thread())
            return function(*arguments)

        monkeypatch.setattr(messages, name, record_thread)
    http_client = api_fixture.http_client(local=True)
    [item] = (await get_page(http_client, "?body=true"))["items"]
    assert item["body"]["encoding"] == "base64"
    threads.clear()
    path = f"{MESSAGES_PATH}/{item['id']}"
    assert (await get_page(http_client, path=path, query="?max_body_bytes=1"))["body"][
        "value"
    ] == "x"
    assert (await http_client.request("GET", f"{path}/body")).body == text.encode()
    assert len(threads) == 2
    assert threading.main_thread() not in threads


@in_event_loop
async def test_message_that_cannot_be_read_is_listed(
    api_fixture: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    numbers = send(jobs, "lost", "kept", broker=broker)
    first = next(jobs.queue.browse())
    first.message = None  # paged out

    def fetch(journal: object, sequence: int) -> Message:
        raise JournalDamaged(f"record {sequence}: checksum mismatch")

    monkeypatch.setattr(type(broker.journal), "fetch", fetch)
    http_client = api_fixture.http_client(local=True)
    lost_item, intact_item = (await get_page(http_client, "?body=true"))["items"]
    assert lost_item["id"] == str(numbers[0])
    assert lost_item["damaged"] is True
    assert lost_item["body_kind"] == "none"
    assert "body" not in lost_item
    assert "damaged" not in intact_item
    assert intact_item["body"]["value"] == "kept"
    for path in (f"{MESSAGES_PATH}/{numbers[0]}", f"{MESSAGES_PATH}/{numbers[0]}/body"):
        response = await http_client.request("GET", path)
        assert (response.status, response.code) == (500, "message-damaged")


@in_event_loop
async def test_message_in_memory_has_another_id(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    [number] = send(queue(broker), "x", broker=broker, durability=Durability.NONE)
    http_client = api_fixture.http_client(local=True)
    [item] = (await get_page(http_client))["items"]
    assert (item["id"], item["durability"]) == (f"m{number}", "none")
    assert (await http_client.request("GET", f"{MESSAGES_PATH}/m{number}")).status == 200
    for name in (f"{number}", f"m0{number}", "m", "x", "0", "-1", f"{'9' * 30}", "%00"):
        response = await http_client.request("GET", f"{MESSAGES_PATH}/{name}")
        assert (response.status, response.code) == (404, "message-not-found"), name


@in_event_loop
async def test_messages_require_permission_to_browse(api_fixture: ApiFixture) -> None:
    [number] = send(queue(api_fixture.broker), "secret", broker=api_fixture.broker)
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", "q: produce consume manage", "*: create")
    http_client = api_fixture.http_client()
    await http_client.login("anna")
    for path in ("", f"/{number}", f"/{number}/body"):
        response = await http_client.request("GET", f"{MESSAGES_PATH}{path}")
        assert (response.status, response.code) == (403, "forbidden")
        assert b"secret" not in response.body
