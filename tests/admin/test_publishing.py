"""Messages published over HTTP, and the list of dead-letter queues."""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq.admin.endpoints import ApiLimits
from sluicemq.broker.settings import EngineSettings
from sluicemq.journal.space import SpaceLevel, SpaceReport
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from tests.admin.destinations import queue, queued_bodies, read, send, topic, unacked_numbers
from tests.support.api import ApiFixture, in_event_loop

PATH = "/destinations/queue/q/messages"


def ready_message(api_fixture: ApiFixture) -> Message:
    """Return the only ready message."""
    [delivery] = api_fixture.broker.destinations[Address(Kind.QUEUE, "q")].queue.browse()
    return api_fixture.broker.core.read(delivery)


@in_event_loop
async def test_every_field_is_published(api_fixture: ApiFixture) -> None:
    body = {
        "body": "hello é",
        "priority": 7,
        "ttl_ms": 5000,
        "delay_ms": 1000,
        "correlation_id": "c",
        "reply_to": {"kind": "topic", "name_base64": "/w=="},
        "type": "t",
        "message_id": "m",
        "durability": "lazy",
        "properties": {
            "s": "x",
            "n": 3,
            "ok": True,
            "none": None,
            "f": 1.5,
            "raw": {"type": "bytes", "value": "AAE="},
            "big": {"type": "int", "value": str(1 << 60)},
            "whole": {"type": "float", "value": 2},
        },
    }
    response = await api_fixture.http_client(local=True).request("POST", PATH, body)
    assert response.status == 201
    published_message = ready_message(api_fixture)
    assert response.json() == {"id": str(published_message.sequence)}
    wall = api_fixture.clock.wall
    assert (published_message.body, published_message.kind) == ("hello é".encode(), BodyKind.TEXT)
    assert (
        published_message.priority,
        published_message.expiration,
        published_message.deliver_at,
    ) == (7, wall + 5000, wall + 1000)
    assert (
        published_message.correlation_id,
        published_message.type,
        published_message.message_id,
    ) == ("c", "t", "m")
    assert published_message.reply_to == Address(Kind.TOPIC, "\udcff")
    assert (published_message.origin, published_message.durability) == (
        Origin.INTERNAL,
        Durability.LAZY,
    )
    assert published_message.properties == {
        "s": "x",
        "n": 3,
        "ok": True,
        "none": None,
        "f": 1.5,
        "raw": b"\0\1",
        "big": 1 << 60,
        "whole": 2.0,
    }


@pytest.mark.parametrize(
    ("body", "kind", "content"),
    [
        ({}, BodyKind.NONE, b""),
        ({"body": ""}, BodyKind.TEXT, b""),
        ({"body": "1", "body_kind": "json"}, BodyKind.JSON, b"1"),
        ({"body_json": {"a": [1, None]}}, BodyKind.JSON, b'{"a": [1, null]}'),
        ({"body_json": None}, BodyKind.JSON, b"null"),
        ({"body_base64": "/wA="}, BodyKind.BYTES, b"\xff\0"),
        ({"body_base64": "aGk=", "body_kind": "text"}, BodyKind.TEXT, b"hi"),
    ],
)
@in_event_loop
async def test_body_fields_determine_kind_and_content(
    api_fixture: ApiFixture, body: Any, kind: BodyKind, content: bytes
) -> None:
    assert (await api_fixture.http_client(local=True).request("POST", PATH, body)).status == 201
    published_message = ready_message(api_fixture)
    assert (published_message.kind, published_message.body) == (kind, content)


@pytest.mark.parametrize("text", ["\x01", "\N{CYRILLIC SMALL LETTER BE}"])
@in_event_loop
async def test_largest_body_may_be_escaped(api_fixture: ApiFixture, text: str) -> None:
    size = ApiLimits().publish // len(text.encode())
    http_client = api_fixture.http_client(local=True)
    assert (await http_client.request("POST", PATH, {"body": text * size})).status == 201
    response = await http_client.request("POST", PATH, {"body": text * (size + 1)})
    assert (response.status, response.json()["limit"]) == (413, ApiLimits().publish)


