"""Transactions: list, commit and rollback by an administrator, before and after a restart."""

from __future__ import annotations

import asyncio

import pytest

from sluicemq.admin.clients import id_of
from sluicemq.broker import Transaction, TransactionState
from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import JmqClient
from sluicemq.model.errors import ClientError
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.jmq.destinations import DEFAULTS
from sluicemq.protocols.jmq.fields import Xid, encode_xid
from tests.server.conftest import Start
from tests.support.api import ApiFixture, in_event_loop
from tests.support.http import HTTP, TIMEOUT, Client

JMQ = "jmq://127.0.0.1:0"
XID = Xid(7, b"global", b"branch")


def begin_transaction(api_fixture: ApiFixture, *bodies: bytes) -> Transaction:
    """Begin a transaction that publishes the bodies to `q`."""
    transactions = api_fixture.broker.transactions
    transaction = transactions.begin()
    queue = api_fixture.broker.destinations.queue("q")
    for body in bodies:
        message = Message(queue.address, body, durability=Durability.NONE)
        transactions.publish(transaction, queue, message)
    return transaction


@in_event_loop
async def test_list_has_every_field_of_a_transaction(api_fixture: ApiFixture) -> None:
    begin_transaction(api_fixture, b"a")
    start_time = api_fixture.clock.wall
    api_fixture.clock.advance(10)
    prepared = begin_transaction(api_fixture, b"b", b"c")
    api_fixture.broker.transactions.prepare(prepared, encode_xid(XID))
    http_client = api_fixture.http_client()
    first, second = await http_client.get_items("/transactions")
    assert (first["state"], first["publishes"], first["started"]) == ("open", 1, start_time)
    assert "xid" not in first
    assert second == {
        "id": id_of(prepared),
        "state": "prepared",
        "protocol": "jmq",
        "xid": {
            "format_id": 7,
            "global_transaction_id": b"global".hex(),
            "branch_qualifier": b"branch".hex(),
        },
        "publishes": 2,
        "acks": 0,
        "started": start_time + 10,
    }
    assert await http_client.get_items("/transactions?state=prepared") == [second]
    assert await http_client.get_items("/transactions?order=desc") == [second, first]
    assert await http_client.get_items("/transactions?sort=publishes&limit=1&offset=1") == [second]


@in_event_loop
async def test_open_transaction_can_only_be_rolled_back(api_fixture: ApiFixture) -> None:
    transaction = begin_transaction(api_fixture, b"a")
    ended: list[tuple[Transaction, bool]] = []
    api_fixture.broker.transactions.ends.append(lambda *end: ended.append(end))
    http_client = api_fixture.http_client()
    [item] = await http_client.get_items("/transactions")
    response = await http_client.request("POST", f"/transactions/{item['id']}/commit")
    assert (response.status, response.code) == (409, "transaction-open")
    assert (await http_client.request("POST", f"/transactions/{item['id']}/rollback")).status == 204
    assert ended == [(transaction, False)]
    assert await http_client.get_items("/transactions") == []
    for action in ("commit", "rollback"):
        response = await http_client.request("POST", f"/transactions/{item['id']}/{action}")
        assert (response.status, response.code) == (404, "transaction-not-found")


@in_event_loop
async def test_id_of_a_prepared_transaction_stays_during_its_commit(
    api_fixture: ApiFixture,
) -> None:
    transactions = api_fixture.broker.transactions
    transactions.slice_deliveries = transactions.part_deliveries = 1
    prepared = begin_transaction(api_fixture, b"a", b"b", b"c")
    is_prepared = asyncio.Event()
    transactions.prepare(prepared, encode_xid(XID), is_prepared.set)
    api_fixture.broker.schedule_flush()
    await is_prepared.wait()
    http_client = api_fixture.http_client()
    [item] = await http_client.get_items("/transactions")
    transactions.commit(prepared)
    assert prepared.state is TransactionState.COMMITTING
    assert (await http_client.request("POST", f"/transactions/{item['id']}/commit")).status == 204
    assert await http_client.get_items("/transactions") == []


@in_event_loop
async def test_transactions_of_other_formats_and_unknown_ids(api_fixture: ApiFixture) -> None:
    prepared = begin_transaction(api_fixture)
    api_fixture.broker.transactions.prepare(prepared, b"not of java")
    http_client = api_fixture.http_client()
    [item] = await http_client.get_items("/transactions")
    assert item["xid"] == {
        "format_id": 0,
        "global_transaction_id": b"not of java".hex(),
        "branch_qualifier": "",
    }
    for name in ("p", "1", f"o{prepared.number}", "%2F", "p99999999999999999999", "..."):
        response = await http_client.request("POST", f"/transactions/{name}/rollback")
        assert (response.status, response.code) == (404, "transaction-not-found"), name
    assert len(api_fixture.broker.transactions.prepared) == 1


