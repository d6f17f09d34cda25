"""kill -9 while a large transaction is prepared or committed, which the broker does in slices:
after a restart everything of the transaction is there or nothing, and nothing twice.

Each turn has a fresh transaction that acknowledges messages of one queue and sends to another. What
is killed is, in turns, a commit in one phase, a PREPARE, and the commit of a prepared branch. The
time of the kill is random within the time that the same request took when nothing disturbed it.
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


def test_kill_during_large_commit(tmp_path: Path) -> None:
    chance = seeded_random()
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
        seconds = measure(broker.port("jmq"))
        for turn in range(KILLS):
            request = REQUESTS[turn % len(REQUESTS)]
            delay = chance.uniform(0, 1.2 * seconds[request])
            work, answered = kill_during(broker, request, turn, delay)
            broker = brokers[chance.randrange(2)].start()
            committed = find_outcome(broker.port("jmq"), request, work, answered, chance)
            committed = expect_all_or_nothing(broker.port("jmq"), work, committed)
            outcomes.append(f"{request.value}, {answered=}, {committed=}")
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()
    print("\n".join(outcomes))


def measure(port: int) -> dict[Request, float]:
    """Return the seconds that each request takes, the transactions of which are committed."""
    seconds = {}
    with RawJmq.login(port) as client:
        work = begin(client, Request.ONE_PHASE, "measured 1")
        seconds[Request.ONE_PHASE] = time_of(client, Request.ONE_PHASE, work)
        work = begin(client, Request.PREPARE, "measured 2")
        seconds[Request.PREPARE] = time_of(client, Request.PREPARE, work)
        seconds[Request.COMMIT] = time_of(client, Request.COMMIT, work)
    assert len(consume_all(port, TARGET)) == 2 * SENDS
    assert not consume_all(port, SOURCE)
    return seconds


def time_of(client: RawJmq, request: Request, work: TransactionPlan) -> float:
    start = time.monotonic()
    reply = client.reply_to(ask(client, request, work))
    assert status_of(reply) == Status.OK, reply.properties
    return time.monotonic() - start


def begin(client: RawJmq, request: Request, name: str) -> TransactionPlan:
    """Begin a transaction with messages that `name` distinguishes from all others, and do all that
    belongs to it; a branch of two phases is ended."""
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


def ask(client: RawJmq, request: Request, work: TransactionPlan) -> int:
    """Send the request. Returns its number, for `reply_to`."""
    if request is Request.ONE_PHASE:
        return client.send_transaction_packet(
            PacketType.COMMIT_TRANSACTION, transaction=work.number
        )
    if request is Request.PREPARE:
        kind = PacketType.PREPARE_TRANSACTION
        return client.send_transaction_packet(kind, work.xid, work.number, XaFlag.NOFLAGS)
    return client.send_transaction_packet(
        PacketType.COMMIT_TRANSACTION, work.xid, flags=XaFlag.NOFLAGS
    )


def kill_during(
    broker: LocalBroker, request: Request, turn: int, delay: float
) -> tuple[TransactionPlan, bool]:
    """Kill the broker `delay` seconds after the request. Returns the transaction, and whether the
    request was answered."""
    with RawJmq.login(broker.port("jmq")) as client:
        work = begin(client, request, f"turn {turn}")
        if request is Request.COMMIT:
            time_of(client, Request.PREPARE, work)
        number = ask(client, request, work)
        time.sleep(delay)
        broker.kill()
        try:
            reply = client.reply_to(number)
        except ConnectionLost:
            return work, False
        assert status_of(reply) == Status.OK, reply.properties
        return work, True


def find_outcome(
    port: int, request: Request, work: TransactionPlan, answered: bool, chance: random.Random
) -> bool | None:
    """Return whether the transaction must be committed after the restart; None = it may be either.

    A branch that is still prepared is committed or rolled back here.
    """
    with RawJmq.login(port) as client:
        reply = client.request_transaction(PacketType.RECOVER_TRANSACTION, flags=XaFlag.STARTRSCAN)
        assert status_of(reply) == Status.OK, reply.properties
        if number_of(reply, "JMQQuantity") == 0:
            assert not (request is Request.PREPARE and answered), "a prepared branch is lost"
            # prepared transactions are not dropped, and others are not committed
            outcomes = {Request.ONE_PHASE: answered or None, Request.COMMIT: True}
            return outcomes.get(request, False)
        assert number_of(reply, "JMQQuantity") == 1
        assert work.xid is not None
        assert decode_xid(reply.body) == work.xid
        assert not (request is Request.COMMIT and answered), "a committed branch is prepared again"
        commit = chance.random() < 0.5
        kind = PacketType.COMMIT_TRANSACTION if commit else PacketType.ROLLBACK_TRANSACTION
        end_reply = client.request_transaction(kind, work.xid, flags=XaFlag.NOFLAGS)
        assert status_of(end_reply) == Status.OK, end_reply.properties
        return commit


def expect_all_or_nothing(port: int, work: TransactionPlan, committed: bool | None) -> bool:
    """Take everything out of both queues. Fail unless it is what the transaction leaves when it is
    committed, or when it is not; None = either. Return whether it was committed."""
    sent = sorted(consume_all(port, TARGET))
    acked = sorted(consume_all(port, SOURCE))
    if committed is None:
        committed = bool(sent)
    outcome = f"{committed=}, {len(sent)} of {SENDS} were sent, {ACKS - len(acked)} of {ACKS} acked"
    expected_sent = sorted(work.sent) if committed else []
    expected_acked = [] if committed else sorted(work.acked)
    # no lists of thousands of bodies in the report
    is_whole = sent == expected_sent and acked == expected_acked
    assert is_whole, outcome
    return committed
