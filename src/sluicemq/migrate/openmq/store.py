"""The file store: messages that Open MQ would recover from it at its start.

destination, interest ──┐
message/…  ── index.py ─┼─> the subscriptions of messages ──> plan
txnlog, …  ── replay.py ┘
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from sluicemq.migrate.openmq.destinations import (
    AUTOMATIC,
    INTERNAL,
    TEMPORARY,
    StoredSubscription,
    destination_of,
    interest_of,
    subscriptions_of,
)
from sluicemq.migrate.openmq.index import (
    ACKNOWLEDGED,
    DELIVERED,
    QUEUE,
    Id,
    StoredMessage,
    StoreIndex,
)
from sluicemq.migrate.openmq.messages import key_of_packet, message_of_packet
from sluicemq.migrate.openmq.records import Faults, entries, tolerating
from sluicemq.migrate.openmq.replay import Replay
from sluicemq.migrate.openmq.transactions import (
    INCOMPLETE,
    LOG,
    VRFILE,
    XID_SIZE,
    LoggedAck,
    LoggedTransaction,
)
from sluicemq.migrate.plan import Key, Plan, PreparedTransaction, SourceMessage
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
        self._left: dict[tuple[str, str], int] = {}

    def read(self) -> None:
        plan = self._plan
        for name in ("destination", "interest", LOG, "txn", "txnack", f"{INCOMPLETE}/{VRFILE}"):
            plan.change_detector.look(self._directory / name)
        self._read_destinations()
        self._read_interests()
        for directory in self._index.orphans():
            plan.leave(
                "messages",
                f"in {directory}",
                "no destination of the store has them: Open MQ would not deliver them either",
            )
        replay = Replay(plan, self._directory, self._index, self._faults)
        self._fill_plan(self._take_branches(replay.prepared))

    # --- reading -------------------------------------------------------------------------------

    def _read_destinations(self) -> None:
        plan = self._plan
        for entry in entries(self._directory / "destination", self._faults):
            try:
                destination = destination_of(plan, entry)
            except Damage as fault:
                self._faults(fault)
                continue
            if destination.type & TEMPORARY:
                plan.leave(
                    "destination",
                    str(destination.address),
                    "it is temporary, and its connection has gone",
                )
                continue
            if not destination.type & (AUTOMATIC | INTERNAL):
                plan.destinations[destination.address] = destination.settings
            self._index.read(destination)

    def _read_interests(self) -> None:
        known = self._index.destinations.values()
        topics = [each.address.name for each in known if each.address.kind is Kind.TOPIC]
        for entry in entries(self._directory / "interest", self._faults):
            with tolerating(self._faults):
                self._subscribe(interest_of(entry), topics)

    def _subscribe(self, interest: StoredSubscription, topics: list[str]) -> None:
        plan = self._plan
        what = f"{interest.name()} of topic {interest.topic}"
        try:
            found = subscriptions_of(interest, topics)
        except ValueError as fault:
            plan.leave("subscription", what, str(fault))
            return
        if not found:
            plan.leave(
                "subscription",
                what,
                "the wildcard stands for no topic that there is; its client subscribes again",
            )
        plan.subscriptions += found
        self._names[interest.number] = {each.topic: each.name for each in found}

    # --- the plan ------------------------------------------------------------------------------

    def _fill_plan(self, held: set[Id]) -> None:
        plan = self._plan
        waiting: list[tuple[StoredMessage, dict[str, int] | None]] = []
        for identity, stored in self._index.messages.items():
            if identity in held:
                continue
            try:
                verdict = self._judge(stored)
            except Damage as fault:
                self._faults(fault)
                continue
            if verdict.waits:
                waiting.append((stored, verdict.takers))
                plan.counts[stored.address] += 1
            elif verdict.reason:
                key = (str(stored.address), verdict.reason)
                self._left[key] = self._left.get(key, 0) + 1
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
        if address.kind is Kind.QUEUE:
            return ImportDecision(True, {"": _attempts(states.get(QUEUE, 0))})
        takers = {}
        for number, state in states.items():
            name = self._names.get(number, {}).get(address.name)
            if state != ACKNOWLEDGED and name is not None:
                takers[name] = _attempts(state)
        if not takers:
            return ImportDecision(False, None, "their subscriptions do not exist any more")
        return ImportDecision(True, takers)

    # --- prepared transactions -----------------------------------------------------------------

    def _take_branches(self, prepared: list[LoggedTransaction]) -> set[Id]:
        """Add the transactions. Returns the messages they have acknowledged, which are then
        excluded from the others."""
        held: dict[Id, SourceMessage] = {}
        for transaction in prepared:
            if len(transaction.xid) != XID_SIZE:
                self._plan.leave(
                    "transaction",
                    str(transaction.number),
                    "it is prepared without a Xid, so no coordinator can end it: it is rolled back",
                )
                continue
            with tolerating(self._faults):
                self._plan.branches.append(self._branch(transaction, held))
        self._plan.held = list(held.values())
        for waiting in held.values():
            self._plan.counts[waiting.message.destination] += 1
        return set(held)

    def _branch(
        self, transaction: LoggedTransaction, held: dict[Id, SourceMessage]
    ) -> PreparedTransaction:
        work = transaction.work
        sends = [message_of_packet(raw, "transaction log")[0] for raw in work.sends]
        acks = [self._hold(ack, held) for ack in work.acks]
        return PreparedTransaction(transaction.xid, sends, [ack for ack in acks if ack is not None])

    def _hold(self, ack: LoggedAck, held: dict[Id, SourceMessage]) -> tuple[Key, str] | None:
        identity = (ack.destination, ack.sysid)
        stored = self._index.messages.get(identity)
        if stored is None:
            return None
        address = stored.address
        name: str | None = ""
        if address.kind is Kind.TOPIC:
            name = self._names.get(ack.consumer, {}).get(address.name)
        verdict = self._judge(stored)
        if name is None or not verdict.takers or name not in verdict.takers:
            return None
        if identity not in held:
            held[identity] = _waiting(stored, verdict.takers)
        return held[identity].key, name


def _waiting(stored: StoredMessage, takers: dict[str, int] | None) -> SourceMessage:
    message, _ = stored.message()
    return SourceMessage(message, key_of_packet(stored.address, stored.sysid), takers)


def _attempts(state: int) -> int:
    """Return the number of deliveries; Open MQ stores only whether there was one."""
    return 1 if state == DELIVERED else 0


def _age(sysid: bytes) -> tuple[int, int, bytes]:
    timestamp, sequence = _sequence.unpack_from(sysid)
    return timestamp, sequence, sysid
