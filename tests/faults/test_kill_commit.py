"""kill -9 while a large transaction is prepared or committed, which the broker does in slices:
after a restart the transaction has taken effect completely or not at all, and no message exists
twice.

Each iteration has a new transaction that acknowledges messages of one queue and sends to another.
The broker is killed during a commit in one phase, a PREPARE, or the commit of a prepared branch.
The time of the kill is random within the measured duration of the same request.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from sluicemq.cli.local import PROGRAM, LocalBroker
from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.jmq.fields import Xid, decode_xid
from sluicemq.protocols.jmq.packets import PacketType, Status, XaFlag
from tests.faults.jmsload import consume_all, send_in_bursts
from tests.faults.plan import SMALL_SEGMENTS, machine, seeded_random, size
from tests.protocols.jmq.raw import RawJmq, number_of, status_of

KILLS: Final = size(3, 30)
SENDS: Final = size(1500, 20_000)
ACKS: Final = size(300, 2000)
SOURCE: Final = "commit.in"
TARGET: Final = "commit.out"
FORMAT: Final = 0x51


class Request(Enum):
    """Request in progress when the broker is killed."""

    ONE_PHASE = "commit in one phase"
    PREPARE = "prepare"
    COMMIT = "commit of a prepared branch"


class TransactionPlan(NamedTuple):
    """A transaction: number, Xid or None, and bodies of the acknowledged and sent messages."""

    number: int
    xid: Xid | None
    acked: list[bytes]
    sent: list[bytes]


REQUESTS: Final = list(Request)


def test_kill_during_large_commit_is_atomic(tmp_path: Path) -> None:
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
    outcomes: list[str] = []
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.kill)
        broker = brokers[0].start()
        seconds = measure_requests(broker.port("jmq"))
        for iteration in range(KILLS):
            request = REQUESTS[iteration % len(REQUESTS)]
            delay = rng.uniform(0, 1.2 * seconds[request])
            plan, is_confirmed = kill_during(broker, request, iteration, delay)
            broker = brokers[rng.randrange(2)].start()
            committed = find_outcome(broker.port("jmq"), request, plan, is_confirmed, rng)
            committed = check_all_or_nothing(broker.port("jmq"), plan, committed)
            outcomes.append(f"{request.value}, {is_confirmed=}, {committed=}")
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()
    print("\n".join(outcomes))


def measure_requests(port: int) -> dict[Request, float]:
    """Return the duration of each request in seconds; the transactions are committed."""
    seconds = {}
    with RawJmq.login(port) as client:
        plan = begin_transaction(client, Request.ONE_PHASE, "measured 1")
        seconds[Request.ONE_PHASE] = time_request(client, Request.ONE_PHASE, plan)
        plan = begin_transaction(client, Request.PREPARE, "measured 2")
        seconds[Request.PREPARE] = time_request(client, Request.PREPARE, plan)
        seconds[Request.COMMIT] = time_request(client, Request.COMMIT, plan)
    assert len(consume_all(port, TARGET)) == 2 * SENDS
    assert not consume_all(port, SOURCE)
    return seconds


def time_request(client: RawJmq, request: Request, plan: TransactionPlan) -> float:
    start = time.monotonic()
    reply = client.reply_to(send_request(client, request, plan))
    assert status_of(reply) == Status.OK, reply.properties
    return time.monotonic() - start


def begin_transaction(client: RawJmq, request: Request, name: str) -> TransactionPlan:
    """Begin a transaction and add its operations; a branch of two phases is ended.

    The bodies of the messages contain `name`.
    """
    xid = None if request is Request.ONE_PHASE else Xid(FORMAT, name.encode(), b"")
    source_bodies = [b"in %b %d" % (name.encode(), number) for number in range(ACKS)]
    assert set(send_in_bursts(client, SOURCE, source_bodies)) == {Status.OK}
    client.session = client.create_session(None)
    flags = None if xid is None else XaFlag.NOFLAGS
    start = client.request_transaction(PacketType.START_TRANSACTION, xid, flags=flags)
    assert status_of(start) == Status.OK, start.properties
    number = number_of(start, "JMQTransactionID")
    assert status_of(client.consume(SOURCE)) == Status.OK
    for _ in range(0, ACKS, 100):
        messages = [client.receive() for _ in range(100)]
        assert client.acknowledge(*messages, transaction=number) == Status.OK
    sent = [b"out %b %d" % (name.encode(), number) for number in range(SENDS)]
    assert set(send_in_bursts(client, TARGET, sent, number)) == {Status.OK}
    if xid is not None:
        end = client.request_transaction(PacketType.END_TRANSACTION, xid, flags=XaFlag.SUCCESS)
        assert status_of(end) == Status.OK, end.properties
    return TransactionPlan(number, xid, source_bodies, sent)


def send_request(client: RawJmq, request: Request, plan: TransactionPlan) -> int:
    """Send the request and return its number for `reply_to`."""
    if request is Request.ONE_PHASE:
        return client.send_transaction_packet(
            PacketType.COMMIT_TRANSACTION, transaction=plan.number
        )
    if request is Request.PREPARE:
        kind = PacketType.PREPARE_TRANSACTION
        return client.send_transaction_packet(kind, plan.xid, plan.number, XaFlag.NOFLAGS)
    return client.send_transaction_packet(
        PacketType.COMMIT_TRANSACTION, plan.xid, flags=XaFlag.NOFLAGS
    )


def kill_during(
    broker: LocalBroker, request: Request, iteration: int, delay: float
) -> tuple[TransactionPlan, bool]:
    """Kill the broker `delay` seconds after the request.

    Return the transaction, and whether the broker has confirmed the request.
    """
    with RawJmq.login(broker.port("jmq")) as client:
        plan = begin_transaction(client, request, f"iteration {iteration}")
        if request is Request.COMMIT:
            time_request(client, Request.PREPARE, plan)
        number = send_request(client, request, plan)
        time.sleep(delay)
        broker.kill()
        try:
            reply = client.reply_to(number)
        except ConnectionLost:
            return plan, False
        assert status_of(reply) == Status.OK, reply.properties
        return plan, True


def find_outcome(
    port: int, request: Request, plan: TransactionPlan, is_confirmed: bool, rng: random.Random
) -> bool | None:
    """Return whether the transaction must be committed after the restart; None: unknown.

    Commits or rolls back a branch that is still prepared.
    """
    with RawJmq.login(port) as client:
        reply = client.request_transaction(PacketType.RECOVER_TRANSACTION, flags=XaFlag.STARTRSCAN)
        assert status_of(reply) == Status.OK, reply.properties
        if number_of(reply, "JMQQuantity") == 0:
            assert not (request is Request.PREPARE and is_confirmed), "a prepared branch is lost"
            # prepared transactions are kept, and others are not committed
            outcomes = {Request.ONE_PHASE: is_confirmed or None, Request.COMMIT: True}
            return outcomes.get(request, False)
        assert number_of(reply, "JMQQuantity") == 1
        assert plan.xid is not None
        assert decode_xid(reply.body) == plan.xid
        assert not (request is Request.COMMIT and is_confirmed), (
            "a committed branch is prepared again"
        )
        commit = rng.random() < 0.5
        kind = PacketType.COMMIT_TRANSACTION if commit else PacketType.ROLLBACK_TRANSACTION
        end_reply = client.request_transaction(kind, plan.xid, flags=XaFlag.NOFLAGS)
        assert status_of(end_reply) == Status.OK, end_reply.properties
        return commit


def check_all_or_nothing(port: int, plan: TransactionPlan, committed: bool | None) -> bool:
    """Consume both queues; check that the transaction is committed or not, None: either.

    Return whether it is committed.
    """
    sent = sorted(consume_all(port, TARGET))
    acked = sorted(consume_all(port, SOURCE))
    if committed is None:
        committed = bool(sent)
    outcome = f"{committed=}, {len(sent)} of {SENDS} were sent, {ACKS - len(acked)} of {ACKS} acked"
    expected_sent = sorted(plan.sent) if committed else []
    expected_acked = [] if committed else sorted(plan.acked)
    # keeps the lists of bodies out of the report
    is_complete = sent == expected_sent and acked == expected_acked
    assert is_complete, outcome
    return committed
