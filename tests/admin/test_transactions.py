"""Transactions that are listed, and ended by hand, before and after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq.broker import Transaction
from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ClientError
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.jmq.client import BlockingJmqClient
from sluicemq.protocols.jmq.ids import Xid, encode_xid
from tests.admin.client import HTTP, TIMEOUT, Client
from tests.admin.inside import Inside, Visitor, looped
from tests.server.conftest import Start

JMQ = "jmq://127.0.0.1:0"
XID = Xid(7, b"global", b"branch")


def begin(inside: Inside, *bodies: bytes) -> Transaction:
    """An open one that sends those to `q`."""
    transactions = inside.broker.transactions
    transaction = transactions.begin()
    queue = inside.broker.queue("q")
    for body in bodies:
        message = Message(queue.address, body, durability=Durability.NONE)
        transactions.publish(transaction, queue, message)
    return transaction


async def listed(visitor: Visitor, query: str = "") -> list[dict[str, Any]]:
    answer = await visitor.ask("GET", f"/transactions?{query}")
    assert answer.status == 200, answer
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


@looped
async def test_what_a_list_says(inside: Inside) -> None:
    begin(inside, b"a")
    since = inside.clock.wall
    inside.clock.advance(10)
    prepared = begin(inside, b"b", b"c")
    inside.broker.transactions.prepare(prepared, encode_xid(XID))
    visitor = inside.visitor()
    first, second = await listed(visitor)
    assert (first["state"], first["sends"], first["since"]) == ("open", 1, since)
    assert "xid" not in first
    assert second == {
        "id": f"p{prepared.record}",
        "state": "prepared",
        "protocol": "jmq",
        "xid": {"format": 7, "global": b"global".hex(), "branch": b"branch".hex()},
        "sends": 2,
        "acks": 0,
        "since": since + 10,
    }
    assert await listed(visitor, "state=prepared") == [second]
    assert await listed(visitor, "order=desc") == [second, first]
    assert await listed(visitor, "sort=sends&page_size=1&page=2") == [second]


@looped
async def test_an_open_one_can_only_be_rolled_back(inside: Inside) -> None:
    transaction = begin(inside, b"a")
    told: list[bool] = []
    transaction.told = told.append
    visitor = inside.visitor()
    [item] = await listed(visitor)
    answer = await visitor.ask("POST", f"/transactions/{item['id']}/commit")
    assert (answer.status, answer.code) == (409, "transaction-open")
    assert (await visitor.ask("POST", f"/transactions/{item['id']}/rollback")).status == 204
    assert told == [False]
    assert await listed(visitor) == []
    for what in ("commit", "rollback"):
        answer = await visitor.ask("POST", f"/transactions/{item['id']}/{what}")
        assert (answer.status, answer.code) == (404, "transaction-not-found")


@looped
async def test_names_of_others_and_of_none(inside: Inside) -> None:
    prepared = begin(inside)
    inside.broker.transactions.prepare(prepared, b"not of java")
    visitor = inside.visitor()
    [item] = await listed(visitor)
    assert item["xid"] == {"format": 0, "global": b"not of java".hex(), "branch": ""}
    for name in ("p", "1", f"o{prepared.number}", "%2F", "p99999999999999999999", "..."):
        answer = await visitor.ask("POST", f"/transactions/{name}/rollback")
        assert (answer.status, answer.code) == (404, "transaction-not-found"), name
    assert len(inside.broker.transactions.prepared) == 1


@looped
async def test_to_who_may_not_end_it_there_is_no_such_transaction(inside: Inside) -> None:
    inside.add("root", superuser=True)
    inside.add("anna", "*: browse consume create delete")
    transaction = begin(inside, b"a")
    inside.broker.transactions.prepare(transaction, encode_xid(XID))
    anna, root = inside.visitor(), inside.visitor()
    await anna.login("anna")
    await root.login("root")
    name = f"p{transaction.record}"
    assert await listed(anna) == []
    for verdict in ("commit", "rollback"):
        answer = await anna.ask("POST", f"/transactions/{name}/{verdict}")
        assert (answer.status, answer.code) == (404, "transaction-not-found"), verdict
    assert inside.broker.transactions.prepared
    assert (await root.ask("POST", f"/transactions/{name}/commit")).status == 204
    done = inside.said()[-1]
    assert done.startswith(f"change: root POST /api/v1/transactions/{name}/commit 1 sent, 0 taken")
    assert f"xid 7:{b'global'.hex()}:{b'branch'.hex()}" in done
    assert done.endswith("done")
    assert inside.broker.queue("q").waiting == 1


def prepare(broker: LocalBroker, xid: Xid, body: str) -> None:
    """A Java client takes one message, sends another, and is never heard of again."""
    where = f"jmq://127.0.0.1:{broker.port('jmq')}"
    with BlockingJmqClient.open(where, reconnect=None) as java:
        java.session().producer("in").send(body)
        session = java.session()
        session.xa.start(xid)
        assert session.consumer("in").receive(TIMEOUT).body == body
        session.producer("out").send(body.upper())
        session.xa.end(xid)
        session.xa.prepare(xid)


@pytest.mark.parametrize("restart", [False, True])
def test_somebody_decides(start: Start, restart: bool) -> None:
    broker = start(HTTP, JMQ)
    for number in range(2):
        prepare(broker, Xid(1, b"g", bytes([number])), f"text {number}")
    with Client(broker.port("http")) as client:
        before = client.get("/transactions").json()["items"]
    if restart:
        broker.kill()
        broker.start()
    with Client(broker.port("http")) as client:
        found = client.get("/transactions").json()["items"]
        assert [item["state"] for item in found] == ["prepared", "prepared"]
        assert [(item["sends"], item["acks"]) for item in found] == [(1, 1)] * 2
        # the same name after a restart: nobody ends another one than they have looked at
        assert [item["id"] for item in found] == [item["id"] for item in before]
        by_branch = {item["xid"]["branch"]: item["id"] for item in found}
        assert client.ask("POST", f"/transactions/{by_branch['00']}/commit").status == 204
        assert client.ask("POST", f"/transactions/{by_branch['01']}/rollback").status == 204
        assert client.get("/transactions").json()["items"] == []
    broker.kill()
    broker.start()
    with Client(broker.port("http")) as client:
        assert client.get("/transactions").json()["items"] == []
    where = f"jmq://127.0.0.1:{broker.port('jmq')}"
    with BlockingJmqClient.open(where, reconnect=None) as java:
        session = java.session()
        assert session.consumer("out").receive(TIMEOUT).body == "TEXT 0"
        assert session.consumer("in").receive(TIMEOUT).body == "text 1"
        with pytest.raises(ClientError):
            session.xa.commit(Xid(1, b"g", b"\0"))
