"""The file store: messages that Open MQ would recover from it at its start.

destination, interest ──┐
message/…  ── index.py ─┼─> the subscriptions of messages ──> plan
txnlog, …  ─────────────┘

The transactions are applied to the index as Open MQ does at its start: first the incomplete ones
saved by a checkpoint, then the log; or the state files of stores without that log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from sluicemq.migrate.openmq.destinations import (
    AUTOMATIC,
    INTERNAL,
    TEMPORARY,
    destination_of,
    read_subscription,
)
from sluicemq.migrate.openmq.index import (
    ACKNOWLEDGED,
    DELIVERED,
    KIND,
    QUEUE,
    Id,
    StoredMessage,
    StoreIndex,
    message_of_packet,
)
from sluicemq.migrate.openmq.records import VRFILE, Faults, entries, tolerating
from sluicemq.migrate.openmq.transactions import (
    COMMITTED,
    INCOMPLETE,
    LOCAL,
    LOG,
    PREPARED,
    XID_SIZE,
    Event,
    LoggedAck,
    LoggedTransaction,
    MessageRemoved,
    MessageStored,
    read_incomplete,
    read_log,
    read_states,
)
from sluicemq.migrate.plan import Key, Plan, PreparedTransaction, SourceMessage, key_of
from sluicemq.migrate.source_files import Damage, SourceError
from sluicemq.model.destination import Kind

DIRECTORIES: Final = ("fs370", "fs350")
"""Directories of the store within an instance, newest first."""
OLDER: Final = "filestore"

_sequence: Final = Struct(">q20xi")
"""Layout within a SysMessageID: timestamp and sequence number."""

_UNROUTED: Final = (
    "the broker ended before it had routed them to consumers; Open MQ drops them when it starts"
)
_FOREIGN: Final = (
    "it spans several brokers of a cluster; have it committed or rolled back before you move"
)
_UNCOMMITTED: Final = "they were sent in transactions that were never committed"


class ImportDecision(NamedTuple):
    """Delivery state of a message. `takers` as in SourceMessage; `reason`: why it is not ready."""

    waits: bool
    takers: dict[str, int] | None = None
    reason: str = ""


def read_store(plan: Plan, instance: Path, faults: Faults) -> None:
    """Add the contents of the instance's store to the plan. Raises SourceError."""
    directory = next((instance / name for name in DIRECTORIES if (instance / name).is_dir()), None)
    if directory is not None:
        _Store(plan, directory, faults).read()
    elif (instance / OLDER).is_dir():
        raise SourceError(
            f"{instance / OLDER}: this is the store of a version before 3.5; let Open MQ 4 or 5 "
            "upgrade it first"
        )
    else:
        plan.leave("messages", "all", f"there is no {DIRECTORIES[0]} in {instance}: no file store")