@pytest.mark.parametrize(
    "body",
    [
        {"body": "x", "body_json": 1},
        {"body": "x", "body_base64": ""},
        {"body": "x", "body_kind": "none"},
        {"body": "x", "body_kind": "json"},
        {"body_base64": "/w==", "body_kind": "text"},
        {"body_base64": "?"},
        b'{"body_json": {"a": "\xff"}}',
        {"priority": 10},
        {"ttl_ms": -1},
        {"durability": "eternal"},
        {"properties": {"": 1}},
        {"properties": {"a": [1]}},
        {"properties": {"a": {"type": "int", "value": "x"}}},
        {"properties": {"a": {"type": "int", "value": True}}},
        {"properties": {"a": {"type": "boolean", "value": 1}}},
        {"properties": {"a": {"type": "bytes", "value": "?"}}},
        {"properties": {"a": {"type": "date", "value": 1}}},
        {"properties": {"a": {"type": ["int"], "value": 1}}},
        {"properties": {"a": {"value": 1}}},
        {"properties": {"a": 1 << 70}},
        {"properties": {str(n): 1 for n in range(1001)}},
        {"reply_to": {"kind": "queue"}},
        {"colour": "red"},
    ],
)
@in_event_loop
async def test_invalid_messages_are_rejected(api_fixture: ApiFixture, body: Any) -> None:
    response = await api_fixture.http_client(local=True).request("POST", PATH, body)
    assert response.status == 400, response
    assert not api_fixture.broker.destinations


@in_event_loop
async def test_messages_beyond_a_limit_are_rejected(api_fixture: ApiFixture) -> None:
    object.__setattr__(api_fixture.context, "limits", ApiLimits(publish=10, name=5))
    http_client = api_fixture.http_client(local=True)
    response = await http_client.request("POST", PATH, {"body": "x" * 11})
    assert (response.status, response.code) == (413, "too-large")
    for name in ("sixsix", "~?name_base64=eHh4eHh4", "~?name_base64="):
        path, _, query = name.partition("?")
        response = await http_client.request(
            "POST", f"/destinations/queue/{path}/messages?{query}", {}
        )
        assert (response.status, response.code) == (400, "bad-name")
        response = await http_client.request("PUT", f"/destinations/queue/{name}", {})
        assert (response.status, response.code) == (400, "bad-name")
    response = await http_client.request(
        "POST", PATH, {"reply_to": {"kind": "queue", "name": "sixsix"}}
    )
    assert (response.status, response.code) == (400, "bad-body")
    queue(api_fixture.broker, max_messages=1)
    assert (await http_client.request("POST", PATH, {})).status == 201
    response = await http_client.request("POST", PATH, {})
    assert (response.status, response.code) == (409, "limit-exceeded")


@in_event_loop
async def test_publishing_creates_no_forbidden_destination(api_fixture: ApiFixture) -> None:
    http_client = api_fixture.http_client(local=True)
    response = await http_client.request(
        "POST", "/destinations/queue/temporary_destination:%2F%2Fqueue%2Fx/messages", {}
    )
    assert (response.status, response.code) == (404, "destination-not-found")
    api_fixture.broker.core.settings = EngineSettings(auto_create_queues=False)
    response = await http_client.request("POST", PATH, {})
    assert (response.status, response.code) == (404, "destination-not-found")


@in_event_loop
async def test_message_without_durability_is_answered_at_once(api_fixture: ApiFixture) -> None:
    response = await api_fixture.http_client(local=True).request(
        "POST", PATH, {"durability": "none"}
    )
    assert response.json()["id"].startswith("m")
    assert api_fixture.broker.journal.stats().live == 0


@in_event_loop
async def test_publishing_requires_permission_to_produce(api_fixture: ApiFixture) -> None:
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", "q: browse consume manage create")
    api_fixture.add("bert", "q: produce")
    anna, bert = api_fixture.http_client(), api_fixture.http_client()
    await anna.login("anna")
    await bert.login("bert")
    assert (await anna.request("POST", PATH, {"body": "x"})).status == 403
    assert (await bert.request("POST", PATH, {"body": "x"})).status == 201
    assert queued_bodies(api_fixture.broker) == ["x"]


