"""Requests about transactions (protocol specification, section 10). The legal steps are in
packets.py.

The broker replies to a commit, and to each change of a prepared transaction, when it is durable.

The reply for a branch of another user is that for one that does not exist, with one exception:
START_TRANSACTION of its Xid cannot create a second branch, so it is refused with 500 (JTA's
XAER_DUPID).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from sluicemq.model.errors import BrokerError
from sluicemq.protocols.java import Long, dumps_map
from sluicemq.protocols.jmq.connection import JmqConnection, RequestPending
from sluicemq.protocols.jmq.consumer_commands import BATCH
from sluicemq.protocols.jmq.destinations import DEFAULTS
from sluicemq.protocols.jmq.fields import decode_xid, encode_xid
from sluicemq.protocols.jmq.packets import (
    LOCAL,
    I,
    PacketType,
    RejectedRequest,
    Status,
    XaFlag,
    state_after,
)
from sluicemq.protocols.jmq.packets import ReportedTransactionState as State
from sluicemq.protocols.jmq.transactions import Branch, Branches
from sluicemq.protocols.jmq.wire import Packet, boolean, number
from sluicemq.protocols.ownership import claim_transaction, may_use_transaction

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
        xid = _read_xid(packet)
        self._check_policies(packet, xid)
        if not xid:
            if "JMQXAFlags" in packet.properties:
                raise RejectedRequest(Status.BAD_REQUEST, "JMQXAFlags requires a Xid")
            branch = self._branches.start(
                self._connection,
                session=number(packet, "JMQSessionID", 0),
                sessionless=boolean(packet, "JMQSessionLess"),
            )
        else:
            branch = self._start_branch(packet, xid)
        self._reply(packet, branch)

    def _check_policies(self, packet: Packet, xid: bytes) -> None:
        policy = number(packet, "JMQAutoRollback", _NOT_PREPARED)
        if policy not in (_ALL, _NOT_PREPARED, _NEVER):
            raise RejectedRequest(Status.BAD_REQUEST, f"unknown JMQAutoRollback {policy}")
        if policy == _NEVER or (xid and policy == _ALL):
            raise RejectedRequest(
                Status.NOT_IMPLEMENTED, "only prepared transactions survive a failure"
            )
        if number(packet, "JMQLifetime", 0) > 0:
            raise RejectedRequest(Status.NOT_IMPLEMENTED, "JMQLifetime cannot be set by clients")

    def _start_branch(self, packet: Packet, xid: bytes) -> Branch:
        flags = number(packet, "JMQXAFlags", XaFlag.NOFLAGS)
        branch = self._branches.by_xid(xid)
        if branch is not None and branch.has_ended:
            branch = None  # a Xid may be used again
        if flags in (XaFlag.JOIN, XaFlag.RESUME):
            branch = self._require_visible(branch)
        elif branch is not None and self._visible(branch) is None:
            raise RejectedRequest(Status.ERROR, "a transaction with this Xid exists already")
        state = State.CREATED if branch is None else branch.state
        is_repeated = packet.flags & I != 0
        state = state_after(PacketType.START_TRANSACTION, flags, state, is_repeated=is_repeated)
        if branch is None:
            sessionless = boolean(packet, "JMQSessionLess", True)
            branch = self._branches.start(self._connection, xid, sessionless=sessionless)
        else:
            branch.state = state
            claim_transaction(self._connection.identity, branch.transaction)
            self._branches.join(branch, self._connection)
        return branch

    def end(self, packet: Packet) -> None:
        """Handle END_TRANSACTION, for distributed transactions only."""
        branch = self._find_branch(packet)
        if not boolean(packet, "JMQNoOp"):
            branch.state = self._next_state(
                packet, branch, number(packet, "JMQXAFlags", XaFlag.NOFLAGS)
            )
        self._reply(packet, branch)

    # --- PREPARE, COMMIT, ROLLBACK -----------------------------------------------------------

    def prepare(self, packet: Packet) -> None:
        """Handle PREPARE_TRANSACTION."""
        branch = self._find_branch(packet)
        self._next_state(packet, branch, XaFlag.NOFLAGS)
        self._connection.reply_later(
            partial(self._branches.prepare, branch, self._connection.options.max_per_connection),
            partial(self._reply, packet, branch),
            branch.transaction.bytes,
        )

    def commit(self, packet: Packet) -> None:
        """Handle COMMIT_TRANSACTION."""
        branch = self._find_branch(packet)
        self._next_state(packet, branch, number(packet, "JMQXAFlags", XaFlag.NOFLAGS))
        properties: dict[str, object] = {}
        next_branch = None
        if not branch.xid and boolean(packet, "JMQStartNextTransaction"):
            next_branch = self._branches.start(
                self._connection, session=branch.session, sessionless=branch.sessionless
            )
            properties["JMQNextTransactionID"] = Long(next_branch.number)
        reply = partial(self._reply, packet, branch, properties)
        if branch.has_ended:
            self._reply_when_durable(branch, reply)
            return
        try:
            transaction = branch.transaction
            commit = partial(self._broker.transactions.commit, transaction, defaults=DEFAULTS)
            self._connection.reply_later(commit, reply, transaction.bytes)
        except BrokerError:
            if next_branch is not None:
                self._branches.roll_back(next_branch)
            raise
        claim_transaction(self._connection.identity, branch.transaction)

    def roll_back(self, packet: Packet) -> None:
        """Handle ROLLBACK_TRANSACTION.

        With JMQRedeliver the broker redelivers the messages acknowledged in the transaction.
        Without it the client has sent REDELIVER, or any consumer may receive them.
        """
        branch = self._find_branch(packet)
        self._next_state(packet, branch, number(packet, "JMQXAFlags", XaFlag.NOFLAGS))
        if not branch.has_ended:
            if branch.can_roll_back and boolean(packet, "JMQRedeliver"):
                self._redeliver_acked(branch, boolean(packet, "JMQSetRedelivered", True))
            self._branches.roll_back(branch)
        claim_transaction(self._connection.identity, branch.transaction)
        self._reply_when_durable(branch, partial(self._reply, packet, branch))

    def _redeliver_acked(self, branch: Branch, attempted: bool) -> None:
        """Redeliver the messages acknowledged in a transaction. Raises RequestPending when the time
        for scans is used up; then the transaction can only be rolled back."""
        blocks = list(branch.acked)
        for start in range(0, len(blocks), BATCH):
            if start and self._broker.scans.is_time_up():
                branch.state = State.FAILED
                branch.failure = branch.failure or "its rollback has begun"
                raise RequestPending
            revoked = self._branches.revoke_acks(branch, blocks[start : start + BATCH])
            for consumer, deliveries in revoked.items():
                consumer.redeliver(deliveries, attempted)

    def _reply_when_durable(self, branch: Branch, reply: Callable[[], None]) -> None:
        """Reply to the end of a transaction once it is durable."""
        self._connection.reply_later(
            partial(self._broker.when_durable, branch.transaction.end_record), reply
        )

    # --- RECOVER and VERIFY ------------------------------------------------------------------

    def recover(self, packet: Packet) -> None:
        """Handle RECOVER_TRANSACTION: list the prepared transactions, or check one."""
        transaction_id = number(packet, "JMQTransactionID", 0)
        if transaction_id:
            branch = self._visible(self._branches.by_number(transaction_id))
            if branch is None or branch.state is not State.PREPARED:
                raise RejectedRequest(
                    Status.NOT_FOUND,
                    f"transaction {transaction_id} is not prepared",
                    {"JMQQuantity": 0},
                )
            self._reply(packet, branch, {"JMQQuantity": 1}, branch.xid)
            return
        xids: list[bytes] = []
        if number(packet, "JMQXAFlags", XaFlag.NOFLAGS) & XaFlag.STARTRSCAN:
            xids = self._branches.prepared_xids(self._connection.identity)
        properties = {"JMQQuantity": len(xids)}
        self._connection.reply(packet, properties=properties, body=b"".join(xids))

    def verify(self, packet: Packet) -> None:
        """Handle VERIFY_TRANSACTION, for prepared transactions only."""
        transaction_id = number(packet, "JMQTransactionID", 0)
        xid = _read_xid(packet)
        branch = self._branches.by_number(transaction_id) or self._branches.by_xid(xid)
        branch = self._visible(branch)
        if branch is None or branch.state is not State.PREPARED:
            raise RejectedRequest(
                Status.NOT_FOUND, "the transaction does not exist or is not prepared"
            )
        description = dumps_map(
            {
                "JMQAutoRollback": _NOT_PREPARED,
                "JMQXid": str(decode_xid(branch.xid)),
                "JMQSessionLess": branch.sessionless,
                "JMQCreateTime": Long(branch.transaction.created),
                "JMQLifetime": Long(0),
                "State": int(branch.state),
            },
            hashtable=True,
        )
        self._reply(packet, branch, body=description)

    # --- common ------------------------------------------------------------------------------

    def _visible(self, branch: Branch | None) -> Branch | None:
        """Return the branch if this connection may use it; to others it does not exist."""
        if (
            branch is None
            or self._connection.number in branch.connection_numbers  # checked when it joined
            or may_use_transaction(self._connection.identity, branch.transaction)
        ):
            return branch
        return None

    def _require_visible(self, branch: Branch | None) -> Branch:
        """Return the branch.

        Raises RejectedRequest: NOT_FOUND if there is none that the user may use.
        """
        branch = self._visible(branch)
        if branch is None:
            raise RejectedRequest(Status.NOT_FOUND, "the transaction does not exist or has ended")
        return branch

    def _find_branch(self, packet: Packet) -> Branch:
        """Return the branch of a request, by its number or its Xid.

        Raises RejectedRequest: NOT_FOUND, BAD_REQUEST.

        A number is valid only for connections that use the transaction; others have to send the
        Xid. The user claims a branch without an owner, unless it is prepared: then only the user
        that ends it does.
        """
        branches = self._branches
        xid = _read_xid(packet)
        transaction_id = number(packet, "JMQTransactionID", 0)
        if not xid and not transaction_id:
            raise RejectedRequest(Status.BAD_REQUEST, "JMQTransactionID is missing")
        numbered = branches.by_number(transaction_id)
        if xid:
            branch = self._require_visible(branches.by_xid(xid))
            if numbered is not branch and self._visible(numbered) is not None:
                raise RejectedRequest(
                    Status.BAD_REQUEST, f"transaction {transaction_id} has another Xid"
                )
        else:
            is_valid = numbered is not None and (
                numbered.state is State.TIMED_OUT or branches.may_use(numbered, self._connection)
            )
            branch = self._require_visible(numbered if is_valid else None)
        if branch.state is not State.PREPARED:
            claim_transaction(self._connection.identity, branch.transaction)
        return branch

    def _next_state(self, packet: Packet, branch: Branch, flags: int) -> State:
        """Return the state after the request. Raises RejectedRequest."""
        request = PacketType(packet.type)
        prepares = request is PacketType.PREPARE_TRANSACTION
        if branch.state is State.FAILED and (prepares or request is PacketType.COMMIT_TRANSACTION):
            reason = branch.failure or "its client has ended it with TMFAIL"
            raise RejectedRequest(
                Status.PRECONDITION_FAILED,
                f"the transaction has failed and can only be rolled back: {reason}",
                # the Java client reports XAER_RMERR instead of XAER_RMFAIL, "unavailable"
                {"JMQPrepareStateFAILED": True} if prepares else None,
            )
        return state_after(
            request, flags if branch.xid else LOCAL, branch.state, is_repeated=packet.flags & I != 0
        )

    def _reply(
        self,
        packet: Packet,
        branch: Branch,
        properties: dict[str, object] | None = None,
        body: bytes = b"",
    ) -> None:
        self._connection.reply(
            packet,
            properties={"JMQTransactionID": Long(branch.number), **(properties or {})},
            body=body,
        )


def _read_xid(packet: Packet) -> bytes:
    """Return the Xid of the body in canonical form; b"" if there is none.

    Raises ProtocolError.
    """
    return encode_xid(decode_xid(packet.body)) if packet.body else b""
