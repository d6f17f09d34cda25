"""Transfer of a plan into the journal and the user database of a stopped broker.

Messages are not published through the engine, so that a million of them need no memory; see
OfflineImport.

The ledger lists the messages that have been imported into a data directory, and so prevents
repeated imports:

    migrations.log    {"journal": "<identity, hex>"}                       one JSON object a line
                      {"part": 1, "keys": "<keys of its messages, base64>"}
                      {"written": 1}
                      {"part": 2, …}
                      {"written": 2}
                      {"done": "openmq", "place": "/var/imq/…", "messages": 512, "at": …}

A part is a unit of the journal. Its line is on disk before the unit is begun, and the next line
follows once the unit is on disk. The unit ends with a BATCH_PART record with the part's number. So
the last of these records tells which parts the journal has: after a crash not the one without a
next line, and in a backup not those that were written while it was made. The broker forgets the
record after 30 days; then a part without a next line counts as missing.

Rows of the source that are set aside are not imported but written to a file in the data directory:

    set-aside-vibemq.jsonl    {"sort": "dropped", "reason": "…", "table": "messages", "id": …}

A line is one row of the source in JSON: the reason, and its columns. Text is unchanged; bytes that
are not UTF-8 are written as {"base64": "…"}. A later run whose rows differ writes another file,
`set-aside-vibemq-2.jsonl`; no file is ever changed.
"""

from __future__ import annotations

import base64
import filecmp
import itertools
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from sluicemq.broker import (
    Broker,
    EngineSettings,
    OfflineImport,
    compile_selector,
    recover,
)
from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.files import JOURNAL_NAME, open_and_inherit_owner
from sluicemq.journal.log import without_slot_limits
from sluicemq.journal.slots import now_ms
from sluicemq.migrate.configuration import add_users
from sluicemq.migrate.plan import (
    KEY_BYTES,
    Key,
    Plan,
    PreparedTransaction,
    SourceMessage,
    key_of,
)
from sluicemq.migrate.source_files import SourceError
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Provenance,
    differing,
)
from sluicemq.model.errors import SelectorError, SluiceError
from sluicemq.model.message import Message
from sluicemq.security.records import USERS_NAME
from sluicemq.server.clock import SystemClock
from sluicemq.server.configuration_reference import MIGRATIONS_NAME

WRITER: Final = "sluicemq migrate"
"""Writer id of the BATCH records that end the units."""
PART_MESSAGES: Final = 256
PART_BYTES: Final = 4 * 1024**2
"""Limits of a part: it ends with the message that reaches one of them."""

_CREATORS: Final = {
    "openmq": CreatedBy.JMQ,
    "phpmq": CreatedBy.PHPMQ,
    "vibemq": CreatedBy.VIBEMQ,
}
"""Owner of a source's destinations, by Plan.kind."""
MAX_CLASHES: Final = 10
"""Maximum number of names in an error."""

_OTHER_KIND: Final = {Kind.QUEUE: Kind.TOPIC, Kind.TOPIC: Kind.QUEUE}


class Interrupted(SluiceError):
    """The migration was interrupted; the text states what has been done and how to continue."""


class MigrationOutcome(msgspec.Struct, kw_only=True):
    """Result of a transfer.

    existing_destinations  existing destinations, which are unchanged
    imported               messages by destination
    imported_earlier       messages imported by an earlier run
    unmatched              messages of topics that match no subscription
    users                  added users
    set_aside_file         file of the rows that have been set aside
    """

    existing_destinations: list[Address] = []
    imported: Counter[Address] = msgspec.field(default_factory=Counter)
    imported_earlier: int = 0
    unmatched: int = 0
    users: list[str] = []
    set_aside_file: Path | None = None


