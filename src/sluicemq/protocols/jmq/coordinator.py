"""State shared by all JMQ connections of one broker: numbers, client ids and transactions.

A client id belongs to one connection, or to several connections that all set JMQShare; with a
JMQNamespace it is shared between namespaces, but unique within each. (Protocol specification,
SET_CLIENTID.) Connections that share one belong to the same user, superusers excepted. While no
connection has it, it belongs to the user who owns its durable subscriptions (subscriptions.py).
`${u}` at the beginning is replaced by the user's name.

A branch is found by its Xid from any connection of its owner (protocols/ownership.py) or of a
superuser; for others it does not exist. The connections that have started or joined it may send and
acknowledge in it. A branch keeps its owner, the user of the connection that started it.

When the last connection of a transaction that is not prepared has closed:

| JMQSessionLess       | local                                     | branch                      |
|----------------------|-------------------------------------------|-----------------------------|
| absent               | rolled back, also when its session closes | kept                        |
| true                 | kept: its owner continues by its number   | kept                        |
| false                | as if absent                              | rolled back                 |

A kept transaction is rolled back after `detached_timeout`, or if its owner has more than `most` of
them. A prepared branch belongs to no connection; after a restart it is found in the engine and gets
a new JMQTransactionID. A transaction that the engine is committing can no longer be rolled back.

A transaction has failed if one of its requests was refused without a reply, because the client did
not request one: it can only be rolled back.

The outcomes of the latest transactions are stored for a while, because a client that has lost its
connection may repeat its request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from sluicemq.broker import Broker, Consumer, Delivery, Transaction
from sluicemq.broker import TransactionState as EngineState
from sluicemq.model.access import Identity
from sluicemq.model.errors import ProtocolError, SluiceError
from sluicemq.model.message import Origin
from sluicemq.protocols.jmq.connection import JmqConnection
from sluicemq.protocols.jmq.consumers import JmsConsumer
from sluicemq.protocols.jmq.destinations import create_dead_messages, find_or_create
from sluicemq.protocols.jmq.fields import XID_SIZE
from sluicemq.protocols.jmq.mapping import JmqDeadLetterPolicy
from sluicemq.protocols.jmq.packets import A, RejectedRequest, ReportedTransactionState, Status
from sluicemq.protocols.jmq.subscriptions import Durables
from sluicemq.protocols.jmq.wire import Oversized, Packet
from sluicemq.protocols.ownership import may_use_transaction
from sluicemq.protocols.transport import Background

MAX_CLIENT_ID: Final = 1024
"""Maximum length of a client id in characters."""
_USER: Final = "${u}"
_NO_ID: Final = "${u:"
_NO_PART: Final = "${%%}"


class Holder(NamedTuple):
    """Use of a client id by a connection; `namespace` is "" without one."""

    shared: bool
    namespace: str
    user: str


class ClientIds:
    """Client ids in use. Connections are known by their numbers."""

    __slots__ = ("_held", "_holders")

    def __init__(self) -> None:
        self._holders: dict[str, dict[int, Holder]] = {}
        self._held: dict[int, str] = {}

    def take(
        self, connection: int, client_id: str, identity: Identity, *, shared: bool, namespace: str
    ) -> None:
        """Assign a client id to a connection instead of its present one.

        Raises RejectedRequest: CONFLICT.
        """
        if not shared:
            namespace = ""
        for other, holder in self._holders.get(client_id, {}).items():
            if other == connection:
                continue
            of_another = holder.user != identity.name and not identity.superuser
            if not shared or not holder.shared or of_another:
                raise in_use(client_id)
            if namespace and holder.namespace in ("", namespace):
                where = f"the namespace {namespace}" if holder.namespace else "no namespace"
                raise RejectedRequest(
                    Status.CONFLICT, f"the client id {client_id} is in use in {where}"
                )
        self.release(connection)
        self._holders.setdefault(client_id, {})[connection] = Holder(
            shared, namespace, identity.name
        )
        self._held[connection] = client_id

    def release(self, connection: int) -> None:
        """Remove the client id of a connection."""
        client_id = self._held.pop(connection, None)
        if client_id is not None:
            holders = self._holders[client_id]
            del holders[connection]
            if not holders:
                del self._holders[client_id]


def in_use(client_id: str) -> RejectedRequest:
    """Return the refusal of a client id that another connection has, or that another user owns."""
    return RejectedRequest(Status.CONFLICT, f"the client id {client_id} is in use")


def expanded(client_id: str, user: str) -> str:
    """Return the client id with `${u}` replaced. Raises RejectedRequest: BAD_REQUEST."""
    if client_id.startswith(_USER):
        client_id = user + client_id.removeprefix(_USER)
    unusable = (
        not client_id.strip()
        or len(client_id) > MAX_CLIENT_ID
        or client_id.startswith(_NO_ID)
        or _NO_PART in client_id
    )
    if unusable:
        raise RejectedRequest(Status.BAD_REQUEST, f"{client_id[:80]!r} cannot be a client id")
    return client_id


# --- transactions --------------------------------------------------------------------------------

MOST_REMEMBERED: Final = 4096
"""Maximum number of remembered ended transactions."""

_OVER: Final = (
    ReportedTransactionState.COMMITTED,
    ReportedTransactionState.ROLLEDBACK,
    ReportedTransactionState.TIMED_OUT,
)


class Branch:
    """Transaction.

    number       JMQTransactionID
    xid          136 bytes; b"" if it is local
    created      wall ms; 0 = not known
    session      JMQSessionID of a local one, or 0
    joined       numbers of the connections that may use it
    sessionless  it does not end with them
    failure      why it has failed, "" if it has not, or its client has ended it with TMFAIL
    kept_for     owner for whom it is kept without a connection, None while it has one
    acked        what was acknowledged in it, as ACKNOWLEDGE named it: the consumer, the engine's,
                 and the delivery
    used         steady ms of the first message or acknowledgement, 0 = there is none
    timeout      ms after that until it is rolled back, 0 = never
    detached     how often it was left by its last connection
    """

    __slots__ = (
        "acked",
        "created",
        "detached",
        "failure",
        "joined",
        "kept_for",
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
        state: ReportedTransactionState,
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
        self.sessionless = bool(xid)
        self.failure = ""
        self.kept_for: str | None = None
        self.acked: dict[tuple[int, bytes], tuple[JmsConsumer, Consumer, Delivery]] = {}
        self.used = 0
        self.timeout = 0
        self.detached = 0

    @property
    def can_roll_back(self) -> bool:
        """True if the transaction is not prepared, being committed, or ended."""
        return not (
            self.over
            or self.state is ReportedTransactionState.PREPARED
            or self.transaction.state is EngineState.COMMITTING
        )

    @property
    def over(self) -> bool:
        """True if the transaction has ended."""
        return self.state in _OVER


class Branches:
    """Transactions of all JMQ connections of a broker."""

    __slots__ = ("_broker", "_by_connection", "_by_xid", "_ended", "_kept", "_open", "_uid")

    def __init__(self, broker: Broker, uid: Callable[[], int]) -> None:
        self._broker = broker
        self._uid = uid
        self._open: dict[int, Branch] = {}
        self._by_xid: dict[bytes, Branch] = {}
        """Branches by Xid, including ended ones."""
        self._by_connection: dict[int, dict[int, Branch]] = {}
        self._ended: OrderedDict[int, Branch] = OrderedDict()
        self._kept: dict[str, dict[int, Branch]] = {}
        """Unprepared transactions without a connection, by owner and number."""

    # --- finding -----------------------------------------------------------------------------

    def active(self, number: int, connection: JmqConnection) -> Branch:
        """Return the transaction of a message or acknowledgement.

        Raises RejectedRequest: GONE, TIMEOUT, PRECONDITION_FAILED.
        """
        branch = self._open.get(number)
        if branch is None or not self.usable(branch, connection):
            ended = self._ended.get(number)
            if ended is not None and ended.state is ReportedTransactionState.TIMED_OUT:
                raise RejectedRequest(Status.TIMEOUT, f"transaction {number} has taken too long")
            raise RejectedRequest(
                Status.GONE, f"there is no transaction {number} here, or not any more"
            )
        if branch.state is not ReportedTransactionState.STARTED:
            reason = f": {branch.failure}" if branch.failure else ""
            raise RejectedRequest(
                Status.PRECONDITION_FAILED, f"transaction {number} is {branch.state.name}{reason}"
            )
        if not branch.used:
            branch.used = self._broker.clock.steady
        return branch

    def usable(self, branch: Branch, connection: JmqConnection) -> bool:
        """Return whether the connection may use the transaction by its number. A local one without
        a connection is joined by the first of its owner's that does."""
        if connection.number in branch.joined:
            return True
        if branch.xid or branch.joined or not branch.sessionless or branch.over:
            return False
        if not may_use_transaction(connection.identity, branch.transaction):
            return False
        self.join(branch, connection)
        return True

    def fail(
        self, packet: Packet | Oversized, connection: JmqConnection, error: SluiceError
    ) -> None:
        """Mark the transaction of a message or acknowledgement that was refused without an answer
        as failed: its client does not know, and must not be told that all of it was committed.

        Does nothing to a transaction that the connection may not use, or that cannot be rolled back
        any more.
        """
        if packet.flags & A:
            return
        try:
            branch = self._open.get(packet.transaction_id)
        except ProtocolError:
            return  # it does not say which
        if branch is not None and branch.can_roll_back and self.usable(branch, connection):
            branch.state = ReportedTransactionState.FAILED
            branch.failure = branch.failure or str(error)

    def by_number(self, number: int) -> Branch | None:
        """Return the transaction, also a remembered ended one, or None."""
        return self._open.get(number) or self._ended.get(number)

    def by_xid(self, xid: bytes) -> Branch | None:
        """Return the branch, also a remembered ended one, or None."""
        branch = self._by_xid.get(xid)
        if branch is None or branch.over:
            prepared = self._broker.transactions.prepared.get(xid)
            if prepared is not None:
                branch = Branch(
                    self._uid(), prepared, ReportedTransactionState.PREPARED, xid, prepared.created
                )
                self._expect(branch, ReportedTransactionState.ROLLEDBACK)
                self._open[branch.number] = self._by_xid[xid] = branch
        return branch

    def prepared(self, identity: Identity) -> list[Branch]:
        """Return the prepared branches that the user may end, oldest first."""
        found = []
        for xid, transaction in list(self._broker.transactions.prepared.items()):
            if len(xid) == XID_SIZE and may_use_transaction(identity, transaction):
                branch = self.by_xid(xid)
                if branch is not None:
                    found.append(branch)
        return found

    # --- beginning ---------------------------------------------------------------------------

    def start(self, connection: JmqConnection, xid: bytes = b"", session: int = 0) -> Branch:
        """Start a transaction. Raises RejectedRequest: ERROR. The Xid must not be in use."""
        if len(self._by_connection.get(connection.number, ())) >= connection.options.most:
            raise RejectedRequest(Status.ERROR, "this connection has too many transactions")
        branch = Branch(
            self._uid(),
            self._broker.transactions.begin(connection.identity.name),
            ReportedTransactionState.STARTED,
            xid,
            self._broker.clock.wall,
        )
        branch.session = session
        # a rollback that the client has not requested counts as a timeout
        self._expect(branch, ReportedTransactionState.TIMED_OUT)
        self._open[branch.number] = branch
        if xid:
            self._by_xid[xid] = branch
        self.join(branch, connection)
        timeout = connection.options.transaction_timeout
        if timeout:
            branch.timeout = timeout
            self._broker.call_at(self._broker.clock.steady + timeout, self._ring, branch)
        return branch

    def join(self, branch: Branch, connection: JmqConnection) -> None:
        """Add a connection to the users of the transaction."""
        self._keep_no_longer(branch)
        branch.joined.add(connection.number)
        self._by_connection.setdefault(connection.number, {})[branch.number] = branch

    # --- time --------------------------------------------------------------------------------

    def _ring(self, branch: Branch) -> None:
        """Roll back the transaction after its timeout, which starts with its first use.

        A session with local transactions always has an open one, possibly unused.
        """
        if not branch.can_roll_back:
            return
        now = self._broker.clock.steady
        due = (branch.used or now) + branch.timeout
        if due > now:
            self._broker.call_at(due, self._ring, branch)
        else:
            self.roll_back(branch, ReportedTransactionState.TIMED_OUT)

    def _detach(self, branch: Branch, timeout: int, most: int) -> None:
        """Roll the branch back in `timeout` ms unless a connection joins it by then; 0 = never.
        At most `most` are kept for its owner; the oldest goes first."""
        branch.detached += 1
        if not branch.can_roll_back:
            return
        branch.kept_for = branch.transaction.owner
        kept = self._kept.setdefault(branch.kept_for, {})
        kept[branch.number] = branch
        if len(kept) > most:
            oldest = next((each for each in kept.values() if each.can_roll_back), branch)
            self.roll_back(oldest, ReportedTransactionState.TIMED_OUT)
        if timeout:
            when = self._broker.clock.steady + timeout
            self._broker.call_at(when, self._end_detached, (branch, branch.detached))

    def _keep_no_longer(self, branch: Branch) -> None:
        """Remove a branch from those without a connection: it is joined, prepared or ended."""
        if branch.kept_for is not None:
            kept = self._kept[branch.kept_for]
            del kept[branch.number]
            if not kept:
                del self._kept[branch.kept_for]
            branch.kept_for = None

    def _end_detached(self, argument: tuple[Branch, int]) -> None:
        branch, detached = argument
        if branch.can_roll_back and not branch.joined and branch.detached == detached:
            self.roll_back(branch, ReportedTransactionState.TIMED_OUT)

    # --- the end -----------------------------------------------------------------------------

    def prepare(self, branch: Branch, done: Callable[[], None]) -> None:
        """Prepare; call `done` when the state is durable. Raises BrokerError."""
        self._broker.transactions.prepare(branch.transaction, branch.xid, done)
        if branch.state is not ReportedTransactionState.PREPARED:
            branch.state = ReportedTransactionState.PREPARED
            branch.acked.clear()
            self._keep_no_longer(branch)
            self._expect(branch, ReportedTransactionState.ROLLEDBACK)

    def commit(self, branch: Branch, done: Callable[[], None]) -> None:
        """Commit; call `done` when it is complete. Raises BrokerError without any change."""
        prepared = branch.state is ReportedTransactionState.PREPARED
        for destination in branch.transaction.destinations:
            # raises for a deleted temporary destination, unless prepared: the engine drops those
            if destination.removed and not (prepared and destination.temporary):
                find_or_create(self._broker, destination.address, destination.creator)
        self._broker.transactions.commit(branch.transaction, done)

    def roll_back(
        self, branch: Branch, state: ReportedTransactionState = ReportedTransactionState.ROLLEDBACK
    ) -> int:
        """Roll back and return the journal sequence number to wait for."""
        self._expect(branch, state)
        return self._broker.transactions.rollback(branch.transaction)

    def take_back(
        self, branch: Branch, blocks: Iterable[tuple[int, bytes]]
    ) -> list[tuple[JmsConsumer, bytes]]:
        """Revoke acknowledgements of the transaction; return their consumers and SysMessageIDs.

        The messages are unacked on these consumers again. The consumers may be closed.
        """
        held: list[tuple[JmsConsumer, bytes]] = []
        if not branch.can_roll_back:
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

    def _expect(self, branch: Branch, undone: ReportedTransactionState) -> None:
        """Set the state after a rollback to `undone`; after a commit it is COMMITTED."""
        branch.transaction.on_end = partial(self._end, branch, undone)

    def _end(self, branch: Branch, undone: ReportedTransactionState, committed: bool) -> None:
        branch.state = ReportedTransactionState.COMMITTED if committed else undone
        branch.acked.clear()
        self._keep_no_longer(branch)
        del self._open[branch.number]
        for number in branch.joined:
            self._by_connection[number].pop(branch.number, None)
        branch.joined.clear()
        self._ended[branch.number] = branch
        if len(self._ended) > MOST_REMEMBERED:
            _, oldest = self._ended.popitem(last=False)
            if self._by_xid.get(oldest.xid) is oldest:
                del self._by_xid[oldest.xid]

    def leave_session(self, connection: JmqConnection, session: int) -> None:
        """Roll back the local transactions of an ended JMS session."""
        for branch in list(self._by_connection.get(connection.number, {}).values()):
            local = branch.session == session and not branch.xid and not branch.sessionless
            if local and branch.can_roll_back:
                self.roll_back(branch)

    def leave(self, connection: JmqConnection) -> None:
        """Remove a closed connection from its transactions."""
        for branch in list(self._by_connection.get(connection.number, {}).values()):
            if branch.sessionless or not branch.can_roll_back:
                branch.joined.discard(connection.number)
                if not branch.joined:
                    options = connection.options
                    self._detach(branch, options.detached_timeout, options.most)
            else:
                self.roll_back(branch)
                if not branch.xid:  # no client knows its number any more
                    self._ended.pop(branch.number, None)
        self._by_connection.pop(connection.number, None)


