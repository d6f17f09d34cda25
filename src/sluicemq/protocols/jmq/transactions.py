"""Transactions of the JMQ connections (protocol specification, section 10). Their requests are in
transaction_commands.py.

A branch is found by its Xid from any connection of its owner (protocols/ownership.py) or of a
superuser; for others it does not exist. The connections that have started or joined it may send and
acknowledge in it. A branch keeps its owner, the user of the connection that started it.

When the last connection of a transaction that is not prepared has closed:

| JMQSessionLess       | local                                     | branch                      |
|----------------------|-------------------------------------------|-----------------------------|
| absent               | rolled back, also when its session closes | kept                        |
| true                 | kept: its owner continues by its number   | kept                        |
| false                | as if absent                              | rolled back                 |

A kept transaction is rolled back after `detached_timeout`, or if its owner has more than
`max_per_connection` of them. A prepared branch belongs to no connection; after a restart it is
found in the engine and gets a new JMQTransactionID. A transaction that the engine is committing can
no longer be rolled back.

A transaction has failed if one of its requests was refused without a reply, because the client did
not request one: it can only be rolled back.

The outcomes of the latest transactions are stored for a while, because a client that has lost its
connection may repeat its request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from sluicemq.broker import NEVER, Broker, Consumer, Delivery, Transaction
from sluicemq.broker import TransactionState as EngineState
from sluicemq.model.access import Identity
from sluicemq.model.errors import ProtocolError, SluiceError
from sluicemq.protocols.jmq.connection import JmqConnection
from sluicemq.protocols.jmq.consumers import JmsConsumer
from sluicemq.protocols.jmq.fields import XID_SIZE
from sluicemq.protocols.jmq.packets import (
    A,
    RejectedRequest,
    Status,
)
from sluicemq.protocols.jmq.packets import ReportedTransactionState as State
from sluicemq.protocols.jmq.wire import Packet
from sluicemq.protocols.ownership import may_use_transaction

MAX_ENDED: Final = 4096
"""Maximum number of ended transactions whose outcome is stored."""
SEARCH_INTERVAL: Final = 1000
"""Minimum ms between two searches for transactions to roll back."""
# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_COMMITTING: Final = EngineState.COMMITTING


@dataclass(slots=True, eq=False)
class Branch:
    """Transaction.

    number              JMQTransactionID
    xid                 136 bytes; b"" if it is local
    session             JMQSessionID of a local one, or 0
    connection_numbers  numbers of the connections that may use it
    sessionless         True if it does not end with these connections
    failure             reason of its failure, "" if it has not failed or its client has ended it
                        with TMFAIL
    detached_owner      owner for whom it is kept without a connection, None while it has one
    acked               messages acknowledged in it by consumer number and SysMessageID: the
                        consumer, that of the engine, and the delivery
    timeout             ms after its first message or acknowledgement until it is rolled back; 0 =
                        never, or it has one already
    timeout_at          steady ms at which this time ends, or NEVER
    expires             steady ms at which it is rolled back if no connection joins it, or NEVER
    rollback_state      state after a rollback; one that the client has not requested is a timeout
    """

    number: int
    transaction: Transaction
    state: State
    xid: bytes = b""
    session: int = 0
    connection_numbers: set[int] = field(default_factory=set)
    sessionless: bool = True
    failure: str = ""
    detached_owner: str | None = None
    acked: dict[tuple[int, bytes], tuple[JmsConsumer, Consumer, Delivery]] = field(
        default_factory=dict
    )
    timeout: int = 0
    timeout_at: int = NEVER
    expires: int = NEVER
    rollback_state: State = State.TIMED_OUT

    @property
    def can_roll_back(self) -> bool:
        """True if the transaction is not prepared, being committed, or ended."""
        return not (
            self.has_ended
            or self.state is State.PREPARED
            or self.transaction.state is EngineState.COMMITTING
        )

    @property
    def deadline(self) -> int:
        """Steady ms at which the broker rolls it back, or NEVER."""
        return min(self.timeout_at, self.expires) if self.can_roll_back else NEVER

    @property
    def has_ended(self) -> bool:
        """True if the transaction has ended."""
        return self.state in (State.COMMITTED, State.ROLLEDBACK, State.TIMED_OUT)


class Branches:
    """Transactions of all JMQ connections of a broker."""

    __slots__ = (
        "_broker",
        "_by_connection",
        "_by_transaction",
        "_by_xid",
        "_detached",
        "_ended",
        "_next_expiry_check",
        "_open",
        "_uid",
    )

    def __init__(self, broker: Broker, uid: Callable[[], int]) -> None:
        self._broker = broker
        self._uid = uid
        self._open: dict[int, Branch] = {}
        self._by_transaction: dict[Transaction, Branch] = {}
        """The same branches by the engine's transaction."""
        self._by_xid: dict[bytes, Branch] = {}
        """Branches by Xid, including ended ones."""
        self._by_connection: dict[int, dict[int, Branch]] = {}
        self._ended: OrderedDict[int, Branch] = OrderedDict()
        self._detached: dict[str, dict[int, Branch]] = {}
        """Unprepared transactions without a connection, by owner and number."""
        self._next_expiry_check = NEVER
        """Steady ms of the next search for expired transactions."""
        broker.transactions.ends.append(self._end)

    # --- finding -----------------------------------------------------------------------------

    def active_branch(self, number: int, connection: JmqConnection) -> Branch:
        """Return the transaction of a message or acknowledgement.

        Raises RejectedRequest: GONE, TIMEOUT, PRECONDITION_FAILED.
        """
        branch = self._open.get(number)
        if branch is None or not self.may_use(branch, connection):
            ended_branch = self._ended.get(number)
            if ended_branch is not None and ended_branch.state is State.TIMED_OUT:
                raise RejectedRequest(Status.TIMEOUT, f"transaction {number} has taken too long")
            raise RejectedRequest(Status.GONE, f"transaction {number} does not exist or has ended")
        if branch.state is not State.STARTED:
            reason = f": {branch.failure}" if branch.failure else ""
            raise RejectedRequest(
                Status.PRECONDITION_FAILED, f"transaction {number} is {branch.state.name}{reason}"
            )
        if branch.transaction.state is _COMMITTING:  # before a message is taken from its consumer
            raise RejectedRequest(
                Status.PRECONDITION_FAILED, f"transaction {number} is being committed"
            )
        if branch.timeout:
            branch.timeout_at = self._broker.clock.steady + branch.timeout
            branch.timeout = 0
            self._schedule_expiry_check(branch.timeout_at)
        return branch

    def may_use(self, branch: Branch, connection: JmqConnection) -> bool:
        """Return whether the connection may use the transaction by its number. A local one without
        a connection is joined by the first of its owner's that does."""
        if connection.number in branch.connection_numbers:
            return True
        if branch.xid or branch.connection_numbers or not branch.sessionless or branch.has_ended:
            return False
        if not may_use_transaction(connection.identity, branch.transaction):
            return False
        self.join(branch, connection)
        return True

    def fail(self, packet: Packet, connection: JmqConnection, error: SluiceError) -> None:
        """Mark the transaction of a message or acknowledgement that was refused without a reply as
        failed: its client does not know of the refusal, so that a commit must not succeed.

        Does nothing to a transaction that the connection may not use, or that cannot be rolled back
        any more.
        """
        if packet.flags & A:
            return
        try:
            branch = self._open.get(packet.transaction_id)
        except ProtocolError:
            return  # the transaction is unknown
        if branch is not None and branch.can_roll_back and self.may_use(branch, connection):
            branch.state = State.FAILED
            branch.failure = branch.failure or str(error)

    def by_number(self, number: int) -> Branch | None:
        """Return the transaction, which may have ended, or None."""
        return self._open.get(number) or self._ended.get(number)

    def by_xid(self, xid: bytes) -> Branch | None:
        """Return the branch, which may have ended, or None."""
        branch = self._by_xid.get(xid)
        if branch is None or branch.has_ended:
            transaction = self._broker.transactions.prepared.get(xid)
            if transaction is not None:
                branch = Branch(
                    self._uid(), transaction, State.PREPARED, xid, rollback_state=State.ROLLEDBACK
                )
                self._add(branch)
        return branch

    def prepared_xids(self, identity: Identity) -> list[bytes]:
        """Return the Xids of the prepared branches that the user may end, oldest first. Their
        outcomes are stored from now on."""
        xids = [
            xid
            for xid, transaction in self._broker.transactions.prepared.items()
            if len(xid) == XID_SIZE and may_use_transaction(identity, transaction)
        ]
        for xid in xids:
            self.by_xid(xid)
        return xids

    # --- start and join ----------------------------------------------------------------------

    def start(
        self,
        connection: JmqConnection,
        xid: bytes = b"",
        session: int = 0,
        *,
        sessionless: bool = False,
    ) -> Branch:
        """Start a transaction. Raises RejectedRequest: ERROR. The Xid must not be in use."""
        count = len(self._by_connection.get(connection.number, ()))
        connection.check_limit(count, "transactions", Status.ERROR)
        branch = Branch(
            self._uid(),
            self._broker.transactions.begin(connection.identity.name),
            State.STARTED,
            xid,
            session,
            sessionless=sessionless,
            timeout=connection.options.transaction_timeout,
        )
        self._add(branch)
        self.join(branch, connection)
        return branch

    def _add(self, branch: Branch) -> None:
        self._open[branch.number] = self._by_transaction[branch.transaction] = branch
        if branch.xid:
            self._by_xid[branch.xid] = branch

    def join(self, branch: Branch, connection: JmqConnection) -> None:
        """Add a connection to the users of the transaction."""
        self._remove_detached(branch)
        branch.connection_numbers.add(connection.number)
        self._by_connection.setdefault(connection.number, {})[branch.number] = branch

    # --- timeouts ----------------------------------------------------------------------------

    def _schedule_expiry_check(self, deadline: int) -> None:
        """Search for transactions to roll back at steady time `deadline`. All share one timer: a
        timer for each would keep ended transactions in memory."""
        if deadline < self._next_expiry_check:
            self._next_expiry_check = deadline
            self._broker.call_at(deadline, self._roll_back_expired, deadline)

    def _roll_back_expired(self, when: int) -> None:
        """Roll back the expired transactions, and schedule the next check."""
        if when != self._next_expiry_check:
            return  # an earlier check has set the time of the next one
        now = self._broker.clock.steady
        next_deadline = NEVER
        for branch in list(self._open.values()):
            deadline = branch.deadline
            if deadline <= now:
                self.roll_back(branch, State.TIMED_OUT)
            else:
                next_deadline = min(next_deadline, deadline)
        self._next_expiry_check = NEVER
        if next_deadline < NEVER:
            self._schedule_expiry_check(max(next_deadline, now + SEARCH_INTERVAL))

    def _detach(self, branch: Branch, timeout: int, limit: int) -> None:
        """Roll the branch back in `timeout` ms unless a connection joins it by then; 0 = never.
        At most `limit` are kept for its owner; the oldest is rolled back first."""
        if not branch.can_roll_back:
            return
        branch.detached_owner = branch.transaction.owner
        branches = self._detached.setdefault(branch.detached_owner, {})
        branches[branch.number] = branch
        if len(branches) > limit:
            oldest = next(kept for kept in branches.values() if kept.can_roll_back)
            self.roll_back(oldest, State.TIMED_OUT)
        if timeout:
            branch.expires = self._broker.clock.steady + timeout
            self._schedule_expiry_check(branch.expires)

    def _remove_detached(self, branch: Branch) -> None:
        """Remove a branch from those without a connection: it is joined, prepared or ended."""
        if branch.detached_owner is not None:
            branches = self._detached[branch.detached_owner]
            del branches[branch.number]
            if not branches:
                del self._detached[branch.detached_owner]
            branch.detached_owner = None
            branch.expires = NEVER

    # --- prepare, commit, roll back ----------------------------------------------------------

    def prepare(self, branch: Branch, max_prepared: int, on_durable: Callable[[], None]) -> None:
        """Prepare; call `on_durable` when the state is durable.

        Raises BrokerError; RejectedRequest if its owner has `max_prepared` prepared branches
        already.
        """
        prepared = self._broker.transactions.prepared
        owner = branch.transaction.owner
        if (
            branch.state is not State.PREPARED
            and len(prepared) >= max_prepared
            and sum(other.owner == owner for other in prepared.values()) >= max_prepared
        ):
            raise RejectedRequest(
                Status.RESOURCE_FULL, f"{max_prepared} branches of this user are prepared already"
            )
        self._broker.transactions.prepare(branch.transaction, branch.xid, on_durable)
        if branch.state is not State.PREPARED:
            branch.state = State.PREPARED
            branch.acked.clear()
            self._remove_detached(branch)
            branch.rollback_state = State.ROLLEDBACK

    def roll_back(self, branch: Branch, state: State = State.ROLLEDBACK) -> None:
        """Roll back."""
        branch.rollback_state = state
        self._broker.transactions.rollback(branch.transaction)

    def revoke_acks(
        self, branch: Branch, blocks: Iterable[tuple[int, bytes]]
    ) -> dict[JmsConsumer, list[Delivery]]:
        """Revoke acknowledgements of the transaction; return the messages by consumer, for
        `JmsConsumer.redeliver`. The consumers may be closed."""
        deliveries: dict[JmsConsumer, list[Delivery]] = {}
        if not branch.can_roll_back:
            return deliveries
        withdraw_ack = self._broker.transactions.withdraw_ack
        for block in blocks:
            acknowledgement = branch.acked.pop(block, None)
            if acknowledgement is None:
                continue
            consumer, engine_consumer, delivery = acknowledgement
            if (
                withdraw_ack(branch.transaction, delivery)
                and delivery.sequence in engine_consumer.unacked
            ):
                deliveries.setdefault(consumer, []).append(delivery)
                self._broker.page_out([delivery])  # it is read again when it is written
        return deliveries

    def _end(self, transaction: Transaction, committed: bool) -> None:
        """Store the outcome of a transaction that has ended in the engine."""
        branch = self._by_transaction.pop(transaction, None)
        if branch is None:
            return
        branch.state = State.COMMITTED if committed else branch.rollback_state
        branch.acked.clear()
        self._remove_detached(branch)
        del self._open[branch.number]
        for connection in branch.connection_numbers:
            self._by_connection[connection].pop(branch.number, None)
        branch.connection_numbers.clear()
        self._ended[branch.number] = branch
        if len(self._ended) > MAX_ENDED:
            _, oldest = self._ended.popitem(last=False)
            if self._by_xid.get(oldest.xid) is oldest:
                del self._by_xid[oldest.xid]

    def roll_back_session(self, connection: JmqConnection, session: int) -> None:
        """Roll back the local transactions of an ended JMS session."""
        for branch in list(self._by_connection.get(connection.number, {}).values()):
            is_local = branch.session == session and not branch.xid and not branch.sessionless
            if is_local and branch.can_roll_back:
                self.roll_back(branch)

    def remove_connection(self, connection: JmqConnection) -> None:
        """Remove a closed connection from its transactions."""
        for branch in list(self._by_connection.get(connection.number, {}).values()):
            branch.connection_numbers.discard(connection.number)
            if branch.connection_numbers:
                continue
            if branch.sessionless or not branch.can_roll_back:
                options = connection.options
                self._detach(branch, options.detached_timeout, options.max_per_connection)
            else:
                self.roll_back(branch)
                if not branch.xid:  # no client knows its number any more
                    self._ended.pop(branch.number, None)
        self._by_connection.pop(connection.number, None)
