"""Transaction requests (protocol specification, section 10; legal steps below).

The broker answers a commit, and each change of a prepared transaction, when it is durable.

coordinator.py describes JMQSessionLess and transactions without a connection.

The reply for a branch of another user is that for one that does not exist, with one exception:
START_TRANSACTION of its Xid cannot create a second branch, so it is refused with 500 (JTA's
XAER_DUPID).

Legal steps and the statuses of the illegal ones: one table, from the specification and JTA's
XAResource. A local transaction has no Xid: it is started, and then ends. Like a branch, it fails if
one of its requests is refused without a reply, and can then only be rolled back.

                     START             END                       PREPARE   COMMIT     ROLLBACK
              NO    JOIN   RESUME  SUSPEND  SUCCESS  FAIL                ONE   TWO
              FLAGS                         ONEPHASE                     PHASE PHASE
    CREATED   STARTED
    STARTED   STARTED STARTED STARTED INCOMPL. COMPLETE FAILED  -        -     -      -
    INCOMPL.  -     -      STARTED INCOMPL. COMPLETE FAILED     -        -     -      ROLLEDBACK
    COMPLETE  STARTED STARTED -     -        COMPLETE -         PREPARED COMM. -      ROLLEDBACK
    FAILED    -     -      -       304      304      FAILED     -        -     -      ROLLEDBACK
    PREPARED  -     -      -       -        -        -          PREPARED -     COMM.  ROLLEDBACK
    COMMITTED -     -      -       -        -        -          -        COMM. COMM.  -
    ROLLEDB.  -     -      -       -        -        -          -        -     -      ROLLEDBACK
    TIMED_OUT 408 for everything

A dash is 500 for START, whose status must never be 409, and 412 otherwise. A repeated request with
the I bit, for a step that was already taken, is 304.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from sluicemq.model.errors import BrokerError
from sluicemq.protocols.java import Long, dumps_map
from sluicemq.protocols.jmq.connection import JmqConnection, number, truth
from sluicemq.protocols.jmq.consumers import JmsConsumer
from sluicemq.protocols.jmq.coordinator import Branch, Branches
from sluicemq.protocols.jmq.fields import decode_xid, encode_xid
from sluicemq.protocols.jmq.packets import (
    I,
    PacketType,
    RejectedRequest,
    ReportedTransactionState,
    Status,
    XaFlag,
)
from sluicemq.protocols.jmq.wire import Packet
from sluicemq.protocols.ownership import claim_transaction, may_use_transaction

LOCAL: Final = -1
"""Value in place of the flags for a transaction without a Xid."""

_CREATED = ReportedTransactionState.CREATED
_STARTED, _FAILED, _INCOMPLETE, _COMPLETE = (
    ReportedTransactionState.STARTED,
    ReportedTransactionState.FAILED,
    ReportedTransactionState.INCOMPLETE,
    ReportedTransactionState.COMPLETE,
)
_PREPARED, _COMMITTED, _ROLLEDBACK, _TIMED_OUT = (
    ReportedTransactionState.PREPARED,
    ReportedTransactionState.COMMITTED,
    ReportedTransactionState.ROLLEDBACK,
    ReportedTransactionState.TIMED_OUT,
)
_START, _END, _PREPARE, _COMMIT, _ROLLBACK = (
    PacketType.START_TRANSACTION,
    PacketType.END_TRANSACTION,
    PacketType.PREPARE_TRANSACTION,
    PacketType.COMMIT_TRANSACTION,
    PacketType.ROLLBACK_TRANSACTION,
)

_Step = tuple[ReportedTransactionState, frozenset[ReportedTransactionState]]
"""State after a request, and the states before it."""


def _step(after: ReportedTransactionState, *before: ReportedTransactionState) -> _Step:
    return after, frozenset(before)


STEPS: Final[dict[tuple[PacketType, int], _Step]] = {
    (_START, XaFlag.NOFLAGS): _step(_STARTED, _CREATED, _COMPLETE, _STARTED),
    (_START, XaFlag.JOIN): _step(_STARTED, _STARTED, _COMPLETE),
    (_START, XaFlag.RESUME): _step(_STARTED, _INCOMPLETE, _STARTED),
    (_END, XaFlag.SUSPEND): _step(_INCOMPLETE, _STARTED, _INCOMPLETE),
    (_END, XaFlag.FAIL): _step(_FAILED, _STARTED, _INCOMPLETE, _FAILED),
    (_END, XaFlag.SUCCESS): _step(_COMPLETE, _STARTED, _INCOMPLETE, _COMPLETE),
    (_END, XaFlag.ONEPHASE): _step(_COMPLETE, _STARTED, _INCOMPLETE, _COMPLETE),
    (_PREPARE, XaFlag.NOFLAGS): _step(_PREPARED, _COMPLETE, _PREPARED),
    (_COMMIT, XaFlag.ONEPHASE): _step(_COMMITTED, _COMPLETE, _COMMITTED),
    (_COMMIT, XaFlag.NOFLAGS): _step(_COMMITTED, _PREPARED, _COMMITTED),
    (_ROLLBACK, XaFlag.NOFLAGS): _step(
        _ROLLEDBACK, _COMPLETE, _INCOMPLETE, _PREPARED, _FAILED, _ROLLEDBACK
    ),
    (_COMMIT, LOCAL): _step(_COMMITTED, _STARTED),
    (_ROLLBACK, LOCAL): _step(_ROLLEDBACK, _STARTED, _FAILED),
}
"""Steps by request, and JMQXAFlags or LOCAL."""

_REPEATED: Final = frozenset({(_START, _STARTED), (_END, _COMPLETE), (_PREPARE, _PREPARED)})


def after(
    request: PacketType, flags: int, state: ReportedTransactionState, *, again: bool = False
) -> ReportedTransactionState:
    """Return the state after a request. `again`: the request has the I bit.

    Raises RejectedRequest.
    """
    step = STEPS.get((request, flags))
    if step is None:
        if flags == LOCAL:
            raise RejectedRequest(Status.PRECONDITION_FAILED, "this transaction is not distributed")
        raise RejectedRequest(Status.BAD_REQUEST, f"JMQXAFlags {flags:#x} mean nothing here")
    reached, before = step
    if state is _TIMED_OUT:
        raise RejectedRequest(
            Status.TIMEOUT, "the transaction has taken too long and was rolled back"
        )
    if again and state is reached and (request, state) in _REPEATED:
        raise RejectedRequest(Status.NOT_MODIFIED, f"the transaction is {state.name} already")
    if state in before:
        return reached
    if request is _END and state is _FAILED:
        status = Status.NOT_MODIFIED
    else:
        status = Status.ERROR if request is _START else Status.PRECONDITION_FAILED
    raise RejectedRequest(status, f"the transaction is {state.name}")


# --- requests ------------------------------------------------------------------------------------

_ALL: Final = 1
_NOT_PREPARED: Final = 2
_NEVER: Final = 3
"""Values of JMQAutoRollback: the transactions that a failure of the broker rolls back."""


class TransactionCommands:
    """Handlers of the transaction requests."""

    __slots__ = ("_branches", "_broker", "_connection")

    def __init__(self, connection: JmqConnection, branches: Branches) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._branches = branches

    # --- START and END -----------------------------------------------------------------------

    def start(self, packet: Packet) -> None:
        """Handle START_TRANSACTION."""
        xid = _xid(packet)
        self._check_rollback(packet, xid)
        if not xid:
            if "JMQXAFlags" in packet.properties:
                raise RejectedRequest(Status.BAD_REQUEST, "JMQXAFlags are about a Xid")
            session = number(packet, "JMQSessionID", 0)
            branch = self._branches.start(self._connection, session=session)
            branch.sessionless = truth(packet, "JMQSessionLess")
        else:
            branch = self._start_branch(packet, xid)
        self._answer(packet, branch)

    def _check_rollback(self, packet: Packet, xid: bytes) -> None:
        policy = number(packet, "JMQAutoRollback", _NOT_PREPARED)
        if policy not in (_ALL, _NOT_PREPARED, _NEVER):
            raise RejectedRequest(Status.BAD_REQUEST, f"there is no JMQAutoRollback {policy}")
        if policy == _NEVER or (xid and policy == _ALL):
            raise RejectedRequest(
                Status.NOT_IMPLEMENTED, "what is prepared survives a failure, and nothing else does"
            )
        if number(packet, "JMQLifetime", 0) > 0:
            raise RejectedRequest(Status.NOT_IMPLEMENTED, "JMQLifetime is the broker's to set")

    def _start_branch(self, packet: Packet, xid: bytes) -> Branch:
        flags = number(packet, "JMQXAFlags", XaFlag.NOFLAGS)
        branch = self._branches.by_xid(xid)
        if branch is not None and branch.over:
            branch = None  # a Xid may be used again
        if flags in (XaFlag.JOIN, XaFlag.RESUME):
            branch = self._own(branch)
        elif branch is not None and self._visible(branch) is None:
            raise RejectedRequest(Status.ERROR, "there is a transaction with this Xid already")
        state = ReportedTransactionState.CREATED if branch is None else branch.state
        again = packet.flags & I != 0
        state = after(PacketType.START_TRANSACTION, flags, state, again=again)
        if branch is None:
            branch = self._branches.start(self._connection, xid)
            branch.sessionless = truth(packet, "JMQSessionLess", True)
        else:
            branch.state = state
            claim_transaction(self._connection.identity, branch.transaction)
            self._branches.join(branch, self._connection)
        return branch

    def end(self, packet: Packet) -> None:
        """Handle END_TRANSACTION, for distributed transactions only."""
        branch = self._find(packet)
        if not truth(packet, "JMQNoOp"):
            flags = number(packet, "JMQXAFlags", XaFlag.NOFLAGS)
            branch.state = self._next(packet, branch, flags)
        self._answer(packet, branch)

    # --- PREPARE, COMMIT, ROLLBACK -----------------------------------------------------------

    def prepare(self, packet: Packet) -> None:
        """Handle PREPARE_TRANSACTION."""
        branch = self._find(packet)
        self._next(packet, branch, XaFlag.NOFLAGS)
        self._branches.prepare(branch, partial(self._answer, packet, branch))

    def commit(self, packet: Packet) -> None:
        """Handle COMMIT_TRANSACTION."""
        branch = self._find(packet)
        self._next(packet, branch, number(packet, "JMQXAFlags", XaFlag.NOFLAGS))
        properties: dict[str, object] = {}
        following = None
        if not branch.xid and truth(packet, "JMQStartNextTransaction"):
            following = self._branches.start(self._connection, session=branch.session)
            properties["JMQNextTransactionID"] = Long(following.number)
        answer = partial(self._answer, packet, branch, properties)
        if branch.over:
            answer()
            return
        try:
            self._branches.commit(branch, answer)
        except BrokerError:
            if following is not None:
                self._branches.roll_back(following)
            raise
        claim_transaction(self._connection.identity, branch.transaction)

    def roll_back(self, packet: Packet) -> None:
        """Handle ROLLBACK_TRANSACTION.

        With JMQRedeliver the broker redelivers the messages acknowledged in the transaction.
        Without it the client has sent REDELIVER, or any consumer may receive them.
        """
        branch = self._find(packet)
        self._next(packet, branch, number(packet, "JMQXAFlags", XaFlag.NOFLAGS))
        sequence = 0
        if not branch.over:
            if truth(packet, "JMQRedeliver"):
                self._send_again(branch, truth(packet, "JMQSetRedelivered", True))
            sequence = self._branches.roll_back(branch)
        claim_transaction(self._connection.identity, branch.transaction)
        self._broker.when_durable(sequence, partial(self._answer, packet, branch))

    def _send_again(self, branch: Branch, attempted: bool) -> None:
        """Redeliver messages to the consumers that acknowledged them, or to others if closed."""
        requested: dict[JmsConsumer, list[bytes]] = {}
        for (_, sysid), (consumer, _, _) in branch.acked.items():
            requested.setdefault(consumer, []).append(sysid)
        for consumer, sysids in requested.items():
            self._branches.take_back(branch, [(consumer.number, sysid) for sysid in sysids])
            consumer.send_again(sysids, attempted)
            consumer.level()

    # --- RECOVER and VERIFY ------------------------------------------------------------------

    def recover(self, packet: Packet) -> None:
        """Handle RECOVER_TRANSACTION: list the prepared transactions, or check one."""
        chosen = number(packet, "JMQTransactionID", 0)
        if chosen:
            branch = self._visible(self._branches.by_number(chosen))
            if branch is None or branch.state is not ReportedTransactionState.PREPARED:
                raise RejectedRequest(
                    Status.NOT_FOUND, f"no transaction {chosen} is prepared", {"JMQQuantity": 0}
                )
            properties = {"JMQQuantity": 1, "JMQTransactionID": Long(chosen)}
            self._connection.reply(packet, properties=properties, body=branch.xid)
            return
        flags = number(packet, "JMQXAFlags", XaFlag.NOFLAGS)
        found = []
        if flags & XaFlag.STARTRSCAN:
            found = self._branches.prepared(self._connection.identity)
        body = b"".join([branch.xid for branch in found])
        self._connection.reply(packet, properties={"JMQQuantity": len(found)}, body=body)

    def verify(self, packet: Packet) -> None:
        """Handle VERIFY_TRANSACTION, for prepared transactions only."""
        chosen = number(packet, "JMQTransactionID", 0)
        branch = self._branches.by_number(chosen) if chosen else None
        xid = _xid(packet)
        if branch is None and xid:
            branch = self._branches.by_xid(xid)
        branch = self._visible(branch)
        if branch is None or branch.state is not ReportedTransactionState.PREPARED:
            raise RejectedRequest(Status.NOT_FOUND, "there is no such transaction that is prepared")
        facts = {
            "JMQAutoRollback": _NOT_PREPARED,
            "JMQXid": str(decode_xid(branch.xid)),
            "JMQSessionLess": branch.sessionless,
            "JMQCreateTime": Long(branch.created),
            "JMQLifetime": Long(0),
            "State": int(branch.state),
        }
        self._answer(packet, branch, body=dumps_map(facts, hashtable=True))

    # --- common ------------------------------------------------------------------------------

    def _visible(self, branch: Branch | None) -> Branch | None:
        """Return the branch if this connection may use it; to others it does not exist."""
        if (
            branch is None
            or self._connection.number in branch.joined  # checked when it joined
            or may_use_transaction(self._connection.identity, branch.transaction)
        ):
            return branch
        return None

    def _own(self, branch: Branch | None) -> Branch:
        """Return the branch.

        Raises RejectedRequest: NOT_FOUND if there is none that the user may use.
        """
        branch = self._visible(branch)
        if branch is None:
            raise _unknown()
        return branch

    def _find(self, packet: Packet) -> Branch:
        """Return the branch of a request, by its number or its Xid.

        Raises RejectedRequest: NOT_FOUND, BAD_REQUEST.

        A number is good only for connections that use the transaction: others have to know the Xid.
        A branch without an owner gets one, unless it is prepared: then who ends it does.
        """
        branch = self._locate(packet)
        if branch.state is not ReportedTransactionState.PREPARED:
            claim_transaction(self._connection.identity, branch.transaction)
        return branch

    def _locate(self, packet: Packet) -> Branch:
        xid = _xid(packet)
        chosen = number(packet, "JMQTransactionID", 0)
        if xid:
            branch = self._own(self._branches.by_xid(xid))
            if chosen and chosen != branch.number:
                other = self._visible(self._branches.by_number(chosen))
                if other is not None:
                    raise RejectedRequest(
                        Status.BAD_REQUEST, f"transaction {chosen} has another Xid than this one"
                    )
            return branch
        if not chosen:
            raise RejectedRequest(Status.BAD_REQUEST, "which transaction?")
        branch = self._own(self._branches.by_number(chosen))
        if (
            not self._branches.usable(branch, self._connection)
            and branch.state is not ReportedTransactionState.TIMED_OUT
        ):
            raise _unknown()
        return branch

    def _next(self, packet: Packet, branch: Branch, flags: int) -> ReportedTransactionState:
        """Return the state after the request. Raises RejectedRequest."""
        request = PacketType(packet.type)
        if branch.failure and request in (
            PacketType.PREPARE_TRANSACTION,
            PacketType.COMMIT_TRANSACTION,
        ):
            why = f"the transaction has failed and can only be rolled back: {branch.failure}"
            raise RejectedRequest(Status.PRECONDITION_FAILED, why)
        return after(
            request, flags if branch.xid else LOCAL, branch.state, again=packet.flags & I != 0
        )

    def _answer(
        self,
        packet: Packet,
        branch: Branch,
        properties: dict[str, object] | None = None,
        body: bytes = b"",
    ) -> None:
        about = {"JMQTransactionID": Long(branch.number), **(properties or {})}
        self._connection.reply(packet, properties=about, body=body)


def _xid(packet: Packet) -> bytes:
    """Return the Xid of the body in canonical form; b"" if there is none.

    Raises ProtocolError.
    """
    return encode_xid(decode_xid(packet.body)) if packet.body else b""


def _unknown() -> RejectedRequest:
    return RejectedRequest(Status.NOT_FOUND, "there is no such transaction, or not any more")
