"""Transfer of a plan into the journal and the user database of a stopped broker.

Messages are not published through the engine, so that a million of them need no memory; see
OfflineImport.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from sluicemq.broker import (
    Broker,
    Destination,
    EngineSettings,
    OfflineImport,
    Subscription,
    compile_selector,
    recover,
)
from sluicemq.journal import FileJournal
from sluicemq.migrate.configuration import add_users
from sluicemq.migrate.ledger import NAME, Ledger
from sluicemq.migrate.plan import Key, Plan, SourceMessage, key_of
from sluicemq.migrate.set_aside import write_aside
from sluicemq.migrate.source_files import SourceError
from sluicemq.model.destination import (
    USUAL,
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Provenance,
    differing,
)
from sluicemq.model.errors import SelectorError, SluiceError
from sluicemq.server.clock import SystemClock

WRITER: Final = "sluicemq migrate"
"""Writer id of the BATCH records, see ledger.py."""
PART_MESSAGES: Final = 256
PART_BYTES: Final = 4 * 1024**2
"""Limits of a part: it ends with the message that reaches one of them."""

_CREATORS: Final = {
    "openmq": CreatedBy.JMQ,
    "phpmq": CreatedBy.PHPMQ,
    "vibemq": CreatedBy.VIBEMQ,
}
"""Owner of a source's destinations, by Plan.kind."""
MOST_CLASHES: Final = 10
"""Maximum number of names in an error."""

JOURNAL: Final = "journal"
"""Name of the journal directory within the data directory."""
_OTHER: Final = {Kind.QUEUE: Kind.TOPIC, Kind.TOPIC: Kind.QUEUE}


class Interrupted(SluiceError):
    """SIGINT stopped the migration; the text states what has been done and how to continue."""


class MigrationOutcome(msgspec.Struct, kw_only=True):
    """Result of a transfer.

    declared, kept  new destinations; existing destinations, which are unchanged
    imported        messages by destination; before: imported by an earlier run
    unwanted        messages of topics that match no subscription
    users           added users; known: users that existed already
    transactions    imported prepared transactions
    aside           file of the rows that have been set aside
    """

    declared: list[Address] = []
    kept: list[Address] = []
    subscriptions: list[str] = []
    imported: dict[Address, int] = {}
    before: int = 0
    unwanted: int = 0
    users: list[str] = []
    known: list[str] = []
    transactions: int = 0
    aside: Path | None = None