@in_event_loop
async def test_dead_letter_queues_with_their_reasons(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    queue(broker, "quiet")
    for name, reasons in (("a", ["rejected", "expired", "rejected"]), ("b", ["rejected"])):
        source = queue(broker, name, dead_letter=True, dead_letter_queue="failed")
        send(source, *reasons, broker=broker)
        reader = read(broker, source)
        for number, reason in zip(unacked_numbers(reader.consumer), reasons, strict=True):
            broker.dead_letter(source.queue, number, reason)
    queue(broker, "empty.dlq")
    send(broker.destinations.queue("failed"), "by hand", broker=broker)
    api_fixture.clock.advance(250)
    http_client = api_fixture.http_client(local=True)
    listing = (await http_client.request("GET", "/dead-letters")).json()
    assert [(item["name"], item["ready"]) for item in listing["items"]] == [
        ("empty.dlq", 0),
        ("failed", 5),
    ]
    [_, failed_queue] = listing["items"]
    assert failed_queue["reasons"] == {"rejected": 3, "expired": 1, "(none)": 1}
    assert (failed_queue["sources"], failed_queue["scanned"]) == (["a", "b"], 5)
    assert failed_queue["oldest_ms"] == 250
    read(broker, broker.destinations.queue("failed"), 2)
    response = await http_client.request("GET", "/dead-letters?sort=ready&order=desc&limit=1")
    [failed_queue] = response.json()["items"]
    assert (failed_queue["ready"], sum(failed_queue["reasons"].values())) == (3, 3)


@in_event_loop
async def test_destinations_without_dead_letters_are_no_sources(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    for name, dead_letter in (("jobs", True), ("orders", False)):
        queue(broker, name, dead_letter=dead_letter)
        queue(broker, f"{name}.dlq")
    queue(broker, "off", dead_letter_queue="failed")
    queue(broker, "failed")
    listing = (await api_fixture.http_client(local=True).request("GET", "/dead-letters")).json()
    assert {item["name"]: item["sources"] for item in listing["items"]} == {
        "failed": [],
        "jobs.dlq": ["jobs"],
        "orders.dlq": [],
    }


@in_event_loop
async def test_only_visible_dead_letter_queues_are_listed(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    for name in ("mine", "theirs"):
        queue(broker, name, dead_letter=True, dead_letter_queue="shared.dlq")
    queue(broker, "shared.dlq")
    queue(broker, "hidden.dlq")
    topic(broker, "news.dlq")
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", "mine: browse", "shared.dlq: browse", "news*: browse")
    http_client = api_fixture.http_client()
    await http_client.login("anna")
    listing = (await http_client.request("GET", "/dead-letters")).json()
    assert [(item["name"], item["sources"]) for item in listing["items"]] == [
        ("shared.dlq", ["mine"])
    ]


@in_event_loop
async def test_reasons_of_dead_letters_require_permission_to_browse(
    api_fixture: ApiFixture,
) -> None:
    broker = api_fixture.broker
    for name in ("read.dlq", "written.dlq"):
        properties = {"deadLetterReason": "the card 4711 is invalid"}
        send(queue(broker, name), "", properties=properties, broker=broker)
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", "read*: browse", "written*: produce")
    http_client = api_fixture.http_client()
    await http_client.login("anna")
    listing = (await http_client.request("GET", "/dead-letters")).json()
    assert [(item["name"], item["reasons"], item["scanned"]) for item in listing["items"]] == [
        ("read.dlq", {"the card 4711 is invalid": 1}, 1),
        ("written.dlq", {}, 0),
    ]


@in_event_loop
async def test_nearly_full_disk_is_507(api_fixture: ApiFixture) -> None:
    http_client = api_fixture.http_client(local=True)
    api_fixture.broker.publisher.on_space(SpaceReport(SpaceLevel.LOW))
    response = await http_client.request("POST", PATH, {"body": "x"})
    assert (response.status, response.code) == (507, "low-disk-space")
    response = await http_client.request("POST", PATH, {"body": "x", "durability": "none"})
    assert response.status == 201
    # consumers free space, and a load balancer must not keep them away
    assert (await http_client.request("GET", "/health/ready")).status == 200
    api_fixture.broker.publisher.on_space(SpaceReport(SpaceLevel.ENOUGH))
    response = await http_client.request("POST", PATH, {"body": "x"})
    assert response.status == 201