# --- the broker ----------------------------------------------------------------------------------

_COUNT_BITS: Final = 22
"""Bits of a unique id below the time: more ids per millisecond than the broker ever assigns."""
_MOST: Final = (1 << 63) - 1


class Coordinator:
    """State shared by all JMQ connections of a broker.

    session      JMQBrokerSessionID, unique for each run of the broker
    connections  connections by JMQConnectionID
    background   runs long computations off the event loop, or None
    """

    __slots__ = (
        "_broker",
        "_next",
        "_ready",
        "background",
        "branches",
        "client_ids",
        "connections",
        "durables",
        "session",
    )

    def __init__(self, broker: Broker, background: Background | None = None) -> None:
        """Create the shared state; without `background`, long selectors are compiled on the event
        loop."""
        self._broker = broker
        self.background = background
        self._next = (broker.clock.wall << _COUNT_BITS) & _MOST
        self._ready = False
        self.session = self.uid()
        self.connections: dict[int, JmqConnection] = {}
        self.client_ids = ClientIds()
        self.durables = Durables(broker)
        self.branches = Branches(broker, self.uid)
        broker.dead_letters.policies[Origin.JMQ] = JmqDeadLetterPolicy()

    def uid(self) -> int:
        """Return a number of 63 bits that is unique within the broker, also across restarts."""
        self._next += 1
        return self._next & _MOST

    def prepare(self) -> None:
        """Create the dead message queue when the first client connects."""
        if not self._ready:
            self._ready = True
            create_dead_messages(self._broker)