def transfer(
    plan: Plan,
    data_dir: Path,
    configured: Collection[Address] = (),
    is_interrupted: Callable[[], bool] = lambda: False,
    users_file: Path | None = None,
) -> MigrationOutcome:
    """Transfer the plan. `configured` are destinations that the broker will declare at its start,
    `users_file` is its user database, None = that in the data directory; `is_interrupted` returns
    whether the transfer should stop.

    Raises SourceError, and the errors of opening a journal: JournalLocked if a broker uses it;
    Interrupted if it should stop, between two units. Messages imported before an error stay, and
    the next run does not import them again.
    """
    plan.change_detector.check("nothing has been written")
    _check_names(plan, configured)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = without_slot_limits(JournalOptions())
    journal = FileJournal.open(data_dir / JOURNAL_NAME, options)
    try:
        ledger = Ledger(data_dir)  # with the journal locked: another run may add lines
        settings = EngineSettings(default_destination=plan.defaults, max_destinations=0)
        broker = Broker(journal, SystemClock(), settings)
        recover(broker, journal.recovery)
        _check_names(plan, broker.destinations)
        writer = broker.batches.writers.get(WRITER)
        offline_import = OfflineImport(broker, journal, WRITER)
        transfer_run = _Transfer(plan, broker, journal, offline_import, ledger, is_interrupted)
        set_aside_file = write_set_aside(plan, data_dir, transfer_run.raise_if_interrupted)
        ledger.begin(journal.identity, writer.batch if writer else 0)
        outcome = transfer_run.transfer()
    finally:
        journal.close()
    outcome.set_aside_file = set_aside_file
    outcome.users = add_users(plan.users, users_file or data_dir / USERS_NAME)
    plan.change_detector.check("messages imported so far are not imported twice")
    messages = sum(outcome.imported.values())
    ledger.finish(plan.kind, plan.source_path, messages, now_ms())
    return outcome


def _check_names(plan: Plan, existing: Collection[Address]) -> None:
    """Raise SourceError if the plan has a queue with the name of an existing topic, or the reverse,
    and the source's clients cannot distinguish the two."""
    if not plan.has_shared_namespace:
        return
    clashes = [
        f"{address.kind.name.lower()} {address.name}"
        for address in sorted({*plan.destinations, *plan.counts})
        if Address(_OTHER_KIND[address.kind], address.name) in existing
    ]
    if clashes:
        names = ", ".join(clashes[:MAX_CLASHES])
        rest = f" and {len(clashes) - MAX_CLASHES} more" if len(clashes) > MAX_CLASHES else ""
        raise SourceError(
            f"{names}{rest}: this broker has a destination of the other kind with that name, and "
            "clients could reach only one of them. Delete or rename it, or migrate into another "
            "data directory. Nothing has been written"
        )


class RoutedMessage(NamedTuple):
    """A message with the number of its destination, and its past deliveries by the number of each
    subscription that receives it."""

    message: Message
    key: Key
    destination: int
    attempts: dict[int, int]