class _Store:
    """Reader of one store. `_names` are of subscriptions, by number and topic; `_left` counts
    messages that are not ready, by destination and reason."""

    def __init__(self, plan: Plan, directory: Path, faults: Faults) -> None:
        self._plan = plan
        self._directory = directory
        self._faults = faults
        self._index = StoreIndex(directory, faults, plan.change_detector)
        self._names: dict[int, dict[str, str]] = {}
        self._left: Counter[tuple[str, str]] = Counter()

    def read(self) -> None:
        plan = self._plan
        for name in ("destination", "interest", LOG, "txn", "txnack", f"{INCOMPLETE}/{VRFILE}"):
            plan.change_detector.look(self._directory / name)
        self._read_destinations()
        self._read_subscriptions()
        for directory in self._index.orphans():
            plan.leave(
                "messages",
                f"in {directory}",
                "no destination of the store has them: Open MQ would not deliver them either",
            )
        prepared = [*self._replay(), *self._apply_states()]
        self._fill_plan(self._take_branches(prepared))

    # --- destinations and subscriptions --------------------------------------------------------

    def _read_destinations(self) -> None:
        plan = self._plan
        for entry in entries(self._directory / "destination", self._faults):
            try:
                destination = destination_of(plan, entry)
            except Damage as fault:
                self._faults(fault)
                continue
            address = destination.address
            if destination.type & TEMPORARY:
                reason = "it is temporary, and its connection has gone"
                plan.leave("destination", str(address), reason)
                continue
            if not destination.type & (AUTOMATIC | INTERNAL):
                plan.destinations[address] = destination.settings
            self._index.read(destination)

    def _read_subscriptions(self) -> None:
        known = self._index.destinations.values()
        topics = [each.address.name for each in known if each.address.kind is Kind.TOPIC]
        for entry in entries(self._directory / "interest", self._faults):
            with tolerating(self._faults):
                number, found = read_subscription(self._plan, entry, topics)
                self._plan.subscriptions += found
                self._names[number] = {each.topic: each.name for each in found}

    # --- transactions --------------------------------------------------------------------------

    def _replay(self) -> list[LoggedTransaction]:
        """Apply the log. Returns the transactions that are prepared."""
        unfinished: dict[int, LoggedTransaction] = {}
        change_detector = self._plan.change_detector
        for transaction in read_incomplete(self._directory, self._faults, change_detector):
            if transaction.kind != LOCAL:
                self._plan.leave("transaction", str(transaction.number), _FOREIGN)
            elif transaction.state == PREPARED:
                unfinished[transaction.number] = transaction
        with tolerating(self._faults):
            events, foreign = read_log(self._directory)
            if foreign:
                self._plan.leave("transaction", f"{foreign} records of the log", _FOREIGN)
            for event in events:
                with tolerating(self._faults):
                    self._apply(event, unfinished)
        return list(unfinished.values())

    def _apply(self, event: Event, unfinished: dict[int, LoggedTransaction]) -> None:
        index = self._index
        match event:
            case MessageStored(packet):
                index.sent(packet)
            case LoggedAck():
                index.acknowledged(event)
            case MessageRemoved(destination, sysid):
                index.messages.pop((destination, sysid), None)
            case LoggedTransaction(number=number, state=state) if state == PREPARED:
                unfinished.setdefault(number, event)
            case LoggedTransaction(number=number, state=state):
                work = unfinished.pop(number, event).work
                if state == COMMITTED:
                    for sent in work.sends:
                        index.sent(sent)
                    for ack in work.acks:
                        index.acknowledged(ack)

    def _apply_states(self) -> list[LoggedTransaction]:
        """Apply the state files; in this format messages are stored before they are committed.
        Returns the transactions that are prepared."""
        transactions = read_states(self._directory, self._faults)
        messages = self._index.messages
        dropped: Counter[str] = Counter()
        for identity, stored in list(messages.items()) if transactions else ():
            with tolerating(self._faults):
                transaction = transactions.get(stored.message()[1].transaction_id)
                if transaction is None or transaction.state == COMMITTED:
                    continue
                del messages[identity]
                if transaction.state == PREPARED:
                    transaction.work.sends.append(stored.packet())
                else:
                    dropped[str(stored.address)] += 1
        for name, count in dropped.items():
            self._plan.leave("messages", f"{count} of {name}", _UNCOMMITTED)
        places = {sysid: unique for unique, sysid in messages}
        for transaction in transactions.values():
            work = transaction.work
            work.acks[:] = [
                ack._replace(destination=places.get(ack.sysid, "")) for ack in work.acks
            ]
            if transaction.state == COMMITTED:
                for ack in work.acks:
                    self._index.acknowledged(ack)
        return [each for each in transactions.values() if each.state == PREPARED]

    # --- the plan ------------------------------------------------------------------------------

    def _fill_plan(self, held: set[Id]) -> None:
        plan = self._plan
        waiting: list[tuple[StoredMessage, dict[str, int] | None]] = []
        for identity, stored in self._index.messages.items():
            if identity in held:
                continue
            with tolerating(self._faults):
                decision = self._judge(stored)
                if decision.waits:
                    waiting.append((stored, decision.takers))
                    plan.counts[stored.address] += 1
                elif decision.reason:
                    self._left[str(stored.address), decision.reason] += 1
        waiting.sort(key=lambda pair: (pair[0].destination.unique, _age(pair[0].sysid)))
        plan.waiting = lambda: self._messages(waiting)
        for (name, reason), count in self._left.items():
            plan.leave("messages", f"{count} of {name}", reason)

    def _messages(
        self, waiting: list[tuple[StoredMessage, dict[str, int] | None]]
    ) -> Iterator[SourceMessage]:
        for stored, takers in waiting:
            with tolerating(self._faults):
                yield _waiting(stored, takers)

    def _judge(self, stored: StoredMessage) -> ImportDecision:
        """Decide how a message is delivered. Raises Damage."""
        states = stored.states
        address = stored.address
        if not states:
            # the broker ended before the message was routed
            if stored.raw is None and not stored.message()[0].deliver_at:
                return ImportDecision(False, None, _UNROUTED)
            return ImportDecision(True, {"": 0} if address.kind is Kind.QUEUE else None)
        if all(state == ACKNOWLEDGED for state in states.values()):
            return ImportDecision(False)  # only its removal was missing
        # Open MQ stores only whether there was a delivery
        if address.kind is Kind.QUEUE:
            return ImportDecision(True, {"": int(states.get(QUEUE) == DELIVERED)})
        takers = {}
        for number, state in states.items():
            name = self._names.get(number, {}).get(address.name)
            if state != ACKNOWLEDGED and name is not None:
                takers[name] = int(state == DELIVERED)
        if not takers:
            return ImportDecision(False, None, "their subscriptions do not exist any more")
        return ImportDecision(True, takers)

    # --- prepared transactions -----------------------------------------------------------------

    def _take_branches(self, prepared: list[LoggedTransaction]) -> set[Id]:
        """Add the transactions. Returns the messages they have acknowledged, which are then
        excluded from the others."""
        plan = self._plan
        held: dict[Id, SourceMessage] = {}
        for transaction in prepared:
            if len(transaction.xid) != XID_SIZE:
                plan.leave(
                    "transaction",
                    str(transaction.number),
                    "it is prepared without a Xid, so no coordinator can end it: it is rolled back",
                )
                continue
            with tolerating(self._faults):
                work = transaction.work
                sends = [message_of_packet(raw, "transaction log")[0] for raw in work.sends]
                acks = [self._hold(ack, held) for ack in work.acks]
                existing = [ack for ack in acks if ack is not None]
                plan.branches.append(PreparedTransaction(transaction.xid, sends, existing))
        plan.held = list(held.values())
        plan.counts.update(waiting.message.destination for waiting in plan.held)
        return set(held)

    def _hold(self, ack: LoggedAck, held: dict[Id, SourceMessage]) -> tuple[Key, str] | None:
        identity = (ack.destination, ack.sysid)
        stored = self._index.messages.get(identity)
        if stored is None:
            return None
        address = stored.address
        name: str | None = ""
        if address.kind is Kind.TOPIC:
            name = self._names.get(ack.consumer, {}).get(address.name)
        takers = self._judge(stored).takers
        if name is None or not takers or name not in takers:
            return None
        if identity not in held:
            held[identity] = _waiting(stored, takers)
        return held[identity].key, name


def _waiting(stored: StoredMessage, takers: dict[str, int] | None) -> SourceMessage:
    message, _ = stored.message()
    return SourceMessage(message, key_of(KIND, stored.address, stored.sysid), takers)


def _age(sysid: bytes) -> tuple[int, int, bytes]:
    timestamp, sequence = _sequence.unpack_from(sysid)
    return timestamp, sequence, sysid
