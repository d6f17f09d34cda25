"""The list of consumers."""

from __future__ import annotations

from typing import Any

from sluicemq.broker import Consumer, Delivery, Subscription, Window, compile_selector
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Durability, Message
from tests.admin.context import AttachedConsumer
from tests.support.api import ApiFixture, in_event_loop


class DiscardingConsumer:
    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None: ...

    def detached(self, consumer: Consumer) -> None: ...


def attach(
    api_fixture: ApiFixture, subscription: Subscription, connection: int = 1, selector: str = ""
) -> Consumer:
    consumer = api_fixture.broker.attach(
        subscription,
        DiscardingConsumer(),
        Window(10, True),
        selector=compile_selector(selector) if selector else None,
    )
    connections: Any = api_fixture.context.connections
    connections.attached.append(AttachedConsumer(connection, consumer))
    return consumer


@in_event_loop
async def test_list_has_every_field_of_a_consumer(api_fixture: ApiFixture) -> None:
    queue = api_fixture.broker.destinations.queue("q")
    topic = api_fixture.broker.destinations.topic("t")
    first = attach(api_fixture, queue.queue, 7, "n > 5")
    subscription = api_fixture.broker.subscribe(topic, "s", selector=compile_selector("x = 1"))
    second = attach(api_fixture, subscription, 8)
    for _ in range(3):
        message = Message(queue.address, b"x", properties={"n": 6}, durability=Durability.NONE)
        api_fixture.broker.publish(queue, message)
    api_fixture.broker.flush()
    first_item, second_item = await api_fixture.http_client().get_items("/consumers")
    assert first_item == {
        "id": first.number,
        "destination": "q",
        "kind": "queue",
        "subscription": "",
        "connection": 7,
        "protocol": "jmq",
        "selector": "n > 5",
        "credit": 7,
        "unacked": 3,
        "delivered": 3,
        "active": True,
    }
    assert (second_item["id"], second_item["kind"], second_item["subscription"]) == (
        second.number,
        "topic",
        "s",
    )
    assert second_item["selector"] == "x = 1"


@in_event_loop
async def test_list_is_filtered_and_sorted(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    a, b = broker.destinations.queue("a"), broker.destinations.queue("b")
    first = attach(api_fixture, b.queue, 1).number
    second = attach(api_fixture, a.queue, 2).number
    third = attach(api_fixture, broker.subscribe(broker.destinations.topic("a"), "s"), 2).number
    http_client = api_fixture.http_client()

    async def ids(query: str) -> list[int]:
        return [item["id"] for item in await http_client.get_items(f"/consumers?{query}")]

    assert await ids("") == [first, second, third]
    assert await ids("sort=destination") == [second, third, first]
    assert await ids("destination=a") == [second, third]
    assert await ids("destination=a&kind=topic") == [third]
    assert await ids("kind=queue&order=desc") == [second, first]
    assert await ids("connection=2") == [second, third]
    assert await ids("destination=nothing") == []
    assert await ids("limit=1&offset=1") == [second]


@in_event_loop
async def test_users_see_the_consumers_of_visible_destinations(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna", "a.*: list")
    for name in ("a.1", "b.1"):
        attach(api_fixture, api_fixture.broker.destinations.queue(name).queue)
    anna = api_fixture.http_client()
    await anna.login("anna")
    assert [item["destination"] for item in await anna.get_items("/consumers")] == ["a.1"]
    assert await anna.get_items("/consumers?destination=b.1") == []


@in_event_loop
async def test_consumers_of_durable_subscriptions_belong_to_their_owner(
    api_fixture: ApiFixture,
) -> None:
    broker = api_fixture.broker
    subscription = broker.subscribe(
        broker.destinations.topic("t"), "s", durable=True, owner="owner"
    )
    consumer = attach(api_fixture, subscription)
    for name, rights in (
        ("owner", "t: consume"),
        ("other", "t: consume browse"),
        ("m", "t: manage"),
    ):
        api_fixture.add(name, rights)
        http_client = api_fixture.http_client()
        await http_client.login(name)
        ids = [item["id"] for item in await http_client.get_items("/consumers")]
        assert ids == ([] if name == "other" else [consumer.number]), name


@in_event_loop
async def test_list_escapes_invalid_utf8(api_fixture: ApiFixture) -> None:
    """Invalid UTF-8 is escaped in responses, and base64 in requests."""
    name = "caf\udce9\n"
    attach(api_fixture, api_fixture.broker.destinations.queue(name).queue)
    attach(api_fixture, api_fixture.broker.destinations.resolve(Address(Kind.QUEUE, "<b>")).queue)
    http_client = api_fixture.http_client()
    first, second = await http_client.get_items("/consumers")
    assert (first["destination"], first["destination_base64"]) == ("caf\\udce9\\n", "Y2Fm6Qo=")
    assert "destination_base64" not in second
    [item] = await http_client.get_items("/consumers?destination_base64=Y2Fm6Qo%3D")
    assert item == first
    response = await http_client.request("GET", "/consumers?destination_base64=%21")
    assert (response.status, response.code) == (400, "bad-parameter")
