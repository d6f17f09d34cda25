"""Transactions ended by an administrator, and the replies that their clients receive afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.packets import (
    AckMode,
    PacketType,
    ReportedTransactionState,
    Status,
    XaFlag,
)
from tests.protocols.jmq.harness import DiskHarness, Harness, Peer, xid
from tests.protocols.jmq.test_transactions import id_property
from tests.protocols.jmq.test_xa import COMMIT, END, PREPARE, ROLLBACK, START, start_in_state, step

S = ReportedTransactionState


def prepare_transaction(peer: Peer, text: str) -> None:
    """Prepare a transaction `x` that sends `text` to `q`."""
    transaction = step(peer, START).properties["JMQTransactionID"]
    assert isinstance(transaction, int)
    peer.send("q", text, transaction_id=transaction)
    step(peer, END, flags=XaFlag.SUCCESS)
    step(peer, PREPARE)


def test_transaction_manager_finds_branch_committed_by_administrator(
    harness: Harness, peer: Peer
) -> None:
    prepare_transaction(peer, "a")
    transactions = harness.broker.transactions
    transactions.commit(transactions.prepared[xid("x")])
    harness.run_event_loop()
    assert harness.bodies("q") == [b"a"]
    peer.request(COMMIT, {"JMQXAFlags": 0}, xid("x"), expect=Status.OK)
    peer.request(ROLLBACK, {"JMQXAFlags": 0}, xid("x"), expect=Status.PRECONDITION_FAILED)
    assert harness.bodies("q") == [b"a"]


def test_transaction_manager_finds_branch_rolled_back_by_administrator(
    harness: Harness, peer: Peer
) -> None:
    prepare_transaction(peer, "a")
    transactions = harness.broker.transactions
    transactions.rollback(transactions.prepared[xid("x")])
    harness.run_event_loop()
    peer.request(ROLLBACK, {"JMQXAFlags": 0}, xid("x"), expect=Status.OK)
    peer.request(COMMIT, {"JMQXAFlags": 0}, xid("x"), expect=Status.PRECONDITION_FAILED)
    assert harness.bodies("q") == []


def test_xid_can_be_reused_after_administrative_end(harness: Harness, peer: Peer) -> None:
    prepare_transaction(peer, "a")
    transactions = harness.broker.transactions
    transactions.rollback(transactions.prepared[xid("x")])
    start_in_state(peer, S.PREPARED)
    assert list(transactions.prepared) == [xid("x")]


def test_open_transaction_ended_by_administrator_reports_timeout(
    harness: Harness, peer: Peer
) -> None:
    """The client receives the same status as after the broker's transaction timeout."""
    session = peer.create_session(AckMode.NONE)
    peer.consume("q", session)
    transaction = peer.begin(session)
    peer.send("q", "a")
    peer.acknowledge(*peer.delivered(), transaction=transaction)
    peer.send("r", "b", transaction_id=transaction)
    [open_transaction] = harness.broker.transactions.open.values()
    harness.broker.transactions.rollback(open_transaction)
    harness.run_event_loop()
    assert harness.queue("q").unacked == 1  # delivered once more
    peer.delivered()
    peer.send("r", "c", transaction_id=transaction, expect=Status.TIMEOUT)
    peer.commit(transaction, expect=Status.TIMEOUT)
    assert harness.bodies("r") == []
    # and continues
    following = peer.begin(session)
    peer.send("r", "d", transaction_id=following)
    peer.commit(following)
    assert harness.bodies("r") == [b"d"]


def test_disconnected_client_is_not_notified(harness: Harness, peer: Peer) -> None:
    prepare_transaction(peer, "a")
    peer.session.closed()
    transactions = harness.broker.transactions
    transactions.commit(transactions.prepared[xid("x")])
    harness.run_event_loop()
    assert harness.bodies("q") == [b"a"]
    other = harness.connect()
    other.request(COMMIT, {"JMQXAFlags": 0}, xid("x"), expect=Status.OK)


@pytest.mark.parametrize("recovered_before", [False, True])
def test_administrative_end_is_known_after_restart(tmp_path: Path, recovered_before: bool) -> None:
    """With and without an earlier request of its transaction manager."""
    harness = DiskHarness(tmp_path)
    prepare_transaction(harness.connect(), "a")
    [before] = harness.broker.transactions.prepared.values()
    harness = harness.restart()
    peer = harness.connect()
    transactions = harness.broker.transactions
    branch = transactions.prepared[xid("x")]
    assert branch.created == before.created
    if recovered_before:
        recovered = peer.request(
            PacketType.RECOVER_TRANSACTION, {"JMQXAFlags": XaFlag.STARTRSCAN}, expect=Status.OK
        )
        assert recovered.body == xid("x")
    transactions.commit(branch)
    harness.run_event_loop()
    assert harness.bodies("q") == [b"a"]
    expected = Status.OK if recovered_before else Status.NOT_FOUND
    peer.request(COMMIT, {"JMQXAFlags": 0}, xid("x"), expect=expected)
    harness = harness.restart()
    assert not harness.broker.transactions.prepared
    reader = harness.connect()
    reader.consume("q", reader.create_session())
    assert reader.texts() == ["a"]


def test_rollback_by_client_reports_no_timeout(peer: Peer) -> None:
    transaction = peer.begin()
    peer.request(PacketType.ROLLBACK_TRANSACTION, id_property(transaction), expect=Status.OK)
    properties = {"JMQTransactionID": Long(transaction)}
    peer.request(PacketType.COMMIT_TRANSACTION, properties, expect=Status.NOT_FOUND)