@in_event_loop
async def test_transaction_is_not_found_without_permission(api_fixture: ApiFixture) -> None:
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", "*: browse consume create delete")
    transaction = begin_transaction(api_fixture, b"a")
    api_fixture.broker.transactions.prepare(transaction, encode_xid(XID))
    anna, root = api_fixture.http_client(), api_fixture.http_client()
    await anna.login("anna")
    await root.login("root")
    name = id_of(transaction)
    assert await anna.get_items("/transactions") == []
    for action in ("commit", "rollback"):
        response = await anna.request("POST", f"/transactions/{name}/{action}")
        assert (response.status, response.code) == (404, "transaction-not-found"), action
    assert api_fixture.broker.transactions.prepared
    assert (await root.request("POST", f"/transactions/{name}/commit")).status == 204
    done = api_fixture.audit_lines()[-1]
    assert done.startswith(
        f"change: root POST /api/v1/transactions/{name}/commit 1 sent, 0 acknowledged"
    )
    assert f"xid 7:{b'global'.hex()}:{b'branch'.hex()}" in done
    assert done.endswith("done")
    assert api_fixture.broker.destinations.queue("q").waiting == 1


@in_event_loop
async def test_commit_creates_a_deleted_queue_as_jms_clients_do(api_fixture: ApiFixture) -> None:
    prepared = begin_transaction(api_fixture, b"a")
    broker = api_fixture.broker
    broker.transactions.prepare(prepared, encode_xid(XID))
    broker.remove(broker.destinations.queue("q"))
    path = f"/transactions/{id_of(prepared)}/commit"
    assert (await api_fixture.http_client().request("POST", path)).status == 204
    queue = broker.destinations.queue("q")
    assert (queue.waiting, queue.settings) == (1, DEFAULTS)


def prepare(broker: LocalBroker, xid: Xid, body: str) -> None:
    """Consume one message, send another and prepare in a JMS session, then disconnect."""
    url = f"jmq://127.0.0.1:{broker.port('jmq')}"
    with BlockingClient(JmqClient.open, url, reconnect=None) as jms_client:
        jms_client.session().producer("in").send(body)
        session = jms_client.session()
        session.xa.start(xid)
        assert session.consumer("in").receive(TIMEOUT).body == body
        session.producer("out").send(body.upper())
        session.xa.end(xid)
        session.xa.prepare(xid)


@pytest.mark.parametrize("restart", [False, True])
def test_administrator_ends_prepared_transactions(start: Start, restart: bool) -> None:
    broker = start(HTTP, JMQ)
    for number in range(2):
        prepare(broker, Xid(1, b"g", bytes([number])), f"text {number}")
    with Client(broker.port("http")) as client:
        before = client.get("/transactions").json()["items"]
    if restart:
        broker.kill()
        broker.start()
    with Client(broker.port("http")) as client:
        items = client.get("/transactions").json()["items"]
        assert [item["state"] for item in items] == ["prepared", "prepared"]
        assert [(item["publishes"], item["acks"]) for item in items] == [(1, 1)] * 2
        # ids survive a restart, so that an administrator ends the right transaction
        assert [item["id"] for item in items] == [item["id"] for item in before]
        by_branch = {item["xid"]["branch_qualifier"]: item["id"] for item in items}
        assert client.request("POST", f"/transactions/{by_branch['00']}/commit").status == 204
        assert client.request("POST", f"/transactions/{by_branch['01']}/rollback").status == 204
        assert client.get("/transactions").json()["items"] == []
    broker.kill()
    broker.start()
    with Client(broker.port("http")) as client:
        assert client.get("/transactions").json()["items"] == []
    url = f"jmq://127.0.0.1:{broker.port('jmq')}"
    with BlockingClient(JmqClient.open, url, reconnect=None) as jms_client:
        session = jms_client.session()
        assert session.consumer("out").receive(TIMEOUT).body == "TEXT 0"
        assert session.consumer("in").receive(TIMEOUT).body == "text 1"
        with pytest.raises(ClientError):
            session.xa.commit(Xid(1, b"g", b"\0"))
