"""The list of subscriptions, and their deletion."""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq.broker import Subscription, compile_selector
from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import JmqClient, Topic
from sluicemq.model.errors import ConnectionLost
from sluicemq.model.message import Durability, Message
from tests.admin.test_consumers import attach
from tests.server.conftest import Start
from tests.support.api import ApiFixture, in_event_loop
from tests.support.http import HTTP, TIMEOUT, Client


def subscribe(api_fixture: ApiFixture, topic: str, name: str, **options: Any) -> Subscription:
    return api_fixture.broker.subscribe(
        api_fixture.broker.destinations.topic(topic), name, **options
    )


@in_event_loop
async def test_list_has_every_field_of_a_subscription(api_fixture: ApiFixture) -> None:
    subscription = subscribe(
        api_fixture,
        "news",
        "shared-durable:my%20app/the%2Fbest",
        durable=True,
        shared=True,
        selector=compile_selector("n = 1"),
    )
    topic = subscription.destination
    properties: dict[str, Any] = {"n": 1}
    message = Message(topic.address, b"abc", durability=Durability.NONE, properties=properties)
    api_fixture.broker.publish(topic, message)
    api_fixture.broker.flush()
    attach(api_fixture, subscription)
    [item] = await api_fixture.http_client().get_items("/subscriptions")
    assert item == {
        "destination": "news",
        "kind": "topic",
        "name": "shared-durable:my%20app/the%2Fbest",
        "client_id": "my app",
        "display_name": "the/best",
        "durable": True,
        "shared": True,
        "selector": "n = 1",
        "ready": 0,
        "unacked": 1,
        "bytes": 3,
        "consumers": 1,
    }


@in_event_loop
async def test_list_is_filtered_and_sorted(api_fixture: ApiFixture) -> None:
    subscribe(api_fixture, "b", "x", durable=True)
    subscribe(api_fixture, "a", "y")
    subscribe(api_fixture, "a", "durable:anna/jobs", durable=True)
    api_fixture.broker.destinations.topic("empty")
    api_fixture.broker.destinations.queue("a")
    http_client = api_fixture.http_client()

    async def names(query: str) -> list[str]:
        return [
            item["display_name"] for item in await http_client.get_items(f"/subscriptions?{query}")
        ]

    assert await names("") == ["jobs", "y", "x"]
    assert await names("order=desc") == ["x", "y", "jobs"]
    assert await names("sort=name") == ["jobs", "x", "y"]
    assert await names("durable=true") == ["jobs", "x"]
    assert await names("durable=false") == ["y"]
    assert await names("destination=a") == ["jobs", "y"]
    assert await names("destination=nothing") == []
    assert await names("filter=anna/jobs") == ["jobs"]
    assert await names("filter=b&limit=1&offset=1") == ["x"]
    assert await names("destination_base64=YQ") == ["jobs", "y"]


@in_event_loop
async def test_deletion_requires_the_same_permissions_as_a_purge(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna", "news: browse manage", "other: browse consume delete create produce")
    for topic in ("news", "other", "secret"):
        subscribe(api_fixture, topic, "s")
    anna = api_fixture.http_client()
    await anna.login("anna")
    assert [item["destination"] for item in await anna.get_items("/subscriptions")] == [
        "news",
        "other",
    ]
    for topic in ("other", "secret", "nothing"):
        response = await anna.request("DELETE", f"/subscriptions?destination={topic}&name=s")
        assert (response.status, response.code) == (403, "forbidden")
    assert (await anna.request("DELETE", "/subscriptions?destination=news&name=s")).status == 204
    response = await anna.request("DELETE", "/subscriptions?destination=news&name=s")
    assert (response.status, response.code) == (404, "subscription-not-found")
    response = await anna.request("DELETE", "/subscriptions?destination=news")
    assert (response.status, response.code) == (400, "bad-parameter")
    changes = [line for line in api_fixture.audit_lines() if line.startswith("change: anna DELETE")]
    assert changes[-3] == "change: anna DELETE /api/v1/subscriptions s of news done"
    assert changes[-2].endswith("s of news 404")


@in_event_loop
async def test_subscription_in_use_is_deleted_only_if_forced(api_fixture: ApiFixture) -> None:
    subscription = subscribe(api_fixture, "news", "s")
    attach(api_fixture, subscription)
    http_client = api_fixture.http_client()
    path = "/subscriptions?destination=news&name=s"
    response = await http_client.request("DELETE", path)
    assert (response.status, response.code) == (409, "subscription-in-use")
    assert not subscription.closed
    assert (await http_client.request("DELETE", f"{path}&force=true")).status == 204
    assert subscription.closed


def test_deleted_durable_subscription_of_a_java_client_stays_deleted(start: Start) -> None:
    broker = start(HTTP, "jmq://127.0.0.1:0")
    url = f"jmq://127.0.0.1:{broker.port('jmq')}?client_id=reporter"

    def subscribe_durably(client: BlockingClient) -> Any:
        return client.session().consumer(Topic("news"), name="daily", durable=True)

    with BlockingClient(JmqClient.open, url, reconnect=None) as jms_client:
        subscribe_durably(jms_client)
    with (
        Client(broker.port("http")) as client,
        BlockingClient(JmqClient.open, url.partition("?")[0], reconnect=None) as other_client,
    ):
        other_client.session().producer(Topic("news")).send("unread")
        [item] = client.get("/subscriptions?durable=true").json()["items"]
        assert (item["client_id"], item["display_name"], item["ready"]) == ("reporter", "daily", 1)
        path = f"/subscriptions?destination=news&name={item['name'].replace('%', '%25')}"
        assert client.request("DELETE", path).status == 204
    kill_and_restart(broker)
    with Client(broker.port("http")) as client:
        assert client.get("/subscriptions").json()["items"] == []
    url = f"jmq://127.0.0.1:{broker.port('jmq')}?client_id=reporter"
    with BlockingClient(JmqClient.open, url, reconnect=None) as jms_client:
        consumer = subscribe_durably(jms_client)
        jms_client.session().producer(Topic("news")).send("new")
        assert consumer.receive(TIMEOUT).body == "new"


def kill_and_restart(broker: LocalBroker) -> None:
    """Kill the broker with SIGKILL and restart it; confirmed requests are durable."""
    broker.kill()
    broker.start()


def test_forced_deletion_closes_the_consumer(start: Start) -> None:
    broker = start(HTTP, "jmq://127.0.0.1:0")
    url = f"jmq://127.0.0.1:{broker.port('jmq')}?client_id=reporter"
    with (
        BlockingClient(JmqClient.open, url, reconnect=None) as jms_client,
        Client(broker.port("http")) as client,
    ):
        jms_client.session().consumer(Topic("news"), name="daily", durable=True)
        [item] = client.get("/subscriptions").json()["items"]
        path = f"/subscriptions?destination=news&name={item['name']}"
        assert client.request("DELETE", path).status == 409
        assert client.request("DELETE", f"{path}&force=true").status == 204
        assert client.get("/consumers").json()["items"] == []
        # the connection stays open and can be used
        jms_client.session().producer("q").send("still here")
    with pytest.raises(ConnectionLost):
        jms_client.session()
