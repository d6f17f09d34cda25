"""kill -9 around PREPARE and COMMIT: after a restart, RECOVER on another connection lists the
prepared transactions, which can be ended by their Xids, and each message exists exactly once."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from sluicemq.cli.local import PROGRAM, LocalBroker
from sluicemq.model.errors import ClientError
from sluicemq.protocols.jmq.fields import XID_SIZE, Xid, decode_xid
from sluicemq.protocols.jmq.packets import PacketType, Status, XaFlag
from tests.faults.jmsload import consume_all
from tests.faults.plan import SMALL_SEGMENTS, machine, seeded_random, size
from tests.protocols.jmq.raw import RawJmq, number_of, status_of

KILLS = size(5, 100)
SOURCE = "prepared.in"
TARGET = "prepared.out"
FORMAT = 0x51


class Branch(NamedTuple):
    """A transaction that is or may be prepared."""

    xid: Xid
    acked: frozenset[bytes]
    sent: frozenset[bytes]


class ExpectedState:
    """Expected messages of the two queues, and the open transactions."""

    def __init__(self) -> None:
        self.source: set[bytes] = set()
        self.target: set[bytes] = set()
        self.open: dict[Xid, Branch] = {}
        self.unknown: dict[Xid, tuple[Branch, str]] = {}
        """Unconfirmed requests to a killed broker: "prepare", "commit" or "rollback"."""
        self.committed = 0
        self.rolled_back = 0

    def commit(self, branch: Branch) -> None:
        self.target |= branch.sent
        self.committed += 1

    def roll_back(self, branch: Branch) -> None:
        self.source |= branch.acked
        self.rolled_back += 1

    def recovered(self, xids: set[Xid]) -> None:
        """Compare the open transactions with those the broker reports as prepared."""
        for xid, (branch, attempted) in self.unknown.items():
            if xid in xids:
                self.open[xid] = branch
            elif attempted == "commit":
                self.commit(branch)
            else:  # transactions that were not prepared are rolled back
                self.roll_back(branch)
        self.unknown.clear()
        assert xids == self.open.keys(), "prepared transactions are missing, or too many"


def test_kill_between_prepare_and_commit(tmp_path: Path) -> None:
    rng = seeded_random()
    brokers = [
        LocalBroker(
            tmp_path,
            ["jmq://127.0.0.1:0?services=jms"],
            environment=SMALL_SEGMENTS,
            program=program,
        )
        for program in (PROGRAM, machine("volatile"))
    ]
    expected_state = ExpectedState()
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.stop)
        for iteration in range(KILLS):
            broker = brokers[iteration % 2].start()
            port = broker.port("jmq")
            check_prepared(port, expected_state)
            end_transactions(port, expected_state, rng)
            if iteration % 4 == 3:
                check_queues(port, expected_state)
            prepare_transaction(port, expected_state, rng, iteration)
            kill_broker(broker, port, expected_state, rng)
        broker = brokers[0].start()
        port = broker.port("jmq")
        check_prepared(port, expected_state)
        end_transactions(port, expected_state, rng, end_all=True)
        check_prepared(port, expected_state)
        check_queues(port, expected_state)
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()
    assert expected_state.committed + expected_state.rolled_back == KILLS
    print(f"{expected_state.committed} committed, {expected_state.rolled_back} rolled back")


def check_prepared(port: int, expected_state: ExpectedState) -> None:
    """Compare RECOVER on a new connection with the expected state."""
    with RawJmq.login(port) as client:
        reply = client.request_transaction(PacketType.RECOVER_TRANSACTION, flags=XaFlag.STARTRSCAN)
        assert status_of(reply) == Status.OK
        count = number_of(reply, "JMQQuantity")
        assert len(reply.body) == count * XID_SIZE
        starts = range(0, len(reply.body), XID_SIZE)
        expected_state.recovered(
            {decode_xid(reply.body[position : position + XID_SIZE]) for position in starts}
        )


def end_transactions(
    port: int, expected_state: ExpectedState, rng: random.Random, *, end_all: bool = False
) -> None:
    """Commit or roll back transactions by Xid on a new connection."""
    with RawJmq.login(port) as client:
        for xid, branch in list(expected_state.open.items()):
            if end_all or rng.random() < 0.6:
                commit = rng.random() < 0.6
                kind = commit_or_rollback(commit)
                reply = client.request_transaction(kind, xid, flags=XaFlag.NOFLAGS)
                assert status_of(reply) == Status.OK, reply.properties
                del expected_state.open[xid]
                (expected_state.commit if commit else expected_state.roll_back)(branch)


def commit_or_rollback(commit: bool) -> PacketType:
    return PacketType.COMMIT_TRANSACTION if commit else PacketType.ROLLBACK_TRANSACTION


def prepare_transaction(
    port: int, expected_state: ExpectedState, rng: random.Random, iteration: int
) -> None:
    """Begin a transaction that acknowledges and sends messages; perhaps prepare it, or begin to."""
    source_bodies = {b"in %d %d" % (iteration, n) for n in range(rng.randint(1, 4))}
    to_send = [b"out %d %d" % (iteration, n) for n in range(rng.randint(1, 5))]
    xid = Xid(FORMAT, b"branch %d" % iteration, rng.randbytes(rng.randint(0, 64)))
    with RawJmq.login(port) as client:
        for body in sorted(source_bodies):
            assert client.send(SOURCE, body) == Status.OK
        expected_state.source |= source_bodies
        client.session = client.create_session(None)
        start = client.request_transaction(PacketType.START_TRANSACTION, xid, flags=XaFlag.NOFLAGS)
        assert status_of(start) == Status.OK, start.properties
        number = number_of(start, "JMQTransactionID")
        assert status_of(client.consume(SOURCE)) == Status.OK
        messages = [client.receive() for _ in range(rng.randint(1, len(expected_state.source)))]
        for message in messages:
            assert client.acknowledge(message, transaction=number) == Status.OK
        for body in to_send:
            assert client.send(TARGET, body, transaction=number) == Status.OK
        end = client.request_transaction(PacketType.END_TRANSACTION, xid, flags=XaFlag.SUCCESS)
        assert status_of(end) == Status.OK, end.properties
        bodies = frozenset(message.body for message in messages)
        assert bodies <= expected_state.source, (
            "a message acknowledged by a prepared transaction was redelivered"
        )
        expected_state.source -= bodies
        branch = Branch(xid, bodies, frozenset(to_send))
        expected_state.unknown[xid] = branch, "prepare"
        method = rng.random()
        if method < 0.7:
            reply = client.request_transaction(
                PacketType.PREPARE_TRANSACTION, xid, number, XaFlag.NOFLAGS
            )
            assert status_of(reply) == Status.OK, reply.properties
            del expected_state.unknown[xid]
            expected_state.open[xid] = branch
        elif method < 0.85:
            client.send_transaction_packet(
                PacketType.PREPARE_TRANSACTION, xid, flags=XaFlag.NOFLAGS
            )
            time.sleep(rng.uniform(0, 0.01))


def kill_broker(
    broker: LocalBroker, port: int, expected_state: ExpectedState, rng: random.Random
) -> None:
    """Kill the broker: at once, or during a request whose outcome remains unknown."""
    if rng.random() < 0.5 or not expected_state.open:
        broker.kill()
        return
    xid, branch = rng.choice(list(expected_state.open.items()))
    commit = rng.random() < 0.6
    with RawJmq.login(port) as client:
        del expected_state.open[xid]
        expected_state.unknown[xid] = branch, "commit" if commit else "rollback"
        client.send_transaction_packet(commit_or_rollback(commit), xid, flags=XaFlag.NOFLAGS)
        time.sleep(rng.uniform(0, 0.01))
        broker.kill()
        with suppress(ClientError):
            client.receive(0.01)


def check_queues(port: int, expected_state: ExpectedState) -> None:
    """Consume both queues, which must contain exactly the expected messages."""
    for queue, expected in ((SOURCE, expected_state.source), (TARGET, expected_state.target)):
        assert sorted(consume_all(port, queue)) == sorted(expected), (
            f"{queue} does not contain the expected messages"
        )
        expected.clear()