def transfer(plan: Plan, data_dir: Path, configured: Collection[Address] = ()) -> MigrationOutcome:
    """Transfer the plan. `configured` are destinations that the broker will declare at its start.

    Raises SourceError, and the errors of opening a journal: JournalLocked if a broker uses it;
    Interrupted after SIGINT, between two units. Messages imported before an error stay, and the
    next run does not import them again.
    """
    plan.change_detector.check("nothing has been written")
    _check_names(plan, configured)
    with _until_interrupted() as interrupted:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        ledger = Ledger(data_dir / NAME)
        journal = FileJournal.open(data_dir / JOURNAL)
        try:
            settings = EngineSettings(defaults=plan.defaults or DestinationSettings())
            broker = Broker(journal, SystemClock(), settings)
            recover(broker, journal.recovery)
            _check_names(plan, broker.destinations)
            writer = broker.batches.writers.get(WRITER)
            ledger.settle(journal.identity, writer.batch if writer else 0)
            transfer_run = _Transfer(plan, broker, journal, ledger, interrupted)
            aside = write_aside(plan, data_dir, transfer_run.pause)
            ledger.begin(journal.identity)
            outcome = transfer_run.transfer()
        finally:
            journal.close()
    outcome.aside = aside
    outcome.users, outcome.known = add_users(plan.users, data_dir)
    plan.change_detector.check("what has been imported by now is not imported twice")
    messages = sum(outcome.imported.values())
    ledger.done(plan.kind, plan.place, messages, time.time_ns() // 1_000_000)
    return outcome


def imported_before(data_dir: Path) -> set[Key]:
    """Return the imports of earlier runs, as far as they are known without the journal. Changes
    nothing. Raises SourceError."""
    ledger = Ledger(data_dir / NAME)
    ledger.settle(b"", None)
    return ledger.keys


def _check_names(plan: Plan, present: Collection[Address]) -> None:
    """Raise SourceError if the plan has a queue with the name of an existing topic, or the reverse,
    and the source's clients cannot distinguish the two."""
    if not plan.one_name:
        return
    clashes = [
        f"{address.kind.name.lower()} {address.name}"
        for address in sorted({*plan.destinations, *plan.counts})
        if Address(_OTHER[address.kind], address.name) in present
    ]
    if clashes:
        listed = ", ".join(clashes[:MOST_CLASHES])
        more = f" and {len(clashes) - MOST_CLASHES} more" if len(clashes) > MOST_CLASHES else ""
        raise SourceError(
            f"{listed}{more}: this broker has a destination of that name and of the other kind, "
            "and clients could reach only one of them. Delete or rename it, or migrate into "
            "another data directory. Nothing has been written"
        )


@contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT has arrived; a second SIGINT interrupts at
    once."""
    received = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield received.is_set
        return

    def receive(number: int, frame: FrameType | None) -> None:
        received.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, receive)
    try:
        yield received.is_set
    finally:
        signal.signal(signal.SIGINT, before)


class _Transfer:
    """One run. `_numbers` are the journal's destination numbers."""

    def __init__(
        self,
        plan: Plan,
        broker: Broker,
        journal: FileJournal,
        ledger: Ledger,
        interrupted: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._broker = broker
        self._journal = journal
        self._import = OfflineImport(broker, journal, WRITER)
        self._ledger = ledger
        self._interrupted = interrupted
        self._numbers: dict[Address, int] = {}
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._outcome = MigrationOutcome()

    def pause(self) -> None:
        """Raise Interrupted after SIGINT. Call it only between two units."""
        if not self._interrupted():
            return
        done = sum(self._outcome.imported.values())
        total = sum(self._plan.counts.values())
        raise Interrupted(
            f"interrupted: this run has imported {done} messages, of {total} in the source. Run "
            "the same command again to go on: nothing is imported twice. The source is as it was; "
            "users and the configuration are written at the end"
        )

    def transfer(self) -> MigrationOutcome:
        for address, settings in self._plan.destinations.items():
            self._declare(address, settings)
        self._subscribe()
        self._journal.sync()
        self._take_over_branches()
        part: list[SourceMessage] = []
        size = 0
        for waiting in self._plan.waiting():
            self.pause()
            if waiting.key in self._ledger.keys:
                self._outcome.before += 1
                continue
            part.append(waiting)
            size += len(waiting.message.body) + len(waiting.message.native)
            if len(part) >= PART_MESSAGES or size >= PART_BYTES:
                self._write(part)
                part = []
                size = 0
        if part:
            self._write(part)
        return self._outcome

    def _declare(self, address: Address, settings: DestinationSettings) -> None:
        found = self._broker.destinations.find(address)
        if found is not None and not found.automatic:
            self._outcome.kept.append(address)
        else:
            provenance, created = self._origin(address, settings)
            declared = self._broker.destinations.declare(
                address, settings, provenance=provenance, created=created
            )
            if settings.retain_without_subscriptions and not settings.auto_ack:
                # its messages are for the source's clients, and any of them may subscribe first
                self._broker.form_group(declared)
            self._outcome.declared.append(address)

    def _origin(self, address: Address, settings: DestinationSettings) -> tuple[Provenance, int]:
        """Return details of a destination's creation, and its time."""
        plan = self._plan
        known = plan.origins.get(address)
        if known is not None:
            return known
        explicit = differing(settings, plan.defaults or USUAL)
        return Provenance(_CREATORS[plan.kind], explicit), 0

    def _subscribe(self) -> None:
        broker = self._broker
        for migrated in self._plan.subscriptions:
            topic = broker.destinations.topic(migrated.topic)
            existing = topic.subscriptions.get(migrated.name)
            if existing is not None:
                # a subscription with other terms would be replaced, and its messages lost
                self._subscriptions[migrated.topic, migrated.name] = existing
                continue
            try:
                selector = compile_selector(migrated.selector) if migrated.selector else None
            except SelectorError as fault:
                self._plan.leave(
                    "subscription",
                    f"{migrated.name} of topic {migrated.topic}",
                    f"its selector {migrated.selector!r} is not understood: {fault}",
                )
                continue
            self._subscriptions[migrated.topic, migrated.name] = broker.subscribe(
                topic,
                migrated.name,
                durable=True,
                shared=True,
                selector=selector,
                exclude=migrated.exclude or None,
            )
            self._outcome.subscriptions.append(migrated.name)

    # --- messages ------------------------------------------------------------------------------

    def _number(self, address: Address) -> int:
        """Return a destination's number in the journal. Call it before a unit begins, as it may
        append a record."""
        number = self._numbers.get(address)
        if number is None:
            broker = self._broker
            found = broker.destinations.find(address) or broker.destinations.create(
                address,
                broker.settings.defaults,
                None,
                True,
                provenance=Provenance(_CREATORS[self._plan.kind]),
            )
            number = self._numbers[address] = broker.destinations.number(found)
        return number

    def _write(self, part: list[SourceMessage]) -> None:
        """Append one unit."""
        for waiting in part:
            self._number(waiting.message.destination)
        number = self._ledger.intend([waiting.key for waiting in part])
        for waiting in part:
            self._append(waiting)
        self._import.end_unit(number, len(part))

    def _append(self, waiting: SourceMessage) -> int:
        """Append a message and its past deliveries. Returns its sequence number, or 0 if no
        subscription receives it."""
        message = waiting.message
        address = message.destination
        attempts: dict[int, int] = {}
        references = 1
        if address.kind is Kind.TOPIC:
            topic = self._broker.destinations.find(address)
            if topic is not None and topic.settings.retain_without_subscriptions:
                message.routes = (self._numbers[address],)  # its group
                if waiting.takers:
                    attempts = {self._numbers[address]: waiting.takers.get("", 0)}
            else:
                message.routes, attempts = self._routes(topic, waiting)
                references = len(message.routes)
                if not references:
                    self._outcome.unwanted += 1
                    return 0
        elif waiting.takers:
            attempts = {self._numbers[address]: waiting.takers.get("", 0)}
        sequence = self._import.message(message, self._numbers[address], references, attempts)
        imported = self._outcome.imported
        imported[address] = imported.get(address, 0) + 1
        return sequence

    def _routes(
        self, topic: Destination | None, waiting: SourceMessage
    ) -> tuple[tuple[int, ...], dict[int, int]]:
        """Return the subscriptions of a topic that receive the message, with the attempts of
        each."""
        if topic is None:
            return (), {}
        if waiting.takers is None:
            targets = topic.targets(waiting.message)
            return tuple(target.number for target in targets), {}
        attempts = {}
        for name, count in waiting.takers.items():
            subscription = self._subscriptions.get((topic.name, name))
            if subscription is not None:
                attempts[subscription.number] = count
        return tuple(attempts), attempts

    # --- prepared transactions -----------------------------------------------------------------

    def _take_over_branches(self) -> None:
        """Append all transactions in one unit with the messages that they have acknowledged: after
        a crash a Xid is recovered either with all of its work or not at all."""
        keys = self._ledger.keys
        branches = [b for b in self._plan.branches if _branch_key(b.xid) not in keys]
        held = [waiting for waiting in self._plan.held if waiting.key not in keys]
        self._outcome.before += len(self._plan.held) - len(held)
        if not branches and not held:
            return
        for waiting in held:
            self._number(waiting.message.destination)
        begun = [waiting.key for waiting in held] + [_branch_key(b.xid) for b in branches]
        number = self._ledger.intend(begun)
        places: dict[Key, tuple[Address, int]] = {}
        for waiting in held:
            places[waiting.key] = (waiting.message.destination, self._append(waiting))
        for branch in branches:
            acks: dict[int, list[int]] = {}
            for key, name in branch.acks:
                address, sequence = places.get(key, (None, 0))
                if address is not None and sequence:
                    acks.setdefault(self._subscription(address, name), []).append(sequence)
            self._import.prepared(branch.xid, branch.sends, list(acks.items()))
        self._import.end_unit(number, len(held))
        self._outcome.transactions = len(branches)

    def _subscription(self, address: Address, name: str) -> int:
        if address.kind is Kind.QUEUE:
            return self._numbers[address]
        return self._subscriptions[address.name, name].number


def _branch_key(xid: bytes) -> Key:
    return key_of("xid", Address(Kind.QUEUE, ""), xid)
