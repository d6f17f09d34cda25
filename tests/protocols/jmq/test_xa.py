"""Distributed transactions: every step from every state, and recovery of prepared branches."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.protocols.java import Long, loads_map
from sluicemq.protocols.jmq import transactions
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.packets import (
    LOCAL,
    STEPS,
    I,
    PacketType,
    Q,
    R,
    RejectedRequest,
    ReportedTransactionState,
    Status,
    XaFlag,
    state_after,
)
from sluicemq.protocols.jmq.wire import Packet
from tests.protocols.jmq.harness import DiskHarness, Harness, Peer, blocks, status, xid

H = PacketType
S = ReportedTransactionState

START, END = H.START_TRANSACTION, H.END_TRANSACTION
PREPARE, COMMIT, ROLLBACK = (
    H.PREPARE_TRANSACTION,
    H.COMMIT_TRANSACTION,
    H.ROLLBACK_TRANSACTION,
)


def step(
    peer: Peer, kind: PacketType, name: str = "x", flags: int = 0, bits: int = 0, **more: object
) -> Packet:
    properties = {"JMQXAFlags": flags, **more}
    return peer.request(kind, properties, xid(name), flags=bits)


def number_of(answer: Packet) -> int:
    assert status(answer) == Status.OK, answer.properties
    number = answer.properties["JMQTransactionID"]
    assert isinstance(number, int)
    return number


def start_in_state(peer: Peer, state: ReportedTransactionState, name: str = "x") -> int:
    """Start a transaction and bring it into a state; return its number."""
    number = number_of(step(peer, START, name))
    steps = {
        S.STARTED: [],
        S.INCOMPLETE: [(END, XaFlag.SUSPEND)],
        S.FAILED: [(END, XaFlag.FAIL)],
        S.COMPLETE: [(END, XaFlag.SUCCESS)],
        S.PREPARED: [(END, XaFlag.SUCCESS), (PREPARE, 0)],
        S.COMMITTED: [(END, XaFlag.SUCCESS), (COMMIT, XaFlag.ONEPHASE)],
        S.ROLLEDBACK: [(END, XaFlag.SUCCESS), (ROLLBACK, 0)],
    }
    for kind, flags in steps[state]:
        assert number_of(step(peer, kind, name, flags)) == number
    return number


# States from which each step is legal, according to the specification. The table repeats that of
# the implementation, so that an error in one of them is detected.
LEGAL: dict[tuple[PacketType, int], str] = {
    (START, XaFlag.NOFLAGS): "STARTED COMPLETE COMMITTED ROLLEDBACK",  # the last two: a new one
    (START, XaFlag.JOIN): "STARTED COMPLETE",
    (START, XaFlag.RESUME): "STARTED INCOMPLETE",
    (END, XaFlag.SUSPEND): "STARTED INCOMPLETE",
    (END, XaFlag.FAIL): "STARTED INCOMPLETE FAILED",
    (END, XaFlag.SUCCESS): "STARTED INCOMPLETE COMPLETE",
    (END, XaFlag.ONEPHASE): "STARTED INCOMPLETE COMPLETE",
    (PREPARE, XaFlag.NOFLAGS): "COMPLETE PREPARED",
    (COMMIT, XaFlag.NOFLAGS): "PREPARED COMMITTED",
    (COMMIT, XaFlag.ONEPHASE): "COMPLETE COMMITTED",
    (ROLLBACK, XaFlag.NOFLAGS): "INCOMPLETE COMPLETE FAILED PREPARED ROLLEDBACK",
}
STATES = [S.STARTED, S.INCOMPLETE, S.FAILED, S.COMPLETE, S.PREPARED, S.COMMITTED, S.ROLLEDBACK]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("request_", LEGAL, ids=lambda r: f"{r[0].name}-{r[1]:x}")
def test_every_step_from_every_state(
    harness: Harness, peer: Peer, request_: tuple[PacketType, int], state: ReportedTransactionState
) -> None:
    kind, flags = request_
    number = start_in_state(peer, state)
    reply = step(peer, kind, flags=flags)
    if state.name in LEGAL[request_].split():
        new = kind is START and state in (S.COMMITTED, S.ROLLEDBACK)
        assert (number_of(reply) == number) != new
    elif kind is START:
        expected = Status.ERROR
        if state in (S.COMMITTED, S.ROLLEDBACK):
            expected = Status.NOT_FOUND  # there is nothing to join
        assert status(reply) == expected
    elif kind is END and state is S.FAILED:
        assert status(reply) == Status.NOT_MODIFIED
    else:
        assert status(reply) == Status.PRECONDITION_FAILED


def test_table_has_no_other_steps() -> None:
    assert {key for key in STEPS if key[1] != LOCAL} == set(LEGAL)


@pytest.mark.parametrize("kind", [START, END, PREPARE, COMMIT, ROLLBACK])
def test_branch_is_rolled_back_after_its_timeout(kind: PacketType) -> None:
    harness = Harness()
    peer = harness.connect(SessionOptions(transaction_timeout=1000))
    number = number_of(step(peer, START))
    peer.send("q", "a", transaction_id=number)
    harness.run_event_loop(1000)
    flags = {START: XaFlag.JOIN, END: XaFlag.SUCCESS}.get(kind, 0)
    expected = Status.NOT_FOUND if kind is START else Status.TIMEOUT
    assert status(step(peer, kind, flags=flags)) == expected
    peer.send("q", "a", transaction_id=number, expect=Status.TIMEOUT)


def test_prepared_branch_does_not_time_out() -> None:
    harness = Harness()
    peer = harness.connect(SessionOptions(transaction_timeout=1000))
    peer.send("q", "a", transaction_id=start_in_state(peer, S.STARTED))
    step(peer, END, flags=XaFlag.SUCCESS)
    number_of(step(peer, PREPARE))
    harness.run_event_loop(5000)
    number_of(step(peer, COMMIT))
    assert harness.bodies("q") == [b"a"]


@pytest.mark.parametrize(
    ("state", "kind", "flags"),
    [(S.STARTED, START, 0), (S.COMPLETE, END, XaFlag.SUCCESS), (S.PREPARED, PREPARE, 0)],
)
def test_outcome_before_connection_was_lost_is_reported(
    peer: Peer, state: ReportedTransactionState, kind: PacketType, flags: int
) -> None:
    start_in_state(peer, state)
    assert status(step(peer, kind, flags=flags, bits=I)) == Status.NOT_MODIFIED
    assert status(step(peer, kind, flags=flags)) == Status.OK


@pytest.mark.parametrize("kind", [START, END, PREPARE, COMMIT, ROLLBACK])
def test_invalid_flags_are_refused(peer: Peer, kind: PacketType) -> None:
    start_in_state(peer, S.STARTED)
    reply = step(peer, kind, flags=XaFlag.ENDRSCAN)
    expected = Status.PRECONDITION_FAILED if kind is PREPARE else Status.BAD_REQUEST
    assert status(reply) == expected  # PREPARE has no flags: given ones are ignored


@pytest.mark.parametrize("kind", [END, PREPARE, COMMIT, ROLLBACK])
def test_unknown_xid_is_404(peer: Peer, kind: PacketType) -> None:
    assert status(step(peer, kind, "unknown")) == Status.NOT_FOUND
    for flags in (XaFlag.JOIN, XaFlag.RESUME):
        assert status(step(peer, START, "unknown", flags)) == Status.NOT_FOUND


def test_malformed_xids_are_refused(peer: Peer) -> None:
    for kind in (START, END, PREPARE, COMMIT, ROLLBACK):
        assert peer.request_status(kind, {"JMQXAFlags": 0}, bytes(135)) == Status.BAD_REQUEST
    invalid_xid = bytearray(xid("x"))
    invalid_xid[4:6] = b"\0\x41"
    assert peer.request_status(START, {"JMQXAFlags": 0}, bytes(invalid_xid)) == Status.BAD_REQUEST


def test_padding_of_xid_is_ignored(peer: Peer) -> None:
    number = number_of(step(peer, START))
    padded_xid = xid("x")[:-1] + b"!"
    reply = peer.request(END, {"JMQXAFlags": XaFlag.SUCCESS}, padded_xid)
    assert number_of(reply) == number


def test_number_and_xid_must_agree(peer: Peer) -> None:
    first, second = number_of(step(peer, START, "1")), number_of(step(peer, START, "2"))
    reply = step(peer, END, "1", XaFlag.SUCCESS, JMQTransactionID=Long(second))
    assert status(reply) == Status.BAD_REQUEST
    number_of(step(peer, END, "1", XaFlag.SUCCESS, JMQTransactionID=Long(first)))
    # a number from before a restart is no fault
    number_of(step(peer, PREPARE, "1", JMQTransactionID=Long(5)))


def test_noop_flag_changes_nothing(peer: Peer) -> None:
    number = number_of(step(peer, START))
    assert number_of(step(peer, END, flags=XaFlag.SUCCESS, JMQNoOp=True)) == number
    peer.send("q", "a", transaction_id=number)  # it goes on


# --- atomicity -----------------------------------------------------------------------------------


def use_transaction(peer: Peer, number: int) -> Packet:
    """Consume a message of `in`, and send one to `out`, in the transaction."""
    peer.consume("in", peer.create_session())
    peer.send("in", "a")
    [message] = peer.delivered()
    peer.acknowledge(message, transaction=number)
    peer.send("out", "b", transaction_id=number)
    return message


@pytest.mark.parametrize("phases", [1, 2])
def test_commit_applies_sends_and_acks(harness: Harness, peer: Peer, phases: int) -> None:
    use_transaction(peer, number_of(step(peer, START)))
    step(peer, END, flags=XaFlag.SUCCESS)
    if phases == 1:
        number_of(step(peer, COMMIT, flags=XaFlag.ONEPHASE))
    else:
        number_of(step(peer, PREPARE))
        assert harness.find("out") is None or harness.bodies("out") == []
        number_of(step(peer, COMMIT))
    assert harness.bodies("out") == [b"b"]
    assert harness.queue("in").unacked == 0
    assert harness.broker.transactions.prepared == {}


@pytest.mark.parametrize("prepared", [False, True])
def test_rollback_discards_sends_and_acks(harness: Harness, peer: Peer, prepared: bool) -> None:
    message = use_transaction(peer, number_of(step(peer, START)))
    step(peer, END, flags=XaFlag.SUCCESS)
    if prepared:
        number_of(step(peer, PREPARE))
    number_of(step(peer, ROLLBACK))
    [redelivered] = peer.delivered()
    assert redelivered.sysid == message.sysid
    assert redelivered.flags & R
    assert harness.bodies("out") == []


def test_rollback_with_redelivery(harness: Harness, peer: Peer) -> None:
    message = use_transaction(peer, number_of(step(peer, START)))
    step(peer, END, flags=XaFlag.FAIL)
    number_of(step(peer, ROLLBACK, JMQRedeliver=True))
    [redelivered] = peer.delivered()
    assert (redelivered.sysid, redelivered.consumer_id) == (message.sysid, message.consumer_id)


def test_messages_and_acks_require_started_branch(peer: Peer) -> None:
    peer.consume("in", peer.create_session())
    peer.send("in", "a")
    [message] = peer.delivered()
    for state in (S.COMPLETE, S.PREPARED, S.FAILED):
        number = start_in_state(peer, state, state.name)
        peer.send("q", "a", transaction_id=number, expect=Status.PRECONDITION_FAILED)
        header = encode_header(transaction_id=number)
        reply = peer.request(H.ACKNOWLEDGE, None, blocks(message), header=header)
        assert status(reply) == Status.PRECONDITION_FAILED
    peer.acknowledge(message)


def test_several_connections_in_one_transaction(harness: Harness, peer: Peer) -> None:
    other = harness.connect()
    number = number_of(step(peer, START))
    other.send("q", "no", transaction_id=number, expect=Status.GONE)
    assert number_of(step(other, START, flags=XaFlag.JOIN)) == number
    other.send("q", "a", transaction_id=number)
    peer.send("q", "b", transaction_id=number)
    step(other, END, flags=XaFlag.SUCCESS)
    number_of(step(other, COMMIT, flags=XaFlag.ONEPHASE))
    assert harness.bodies("q") == [b"a", b"b"]


def test_several_transactions_on_one_connection(harness: Harness, peer: Peer) -> None:
    numbers = [number_of(step(peer, START, name)) for name in "123"]
    for number, name in zip(numbers, "123", strict=True):
        peer.send("q", name, transaction_id=number)
    for name in "123":
        step(peer, END, name, XaFlag.SUCCESS)
    step(peer, COMMIT, "3", XaFlag.ONEPHASE)
    step(peer, ROLLBACK, "2")
    step(peer, COMMIT, "1", XaFlag.ONEPHASE)
    assert harness.bodies("q") == [b"3", b"1"]


def test_xid_can_be_used_again(harness: Harness, peer: Peer) -> None:
    for _ in range(3):
        number = number_of(step(peer, START))
        peer.send("q", "a", transaction_id=number)
        step(peer, END, flags=XaFlag.SUCCESS)
        number_of(step(peer, PREPARE))
        number_of(step(peer, COMMIT))
    assert harness.bodies("q") == [b"a"] * 3


# --- lost connections, restarts ------------------------------------------------------------------


def drop_connection(peer: Peer, state: ReportedTransactionState, **more: object) -> int:
    """Close the connection of a branch with messages in a state."""
    number = number_of(step(peer, START, **more))
    use_transaction(peer, number)
    flags = {S.INCOMPLETE: XaFlag.SUSPEND, S.FAILED: XaFlag.FAIL, S.COMPLETE: XaFlag.SUCCESS}
    if state is not S.STARTED:
        step(peer, END, flags=flags[state])
    peer.drop()
    return number


UNPREPARED = pytest.mark.parametrize("state", [S.STARTED, S.INCOMPLETE, S.FAILED, S.COMPLETE])


@UNPREPARED
def test_session_bound_branch_ends_with_its_connection(
    harness: Harness, peer: Peer, state: ReportedTransactionState
) -> None:
    drop_connection(peer, state, JMQSessionLess=False)
    assert harness.bodies("in") == [b"a"]
    assert harness.queue("in").unacked == 0
    other = harness.connect()
    assert status(step(other, COMMIT, flags=XaFlag.ONEPHASE)) == Status.PRECONDITION_FAILED
    assert status(step(other, ROLLBACK)) == Status.OK  # as it wishes


def test_branch_of_its_session_stays_with_connection_that_has_joined(
    harness: Harness, peer: Peer
) -> None:
    first = harness.connect()
    number = number_of(step(first, START, JMQSessionLess=False))
    number_of(step(peer, START, flags=XaFlag.JOIN))
    first.send("out", "a", transaction_id=number)
    first.drop()
    peer.send("out", "b", transaction_id=number)
    number_of(step(peer, END, flags=XaFlag.SUCCESS))
    number_of(step(peer, COMMIT, flags=XaFlag.ONEPHASE))
    assert harness.bodies("out") == [b"a", b"b"]


@UNPREPARED
@pytest.mark.parametrize("wish", [{}, {"JMQSessionLess": True}], ids=["absent", "true"])
def test_branch_survives_its_connection(
    harness: Harness, peer: Peer, state: ReportedTransactionState, wish: dict[str, object]
) -> None:
    number = drop_connection(peer, state, **wish)
    assert (harness.queue("in").waiting, harness.bodies("out")) == (0, [])
    other = harness.connect()
    if state is S.FAILED:
        assert status(step(other, PREPARE)) == Status.PRECONDITION_FAILED
        number_of(step(other, ROLLBACK))
        assert (harness.bodies("in"), harness.bodies("out")) == ([b"a"], [])
        return
    if state is not S.COMPLETE:
        resume = XaFlag.RESUME if state is S.INCOMPLETE else XaFlag.JOIN
        assert number_of(step(other, START, flags=resume)) == number
        other.send("out", "c", transaction_id=number)
        number_of(step(other, END, flags=XaFlag.SUCCESS))
    number_of(step(other, PREPARE))
    number_of(step(other, COMMIT))
    assert harness.bodies("out") == ([b"b"] if state is S.COMPLETE else [b"b", b"c"])
    assert harness.bodies("in") == []
    assert harness.queue("in").unacked == 0


def test_number_of_branches_without_connection_is_limited(harness: Harness) -> None:
    """The oldest branch of the owner is rolled back when another loses its connection."""
    options = SessionOptions(authentication="basic", max_per_connection=2)
    for name in ("x", "y", "z"):
        peer = harness.connect(options)
        peer.send("q", name, transaction_id=number_of(step(peer, START, name)))
        number_of(step(peer, END, name, XaFlag.SUCCESS))
        peer.drop()
    other = harness.connect(options)
    assert status(step(other, PREPARE, "x")) == Status.TIMEOUT
    number_of(step(other, COMMIT, "y", XaFlag.ONEPHASE))
    number_of(step(other, PREPARE, "z"))
    number_of(step(other, COMMIT, "z"))
    assert harness.bodies("q") == [b"y", b"z"]
    assert not harness.coordinator.branches._detached


def test_prepared_branches_survive_their_connection(harness: Harness, peer: Peer) -> None:
    use_transaction(peer, start_in_state(peer, S.STARTED))
    step(peer, END, flags=XaFlag.SUCCESS)
    number_of(step(peer, PREPARE))
    peer.drop()
    other = harness.connect()
    assert recover_xids(other) == [xid("x")]
    number_of(step(other, COMMIT))
    assert harness.bodies("out") == [b"b"]
    assert harness.bodies("in") == []
    assert recover_xids(other) == []


def recover_xids(peer: Peer) -> list[bytes]:
    flags = {"JMQXAFlags": XaFlag.STARTRSCAN}
    reply = peer.request(H.RECOVER_TRANSACTION, flags, expect=Status.OK)
    body = reply.body
    assert reply.properties["JMQQuantity"] == len(body) // 136
    return [body[position : position + 136] for position in range(0, len(body), 136)]


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_prepared_branches_survive_restart(tmp_path: Path, outcome: PacketType) -> None:
    harness = DiskHarness(tmp_path)
    peer = harness.connect()
    use_transaction(peer, number_of(step(peer, START)))
    step(peer, END, flags=XaFlag.SUCCESS)
    number_of(step(peer, PREPARE))
    number = number_of(step(peer, START, "y"))
    peer.send("out", "no", transaction_id=number)
    for _ in range(2):
        harness = harness.restart()
        peer = harness.connect()
        assert recover_xids(peer) == [xid("x")]
        assert status(step(peer, START)) == Status.ERROR
    number_of(step(peer, outcome))
    harness = harness.restart()
    assert recover_xids(harness.connect()) == []
    other = harness.connect()
    for queue in ("in", "out"):
        other.consume(queue, other.create_session())
    assert other.texts() == (["b"] if outcome is COMMIT else ["a"])


def test_prepare_is_answered_when_it_is_on_disk(harness: Harness, peer: Peer) -> None:
    step(peer, START)
    step(peer, END, flags=XaFlag.SUCCESS)
    for kind in (PREPARE, COMMIT):
        peer.session.receive(peer.encode_request(kind, {"JMQXAFlags": 0}, xid("x"))[1])
        assert peer.receive() == []
        harness.run_event_loop()
        [reply] = peer.receive()
        number_of(reply)


def test_repeated_prepare_is_answered_when_it_is_on_disk(harness: Harness, peer: Peer) -> None:
    step(peer, START)
    step(peer, END, flags=XaFlag.SUCCESS)
    requests = [peer.encode_request(PREPARE, {"JMQXAFlags": 0}, xid("x"))[1] for _ in range(2)]
    peer.session.receive(b"".join(requests))
    assert peer.receive() == []
    harness.run_event_loop()
    assert [status(reply) for reply in peer.receive()] == [Status.OK, Status.OK]


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_repeated_outcome_is_answered_when_it_is_on_disk(
    harness: Harness, peer: Peer, outcome: PacketType
) -> None:
    step(peer, START)
    step(peer, END, flags=XaFlag.SUCCESS)
    step(peer, PREPARE)
    requests = [peer.encode_request(outcome, {"JMQXAFlags": 0}, xid("x"))[1] for _ in range(2)]
    peer.session.receive(b"".join(requests))
    assert peer.receive() == []
    harness.run_event_loop()
    assert [status(reply) for reply in peer.receive()] == [Status.OK, Status.OK]


def test_number_of_remembered_xids_is_limited(
    harness: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_ENDED", 3)
    for number in range(5):
        start_in_state(peer, S.COMMITTED, str(number))
    statuses = [status(step(peer, COMMIT, str(number))) for number in range(5)]
    assert statuses == [Status.NOT_FOUND] * 2 + [Status.OK] * 3
    assert len(harness.coordinator.branches._by_xid) == 3


# --- RECOVER and VERIFY --------------------------------------------------------------------------


def test_recover_lists_prepared_branches(harness: Harness, peer: Peer) -> None:
    for name in "abc":
        start_in_state(peer, S.PREPARED, name)
    start_in_state(peer, S.COMPLETE, "d")
    assert recover_xids(peer) == [xid("a"), xid("b"), xid("c")]
    for flags in (0, XaFlag.ENDRSCAN):
        reply = peer.request(H.RECOVER_TRANSACTION, {"JMQXAFlags": flags}, expect=Status.OK)
        assert (reply.properties["JMQQuantity"], reply.body) == (0, b"")


def test_recover_of_one_branch(harness: Harness, peer: Peer) -> None:
    number = start_in_state(peer, S.PREPARED)
    reply = peer.request(
        H.RECOVER_TRANSACTION, {"JMQTransactionID": Long(number)}, expect=Status.OK
    )
    assert reply.properties["JMQTransactionID"] == number
    for other in (start_in_state(peer, S.COMPLETE, "y"), 5):
        reply = peer.request(H.RECOVER_TRANSACTION, {"JMQTransactionID": Long(other)})
        assert status(reply) == Status.NOT_FOUND
        assert reply.properties["JMQQuantity"] == 0


def test_verify_describes_branch(harness: Harness, peer: Peer) -> None:
    wall = harness.clock.wall
    number = start_in_state(peer, S.PREPARED)
    for properties, body in (
        ({"JMQTransactionID": Long(number)}, b""),
        ({"JMQTransactionID": Long(0)}, xid("x")),
    ):
        reply = peer.request(H.VERIFY_TRANSACTION, properties, body, expect=Status.OK)
        facts = loads_map(reply.body)
        assert facts["State"] == 6
        assert facts["JMQXid"] == "78"
        assert facts["JMQCreateTime"] == wall
        assert facts["JMQAutoRollback"] == 2
        assert facts["JMQLifetime"] == 0
        assert reply.properties["JMQTransactionID"] == number
        # the protocol page has another number
        page = peer.request(80, properties, body, expect=Status.OK)
        assert (page.type, page.body) == (81, reply.body)
    assert peer.request_status(80, {"JMQTransactionID": 5}) == Status.NOT_FOUND
    complete = start_in_state(peer, S.COMPLETE, "y")
    for properties in ({"JMQTransactionID": Long(complete)}, {"JMQTransactionID": Long(5)}, {}):
        assert peer.request_status(H.VERIFY_TRANSACTION, properties) == Status.NOT_FOUND


def test_user_has_limited_number_of_prepared_branches(harness: Harness) -> None:
    options = SessionOptions(authentication="basic", max_per_connection=2)
    for name in "abc":
        peer = harness.connect(options)
        peer.send("out", name, transaction_id=number_of(step(peer, START, name)))
        step(peer, END, name, flags=XaFlag.SUCCESS)
        expected = Status.RESOURCE_FULL if name == "c" else Status.OK
        assert status(step(peer, PREPARE, name)) == expected
        if name != "c":
            peer.drop()
    assert status(step(peer, PREPARE, "a")) == Status.OK  # it is prepared
    number_of(step(peer, COMMIT, "a"))
    number_of(step(peer, PREPARE, "c"))
    number_of(step(peer, COMMIT, "c"))
    assert harness.bodies("out") == [b"a", b"c"]


@pytest.mark.parametrize("sessionless", [True, False])
def test_verify_reports_whether_branch_is_sessionless(peer: Peer, sessionless: bool) -> None:
    step(peer, START, JMQSessionLess=sessionless)
    step(peer, END, flags=XaFlag.SUCCESS)
    number_of(step(peer, PREPARE))
    reply = peer.request(H.VERIFY_TRANSACTION, {}, xid("x"), expect=Status.OK)
    assert loads_map(reply.body)["JMQSessionLess"] is sessionless


def test_branch_with_message_refused_without_answer_cannot_be_prepared(
    harness: Harness, peer: Peer
) -> None:
    number = number_of(step(peer, START))
    use_transaction(peer, number)
    header = encode_header("mq.sys.dmq", transaction_id=number)
    peer.send_packet(H.TEXT_MESSAGE, body=b"x", flags=Q, header=header)
    assert status(step(peer, END, flags=XaFlag.SUCCESS)) == Status.NOT_MODIFIED
    for kind, flags in ((PREPARE, 0), (COMMIT, XaFlag.ONEPHASE)):
        reply = step(peer, kind, flags=flags)
        assert status(reply) == Status.PRECONDITION_FAILED
        assert "mq.sys.dmq" in str(reply.properties["JMQReason"])
        assert reply.properties.get("JMQPrepareStateFAILED") is (True if kind == PREPARE else None)
    number_of(step(peer, ROLLBACK))
    assert (harness.bodies("in"), harness.bodies("out")) == ([b"a"], [])


def test_distributed_transaction_options(peer: Peer) -> None:
    assert status(step(peer, START, JMQAutoRollback=1)) == Status.NOT_IMPLEMENTED
    assert status(step(peer, START, JMQAutoRollback=2)) == Status.OK


def test_local_step_has_no_flags() -> None:
    with pytest.raises(RejectedRequest):
        state_after(PREPARE, LOCAL, S.STARTED)
    assert state_after(COMMIT, LOCAL, S.STARTED) is S.COMMITTED
    assert state_after(ROLLBACK, LOCAL, S.STARTED) is S.ROLLEDBACK


# --- branches without a connection ---------------------------------------------------------------


def abandon_transaction(harness: Harness, peer: Peer, timeout: int) -> int:
    """Start a branch, and close its connection before it is prepared."""
    other = harness.connect(SessionOptions(authentication="basic", detached_timeout=timeout))
    number = number_of(step(other, START, JMQSessionLess=True))
    use_transaction(other, number)
    step(other, END, flags=XaFlag.SUCCESS)
    other.drop()
    return number


def test_branch_without_connection_is_rolled_back_after_its_timeout(
    harness: Harness, peer: Peer
) -> None:
    abandon_transaction(harness, peer, 10_000)
    harness.run_event_loop(9_999)
    assert harness.broker.transactions.open
    harness.run_event_loop(2)
    assert not harness.broker.transactions.open
    assert status(step(peer, COMMIT, flags=XaFlag.ONEPHASE)) == Status.TIMEOUT
    assert harness.bodies("out") == []
    assert harness.bodies("in") == [b"a"]


def test_branch_that_is_joined_or_prepared_in_time_stays(harness: Harness, peer: Peer) -> None:
    abandon_transaction(harness, peer, 10_000)
    harness.run_event_loop(9_000)
    number_of(step(peer, START, flags=XaFlag.JOIN))
    harness.run_event_loop(60_000)
    assert harness.broker.transactions.open
    step(peer, END, flags=XaFlag.SUCCESS)
    number_of(step(peer, PREPARE))
    peer.drop()
    harness.run_event_loop(60_000)
    assert recover_xids(harness.connect()) == [xid("x")]


def test_branch_without_timeout_is_kept(harness: Harness, peer: Peer) -> None:
    abandon_transaction(harness, peer, 0)
    harness.run_event_loop(86_400_000)
    assert harness.broker.transactions.open
