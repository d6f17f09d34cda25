"""Owners and users with the permission `manage` administer transactions, subscriptions and
temporary destinations."""

from __future__ import annotations

from typing import Any

from sluicemq.admin.clients import id_of
from sluicemq.broker import Subscription, Transaction
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.jmq.fields import Xid, encode_xid
from tests.support.api import ApiFixture, HttpClient, in_event_loop

PERMISSIONS = {
    "owner": (),
    "other": ("q: produce consume browse",),
    "partial": ("q: manage",),
    "manager": ("*: manage",),
    "user": ("*: produce consume",),
}


async def log_in(api_fixture: ApiFixture, name: str) -> HttpClient:
    """Return a client that has logged in as a user of PERMISSIONS or as `root`."""
    if name not in api_fixture.authenticator.user_snapshot.database.users:
        api_fixture.add(name, *PERMISSIONS.get(name, ()), superuser=name == "root")
    http_client = api_fixture.http_client()
    await http_client.login(name)
    return http_client


def begin_transaction(api_fixture: ApiFixture, owner: str, *, prepared: bool = True) -> Transaction:
    """Begin a transaction that sends to `q` and `r`."""
    transactions = api_fixture.broker.transactions
    transaction = transactions.begin(owner)
    for name in ("q", "r"):
        queue = api_fixture.broker.destinations.queue(name)
        message = Message(queue.address, b"x", durability=Durability.NONE)
        transactions.publish(transaction, queue, message)
    if prepared:
        xid = Xid(1, owner.encode() or b"-", b"%d" % transaction.number)
        transactions.prepare(transaction, encode_xid(xid))
    return transaction


def subscribe(
    api_fixture: ApiFixture, owner: str = "owner", durable: bool = True, **options: Any
) -> Subscription:
    topic = api_fixture.broker.destinations.topic("news")
    subscription = api_fixture.broker.subscribe(topic, "s", durable=durable, owner=owner, **options)
    message = Message(topic.address, b"x", durability=Durability.NONE)
    api_fixture.broker.publish(topic, message)
    api_fixture.broker.flush()
    return subscription


@in_event_loop
async def test_owners_and_managers_list_and_end_a_transaction(api_fixture: ApiFixture) -> None:
    root = await log_in(api_fixture, "root")
    for user, owner, allowed in (
        ("owner", "owner", True),
        ("other", "owner", False),
        ("partial", "owner", False),
        ("user", "owner", False),
        ("manager", "owner", True),
        ("root", "owner", True),
        ("user", "", True),
        ("other", "", False),
        ("manager", "", True),
        ("manager", "deleted", True),
        ("user", "deleted", False),
    ):
        for prepared in (False, True):
            case = (user, owner, prepared)
            http_client = await log_in(api_fixture, user)
            transaction = begin_transaction(api_fixture, owner, prepared=prepared)
            items = await http_client.get_items("/transactions")
            assert [item.get("owner", "") for item in items] == ([owner] if allowed else []), case
            path = f"/transactions/{id_of(transaction)}"
            if prepared and not allowed:
                assert (await http_client.request("POST", f"{path}/commit")).status == 404, case
            response = await http_client.request("POST", f"{path}/rollback")
            assert response.status == (204 if allowed else 404), case
            if not allowed:
                assert (await root.request("POST", f"{path}/rollback")).status == 204, case


@in_event_loop
async def test_owners_and_managers_list_and_delete_a_durable_subscription(
    api_fixture: ApiFixture,
) -> None:
    for user, owner, allowed in (
        ("owner", "owner", True),
        ("user", "owner", False),
        ("partial", "owner", False),
        ("manager", "owner", True),
        ("root", "owner", True),
        ("user", "", True),
        ("other", "", False),
    ):
        case = (user, owner)
        http_client = await log_in(api_fixture, user)
        subscription = subscribe(api_fixture, owner)
        items = await http_client.get_items("/subscriptions")
        assert [item.get("owner", "") for item in items] == ([owner] if allowed else []), case
        response = await http_client.request("DELETE", "/subscriptions?destination=news&name=s")
        assert response.status == (204 if allowed else 403), case
        assert subscription.closed is allowed, case
        api_fixture.broker.unsubscribe(subscription)