@dataclass
class _Transfer:
    """One run."""

    _plan: Plan
    _broker: Broker
    _journal: FileJournal
    _import: OfflineImport
    _ledger: Ledger
    _is_interrupted: Callable[[], bool]
    _outcome: MigrationOutcome = field(default_factory=MigrationOutcome)

    def raise_if_interrupted(self) -> None:
        """Raise Interrupted if the transfer should stop. Call it only between two units."""
        if not self._is_interrupted():
            return
        count = sum(self._outcome.imported.values())
        total = sum(self._plan.counts.values())
        raise Interrupted(
            f"interrupted: this run has imported {count} of {total} messages in the source. Run "
            "the same command again to continue: nothing is imported twice. The source is "
            "unchanged; users and the configuration are written at the end"
        )

    def transfer(self) -> MigrationOutcome:
        for address, settings in self._plan.destinations.items():
            self._declare(address, settings)
        self._subscribe()
        self._journal.sync()
        self._import_transactions()
        part: list[RoutedMessage] = []
        size = 0
        for source_message in self._plan.read_messages():
            self.raise_if_interrupted()
            if source_message.key in self._ledger.keys:
                self._outcome.imported_earlier += 1
                continue
            routed = self._route(source_message)
            if routed is None:
                continue
            part.append(routed)
            size += len(source_message.message.body) + len(source_message.message.native)
            if len(part) >= PART_MESSAGES or size >= PART_BYTES:
                self._write(part)
                part = []
                size = 0
        if part:
            self._write(part)
        return self._outcome

    def _declare(self, address: Address, settings: DestinationSettings) -> None:
        existing = self._broker.destinations.find(address)
        if existing is not None and not existing.automatic:
            self._outcome.existing_destinations.append(address)
        else:
            explicit_settings = differing(settings, self._plan.defaults)
            default_origin = Provenance(_CREATORS[self._plan.kind], explicit_settings), 0
            provenance, created = self._plan.origins.get(address, default_origin)
            destination = self._broker.destinations.declare(
                address, settings, provenance=provenance, created=created
            )
            if settings.retain_without_subscriptions and not settings.auto_ack:
                # its messages are for the source's clients, and any of them may subscribe first
                self._broker.form_group(destination)

    def _subscribe(self) -> None:
        broker = self._broker
        for subscription in self._plan.subscriptions:
            topic = broker.destinations.topic(subscription.topic)
            if subscription.name in topic.subscriptions:
                # a subscription with other terms would be replaced, and its messages lost
                continue
            try:
                selector = (
                    compile_selector(subscription.selector) if subscription.selector else None
                )
            except SelectorError as error:
                self._plan.skip(
                    "subscription",
                    f"{subscription.name} of topic {subscription.topic}",
                    f"its selector {subscription.selector!r} is not understood: {error}",
                )
                continue
            broker.subscribe(
                topic,
                subscription.name,
                durable=True,
                shared=True,
                selector=selector,
                exclude=subscription.exclude or None,
            )

    # --- messages ------------------------------------------------------------------------------

    def _destination_number(self, address: Address) -> int:
        """Return a destination's number in the journal. The first call for a destination appends
        records, so it has to come before a unit begins."""
        destinations = self._broker.destinations
        destination = destinations.find(address) or destinations.create(
            address,
            self._broker.settings.default_destination,
            provenance=Provenance(_CREATORS[self._plan.kind]),
        )
        return destinations.assign_number(destination)

    def _route(self, source_message: SourceMessage) -> RoutedMessage | None:
        """Find the subscriptions that receive a message; None if there are none. May append records
        of the destination, so it has to come before a unit begins."""
        message = source_message.message
        address = message.destination
        number = self._destination_number(address)
        counts = source_message.delivery_counts
        attempts = {number: (counts or {}).get("", 0)}  # of a queue, or of the group of a topic
        if address.kind is Kind.TOPIC:
            topic = self._broker.destinations.topic(address.name)
            subscriptions = topic.subscriptions
            if not topic.settings.retain_without_subscriptions:
                if counts is None:
                    counts = {target.name: 0 for target in topic.targets(message)}
                attempts = {
                    subscriptions[name].number: count
                    for name, count in counts.items()
                    if name in subscriptions
                }
            message.routes = tuple(attempts)
        if not attempts:
            self._outcome.unmatched += 1
            return None
        return RoutedMessage(message, source_message.key, number, attempts)

    def _write(
        self, part: list[RoutedMessage], branches: Sequence[PreparedTransaction] = ()
    ) -> None:
        """Append one unit: messages with their past deliveries, and prepared transactions that
        acknowledge some of them."""
        keys = [routed.key for routed in part] + [_branch_key(branch.xid) for branch in branches]
        unit_number = self._ledger.begin_part(keys)
        sequences: dict[Key, int] = {}
        for message, key, number, attempts in part:
            sequences[key] = self._import.message(message, number, attempts)
            self._outcome.imported[message.destination] += 1
        for branch in branches:
            acks: dict[int, list[int]] = {}
            for source_message, name in branch.acks:
                if sequence := sequences.get(source_message.key):
                    target = self._subscription_number(source_message.message.destination, name)
                    if target is not None:
                        acks.setdefault(target, []).append(sequence)
            self._import.prepared(branch.xid, branch.sends, list(acks.items()))
        self._import.end_unit(unit_number, len(part))
        self._ledger.end_part()

    def _subscription_number(self, address: Address, name: str) -> int | None:
        """Return the number of a subscription in the journal; None if it does not exist."""
        if address.kind is Kind.QUEUE:
            return self._destination_number(address)
        subscription = self._broker.destinations.topic(address.name).subscriptions.get(name)
        return subscription.number if subscription is not None else None

    # --- prepared transactions -----------------------------------------------------------------

    def _import_transactions(self) -> None:
        """Append all transactions in one unit with the messages that they have acknowledged: after
        a crash a Xid is recovered either with all of its work or not at all."""
        keys = self._ledger.keys
        branches = [
            branch
            for branch in self._plan.prepared_transactions
            if _branch_key(branch.xid) not in keys
        ]
        acked_messages = {
            source_message.key: source_message
            for branch in self._plan.prepared_transactions
            for source_message, _ in branch.acks
        }
        new_messages = [
            source_message for key, source_message in acked_messages.items() if key not in keys
        ]
        self._outcome.imported_earlier += len(acked_messages) - len(new_messages)
        routed_messages = [routed for message in new_messages if (routed := self._route(message))]
        if branches or routed_messages:
            self._write(routed_messages, branches)


def _branch_key(xid: bytes) -> Key:
    return key_of("xid", Address(Kind.QUEUE, ""), xid)


# --- the ledger --------------------------------------------------------------------------------


