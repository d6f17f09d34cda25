"""The transactions of all JMQ connections of a broker: local ones, and parts of distributed ones.

A local transaction is its connection's, and is rolled back with it. A branch is found by its Xid
from any connection; the connections that have started or joined it may send and acknowledge in it.
If one of them is lost before the branch is prepared, it is rolled back too, unless it was started
with JMQSessionLess. A prepared one belongs to nobody; after a restart it is found in the engine and
gets a new JMQTransactionID.

How the latest of them ended is remembered for a while: a client that has lost its connection may
ask again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from sluicemq.broker import Broker, Consumer, Delivery, Transaction
from sluicemq.protocols.jmq.connection import Connection
from sluicemq.protocols.jmq.consumers import JmsConsumer
from sluicemq.protocols.jmq.destinations import find_or_create
from sluicemq.protocols.jmq.ids import XID_SIZE
from sluicemq.protocols.jmq.packets import Status, TransactionState
from sluicemq.protocols.jmq.statuses import Refused

MOST_REMEMBERED: Final = 4096
"""Ended transactions."""

_OVER: Final = (
    TransactionState.COMMITTED,
    TransactionState.ROLLEDBACK,
    TransactionState.TIMED_OUT,
)


class Branch:
    """One transaction.

    number       JMQTransactionID
    xid          136 bytes; b"" if it is local
    created      wall ms; 0 = not known
    session      JMQSessionID of a local one, or 0
    joined       numbers of the connections that may use it
    sessionless  it does not end with them
    acked        what was acknowledged in it, as ACKNOWLEDGE named it: the consumer, the engine's,
                 and the delivery
    used         steady ms of the first message or acknowledgement, 0 = there is none
    timeout      ms after that until it is rolled back, 0 = never
    """

    __slots__ = (
        "acked",
        "created",
        "joined",
        "number",
        "session",
        "sessionless",
        "state",
        "timeout",
        "transaction",
        "used",
        "xid",
    )

    def __init__(
        self,
        number: int,
        transaction: Transaction,
        state: TransactionState,
        xid: bytes = b"",
        created: int = 0,
    ) -> None:
        self.number = number
        self.transaction = transaction
        self.state = state
        self.xid = xid
        self.created = created
        self.session = 0
        self.joined: set[int] = set()
        self.sessionless = False
        self.acked: dict[tuple[int, bytes], tuple[JmsConsumer, Consumer, Delivery]] = {}
        self.used = 0
        self.timeout = 0

    @property
    def over(self) -> bool:
        """It has ended; only how is remembered."""
        return self.state in _OVER


class Branches:
    """See the module."""

    __slots__ = ("_broker", "_by_connection", "_by_xid", "_ended", "_open", "_uid")

    def __init__(self, broker: Broker, uid: Callable[[], int]) -> None:
        self._broker = broker
        self._uid = uid
        self._open: dict[int, Branch] = {}
        self._by_xid: dict[bytes, Branch] = {}
        """Those that have ended included."""
        self._by_connection: dict[int, dict[int, Branch]] = {}
        self._ended: OrderedDict[int, Branch] = OrderedDict()

    # --- finding -----------------------------------------------------------------------------

    def active(self, number: int, connection: Connection) -> Branch:
        """For a message or an acknowledgement. Refused: GONE, TIMEOUT, PRECONDITION_FAILED."""
        branch = self._open.get(number)
        if branch is None or connection.number not in branch.joined:
            ended = self._ended.get(number)
            if ended is not None and ended.state is TransactionState.TIMED_OUT:
                raise Refused(Status.TIMEOUT, f"transaction {number} has taken too long")
            raise Refused(Status.GONE, f"there is no transaction {number} here, or not any more")
        if branch.state is not TransactionState.STARTED:
            raise Refused(
                Status.PRECONDITION_FAILED, f"transaction {number} is {branch.state.name}"
            )
        if not branch.used:
            branch.used = self._broker.clock.steady
        return branch

    def by_number(self, number: int) -> Branch | None:
        """Also one that has ended, while it is remembered."""
        return self._open.get(number) or self._ended.get(number)

    def by_xid(self, xid: bytes) -> Branch | None:
        """The same."""
        branch = self._by_xid.get(xid)
        if branch is None or branch.over:
            prepared = self._broker.transactions.prepared.get(xid)
            if prepared is not None:
                branch = Branch(
                    self._uid(), prepared, TransactionState.PREPARED, xid, prepared.created
                )
                self._expect(branch, TransactionState.ROLLEDBACK)
                self._open[branch.number] = self._by_xid[xid] = branch
        return branch

    def prepared(self) -> list[Branch]:
        """All that are, in the order in which they were."""
        found = []
        for xid in list(self._broker.transactions.prepared):
            branch = self.by_xid(xid) if len(xid) == XID_SIZE else None
            if branch is not None:
                found.append(branch)
        return found

    # --- beginning ---------------------------------------------------------------------------

    def start(self, connection: Connection, xid: bytes = b"", session: int = 0) -> Branch:
        """A new one; of that Xid there is none that has not ended. Refused: ERROR."""
        if len(self._by_connection.get(connection.number, ())) >= connection.options.most:
            raise Refused(Status.ERROR, "this connection has too many transactions")
        branch = Branch(
            self._uid(),
            self._broker.transactions.begin(),
            TransactionState.STARTED,
            xid,
            self._broker.clock.wall,
        )
        branch.session = session
        # who undoes it behind the client's back has run out of patience, as the broker's own clock
        self._expect(branch, TransactionState.TIMED_OUT)
        self._open[branch.number] = branch
        if xid:
            self._by_xid[xid] = branch
        self.join(branch, connection)
        timeout = connection.options.transaction_timeout
        if timeout:
            branch.timeout = timeout
            self._watch(branch, self._broker.clock.steady + timeout)
        return branch

    def join(self, branch: Branch, connection: Connection) -> None:
        """The connection may use it, too."""
        branch.joined.add(connection.number)
        self._by_connection.setdefault(connection.number, {})[branch.number] = branch

    # --- time --------------------------------------------------------------------------------

    def _watch(self, branch: Branch, when: int) -> None:
        self._broker.core.timers.add(when, self._ring, branch)

    def _ring(self, branch: Branch) -> None:
        """A session with local transactions always has one, so time runs from its first use."""
        if branch.over or branch.state is TransactionState.PREPARED:
            return
        now = self._broker.clock.steady
        due = (branch.used or now) + branch.timeout
        if due > now:
            self._watch(branch, due)
        else:
            self.roll_back(branch, TransactionState.TIMED_OUT)

    # --- the end -----------------------------------------------------------------------------

    def prepare(self, branch: Branch) -> int:
        """Returns the sequence number to wait for. Raises BrokerError."""
        sequence = self._broker.transactions.prepare(branch.transaction, branch.xid)
        branch.state = TransactionState.PREPARED
        branch.acked.clear()
        self._expect(branch, TransactionState.ROLLEDBACK)
        return sequence

    def commit(self, branch: Branch) -> int:
        """Returns the sequence number to wait for. Raises BrokerError: nothing has happened."""
        for destination, _ in branch.transaction.sends:
            if destination.removed:  # what was temporary must not come back as something else
                find_or_create(self._broker, destination.address)
        return self._broker.transactions.commit(branch.transaction)

    def roll_back(
        self, branch: Branch, state: TransactionState = TransactionState.ROLLEDBACK
    ) -> int:
        """Returns the sequence number to wait for."""
        self._expect(branch, state)
        return self._broker.transactions.rollback(branch.transaction)

    def take_back(
        self, branch: Branch, blocks: Iterable[tuple[int, bytes]]
    ) -> list[tuple[JmsConsumer, bytes]]:
        """Those of its acknowledgements: the consumers, which are returned, hold the messages
        again. They may have been closed."""
        held: list[tuple[JmsConsumer, bytes]] = []
        if branch.over or branch.state is TransactionState.PREPARED:
            return held
        unsettle = self._broker.transactions.unsettle
        for block in blocks:
            acked = branch.acked.pop(block, None)
            if acked is None:
                continue
            consumer, holder, delivery = acked
            if (
                unsettle(branch.transaction, holder, delivery.sequence)
                and delivery.sequence in holder.unacked
            ):
                consumer.put_back(block[1], delivery)
                held.append((consumer, block[1]))
        return held

    def _expect(self, branch: Branch, undone: TransactionState) -> None:
        """When it ends, by whomever, it is COMMITTED or else `undone`."""
        branch.transaction.told = partial(self._told, branch, undone)

    def _told(self, branch: Branch, undone: TransactionState, committed: bool) -> None:
        self._end(branch, TransactionState.COMMITTED if committed else undone)

    def _end(self, branch: Branch, state: TransactionState) -> None:
        branch.state = state
        branch.acked.clear()
        del self._open[branch.number]
        for number in branch.joined:
            self._by_connection[number].pop(branch.number, None)
        branch.joined.clear()
        self._ended[branch.number] = branch
        if len(self._ended) > MOST_REMEMBERED:
            _, oldest = self._ended.popitem(last=False)
            if self._by_xid.get(oldest.xid) is oldest:
                del self._by_xid[oldest.xid]

    def leave_session(self, connection: Connection, session: int) -> None:
        """A JMS session has ended: its local transactions are rolled back."""
        for branch in list(self._by_connection.get(connection.number, {}).values()):
            if branch.session == session and not branch.xid and not branch.sessionless:
                self.roll_back(branch)

    def leave(self, connection: Connection) -> None:
        """A connection has gone."""
        for branch in list(self._by_connection.get(connection.number, {}).values()):
            if branch.state is TransactionState.PREPARED or branch.sessionless:
                branch.joined.discard(connection.number)
            else:
                self.roll_back(branch)
                if not branch.xid:  # nobody knows its number any more
                    self._ended.pop(branch.number, None)
        self._by_connection.pop(connection.number, None)