@in_event_loop
async def test_only_the_owner_sees_messages_of_a_durable_subscription(
    api_fixture: ApiFixture,
) -> None:
    PERMISSIONS["reader"] = ("news: consume browse produce",)
    reader, manager = await log_in(api_fixture, "reader"), await log_in(api_fixture, "root")
    subscription = subscribe(api_fixture)
    path = "/destinations/topic/news/messages"
    [item] = await manager.get_items(f"{path}?subscription=s")
    for suffix in ("", f"/{item['id']}", f"/{item['id']}/body"):
        assert (await reader.request("GET", f"{path}{suffix}?subscription=s")).status == 404
        assert (await manager.request("GET", f"{path}{suffix}?subscription=s")).status == 200
    for action in ("delete", "redeliver", "copy"):
        body = {"action": action, "selector": "TRUE", "subscription": "s"}
        if action == "copy":
            body["target"] = {"kind": "topic", "name": "news"}
        assert (await reader.request("POST", f"{path}/actions", body)).status == 404
    assert subscription.waiting == 1


@in_event_loop
async def test_actions_on_a_private_subscription_need_the_permission_to_manage(
    api_fixture: ApiFixture,
) -> None:
    """A private subscription is neither durable nor shared, and has no owner."""
    PERMISSIONS["reader"] = ("news: consume browse",)
    PERMISSIONS["administrator"] = ("news: consume manage",)
    path = "/destinations/topic/news/messages/actions"
    for user, allowed in (("reader", False), ("administrator", True), ("root", True)):
        http_client = await log_in(api_fixture, user)
        for action in ("delete", "redeliver"):
            subscription = subscribe(api_fixture, "", durable=False)
            body = {"action": action, "selector": "TRUE", "subscription": "s"}
            response = await http_client.request("POST", path, body)
            assert response.status == (200 if allowed else 403), (user, action)
            left = 0 if allowed and action == "delete" else 1
            assert subscription.waiting == left, (user, action)
            api_fixture.broker.unsubscribe(subscription)


@in_event_loop
async def test_only_the_owner_sees_a_shared_subscription_that_is_not_durable(
    api_fixture: ApiFixture,
) -> None:
    PERMISSIONS["reader"] = ("news: consume browse",)
    reader, owner = await log_in(api_fixture, "reader"), await log_in(api_fixture, "owner")
    subscription = subscribe(api_fixture, durable=False, shared=True)
    path = "/destinations/topic/news/messages"
    assert await reader.get_items("/subscriptions") == []
    assert (await reader.request("GET", f"{path}?subscription=s")).status == 404
    body = {"action": "delete", "selector": "TRUE", "subscription": "s"}
    assert (await reader.request("POST", f"{path}/actions", body)).status == 404
    assert subscription.waiting == 1
    [item] = await owner.get_items("/subscriptions")
    assert item["owner"] == "owner"


@in_event_loop
async def test_temporary_destinations_are_for_superusers(api_fixture: ApiFixture) -> None:
    PERMISSIONS["all"] = ("*: produce consume browse create delete manage",)
    user, root = await log_in(api_fixture, "all"), await log_in(api_fixture, "root")
    name = "temporary_destination://queue/x/1/1"
    queue = api_fixture.broker.destinations.declare(Address(Kind.QUEUE, name), owner=object())
    path = "/destinations/queue/temporary_destination%3A%2F%2Fqueue%2Fx%2F1%2F1"
    reply = {"body": "reply"}
    response = await user.request("POST", f"{path}/messages", reply)
    assert response.status == 201
    message_path = f"/messages/{response.json()['id']}"
    other = await log_in(api_fixture, "other")
    assert (await other.request("POST", f"{path}/messages", reply)).status == 403
    assert await user.get_items("/destinations") == []
    for method, subpath, body in (
        ("GET", "", None),
        ("GET", "/messages", None),
        ("GET", message_path, None),
        ("GET", f"{message_path}/body", None),
        ("POST", "/purge", {}),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/messages/actions", {"action": "delete", "selector": "TRUE"}),
        ("DELETE", "", None),
    ):
        assert (await user.request(method, path + subpath, body)).status == 404, (method, subpath)
    history = "/history?kind=queue&destination=temporary_destination%3A%2F%2Fqueue%2Fx%2F1%2F1"
    assert (await user.request("GET", history)).status == 404
    assert queue.waiting == 1
    assert [item["name"] for item in await root.get_items("/destinations")] == [name]
    assert len(await root.get_items(f"{path}/messages")) == 1
    assert (await root.request("GET", f"{path}{message_path}/body")).body == b"reply"
    assert (await root.request("DELETE", path)).status == 204


@in_event_loop
async def test_permanent_destination_cannot_have_a_temporary_name(
    api_fixture: ApiFixture,
) -> None:
    root = await log_in(api_fixture, "root")
    path = "/destinations/queue/temporary_destination%3A%2F%2Fqueue%2Fx%2F1%2F1"
    assert (await root.request("PUT", path, {})).status == 400
    assert (await root.request("POST", f"{path}/messages", {"body": "x"})).status == 404
    assert not api_fixture.broker.destinations