class LedgerLine(msgspec.Struct):
    """A line of the ledger; lines that confirm a part or end a run have none of these members."""

    journal: str = ""
    part: int = 0
    keys: bytes = b""


class LedgerPart(NamedTuple):
    """A part in the ledger; `start` is the position of its line."""

    number: int
    start: int
    keys: list[Key]


class Ledger:
    """The file and the keys in it. `part` is the last unit begun."""

    def __init__(self, data_dir: Path) -> None:
        """Read the file; a missing file is an empty list. Raises SourceError if it is damaged."""
        self.path = path = data_dir / MIGRATIONS_NAME
        self.journal = ""
        self.part = 0
        self.keys: set[Key] = set()
        self._parts: list[LedgerPart] = []
        self._confirmed = 0
        """Number of the last part that another line follows."""
        self._end = 0
        """Number of bytes up to the end of the last complete line."""
        content = path.read_bytes() if path.exists() else b""
        for line in content.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break  # a crash interrupted the write of this line, so its unit was not begun
            try:
                entry = msgspec.json.decode(line, type=LedgerLine)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise SourceError(
                    f"{path}, byte {self._end}: the list of imported messages is damaged "
                    f"({error}). Without it, messages could be imported twice: restore it from a "
                    "backup."
                ) from None
            self.journal = entry.journal or self.journal
            self._confirmed = self.part
            if entry.part:
                self.part = entry.part
                starts = range(0, len(entry.keys), KEY_BYTES)
                keys = [entry.keys[start : start + KEY_BYTES] for start in starts]
                self._parts.append(LedgerPart(entry.part, self._end, keys))
                self.keys.update(keys)
            self._end += len(line)

    def begin(self, journal: bytes, written: int) -> None:
        """Prepare for writing: remove an incomplete last line, and the parts that the journal does
        not have. `written` is the number of the last part in it, 0 if the broker has forgotten it.

        A list that belongs to another journal, which no longer exists, is removed.
        """
        if self.journal != journal.hex():
            self.keys.clear()
            self._end = 0
        for part in self._parts:
            if part.number > (written or self._confirmed):
                self.keys.difference_update(part.keys)
                self._end = min(self._end, part.start)
        self.part = max(self.part, written)
        fd = open_and_inherit_owner(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        with open(fd, "wb") as file:
            os.fchmod(fd, 0o600)
            file.truncate(self._end)
        if not self._end:
            self._write(journal=journal.hex())

    def begin_part(self, keys: list[Key]) -> int:
        """Record that the next part is about to be written. Returns its number once it is on
        disk."""
        self.part += 1
        self._write(part=self.part, keys=b"".join(keys))
        return self.part

    def end_part(self) -> None:
        """Record that the unit of the part is on disk. A crash may lose this line."""
        self._write(written=self.part, sync=False)

    def finish(self, kind: str, source: Path, messages: int, at: int) -> None:
        """Record that a migration is complete. `at` is ms since the epoch."""
        self._write(done=kind, place=str(source), messages=messages, at=at)

    def _write(self, *, sync: bool = True, **entry: object) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        with self.path.open("ab") as file:
            file.write(line)
            if sync:
                file.flush()
                os.fsync(file.fileno())


# --- rows that are set aside -------------------------------------------------------------------


def write_set_aside(plan: Plan, directory: Path, pause: Callable[[], None]) -> Path | None:
    """Write the rows that the plan sets aside. Returns the file, or None if there are none.

    The file has the first unused name, unless an existing file of that kind is identical. `pause`
    is called between two rows and may raise; the file is deleted then. Raises SourceError, OSError.
    """
    if not plan.set_aside:
        return None
    temporary = directory / f"set-aside-{plan.kind}.tmp"
    try:
        fd = open_and_inherit_owner(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as file:
            for row in plan.read_set_aside():
                pause()
                columns = {name: _encode_column(value) for name, value in row.row.items()}
                file.write(
                    msgspec.json.encode({"sort": row.category, "reason": row.reason, **columns})
                    + b"\n"
                )
            file.flush()
            os.fsync(file.fileno())
        path = directory / f"set-aside-{plan.kind}.jsonl"
        numbers = itertools.count(2)
        while path.exists() and not filecmp.cmp(path, temporary, shallow=False):
            path = directory / f"set-aside-{plan.kind}-{next(numbers)}.jsonl"
        if not path.exists():
            temporary.rename(path)
        return path
    finally:
        temporary.unlink(missing_ok=True)


def _encode_column(value: object) -> object:
    """Return a column's value as a JSON value."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value
