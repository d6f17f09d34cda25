"""vibemq.db: queues, waiting messages, dead letters.

The original stores the time to live of a queue and never acts on it. It would be wrong to drop at
the first start what has been waiting there for good: imported messages have that time from now.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from sluicemq.broker.deadletter import dead_letter_of
from sluicemq.cli.migrate.plan import Plan, Waiting, key_of
from sluicemq.cli.migrate.sources import Damage, Witness
from sluicemq.cli.migrate.sqlite import columns, opened
from sluicemq.model.destination import Address, Kind, Provenance
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.vibemq.mapping import PRIORITIES, PRIORITY, read_priority, to_message
from sluicemq.protocols.vibemq.payload import check
from sluicemq.protocols.vibemq.queues import Options, address, origin_of, read_options
from sluicemq.protocols.vibemq.wire import NO_HEADERS, PUBLISH, Frame

KIND: Final = "vibemq"
NORMAL: Final = 1
"""A priority as it is stored, 0-3."""
MESSAGES: Final = frozenset(
    {"id", "queue_name", "payload_json", "timestamp", "headers_json", "priority"}
)
_REASONS: Final = {
    0: "max-attempts",
    1: "expired",
    2: "DeserializationError",
    3: "HandlerException",
}
_headers: Final = msgspec.json.Decoder(dict[str, str])


class DeadLetter(msgspec.Struct):
    """A message as the table `dead_letters` has it."""

    id: str = ""
    queueName: str = ""  # noqa: N815  their spelling
    payload: msgspec.Raw = msgspec.Raw(b"")
    timestamp: str = ""
    headers: dict[str, str] = {}
    priority: int = NORMAL
    deliveryAttempts: int = 0  # noqa: N815


_letter: Final = msgspec.json.Decoder(DeadLetter)


def read_store(plan: Plan, file: Path) -> None:
    """Add queues and messages to the plan. Raises SourceError."""
    with opened(file, plan.witness) as connection:
        there = columns(connection, "messages")
        if not there:
            raise Damage(f"{file}: there is no table `messages`, so this is no store of VibeMQ")
        if missing := MESSAGES - there:
            raise Damage(f"{file}: the table `messages` lacks {', '.join(sorted(missing))}")
        store = _Store(file, plan.witness, "delivery_attempts" in there, _queues(file, connection))
        for name, options in store.queues.items():
            plan.destinations[store.address(name)] = options.settings
        for name, origin in _origins(connection).items():
            plan.origins[store.address(name)] = origin
        for raw, count in connection.execute(
            "SELECT CAST(queue_name AS BLOB), COUNT(*) FROM messages GROUP BY 1"
        ):
            plan.counts[store.address(_text(raw))] += count
        if columns(connection, "dead_letters"):
            store.letters = True
            for waiting in store.dead_letters(connection):
                plan.counts[waiting.message.destination] += 1
    lived = [name for name, options in store.queues.items() if options.message_ttl]
    if any(plan.counts.get(store.address(name)) for name in lived):
        plan.notes.append(
            "VibeMQ never acts on messageTtl, this broker does: imported messages of "
            f"{', '.join(lived[:5])} live for that time from the import on"
        )
    plan.waiting = store.waiting


def _queues(file: Path, connection: sqlite3.Connection) -> dict[str, Options]:
    if not columns(connection, "queues"):
        raise Damage(f"{file}: there is no table `queues`, so this is no store of VibeMQ")
    queues = {}
    for raw, options in connection.execute(
        "SELECT CAST(name AS BLOB), CAST(options_json AS BLOB) FROM queues ORDER BY created_at, 1"
    ):
        name = _text(raw)
        try:
            queues[name] = read_options(options or b"", NO_HEADERS)
        except ProtocolError as fault:
            raise Damage(f"{file}: queue {name}: {fault}") from None
    return queues


def _origins(connection: sqlite3.Connection) -> dict[str, tuple[Provenance, int]]:
    """Return how the queues were created, whose options can be read, and when."""
    origins = {}
    for raw, options, created in connection.execute(
        "SELECT CAST(name AS BLOB), CAST(options_json AS BLOB), CAST(created_at AS BLOB)"
        " FROM queues"
    ):
        with suppress(ProtocolError):
            origins[_text(raw)] = origin_of(options or b"", _text(created))
    return origins


class _Store:
    """The messages. `letters`: there are dead ones, too."""

    def __init__(
        self, file: Path, witness: Witness, counted: bool, queues: dict[str, Options]
    ) -> None:
        self._file = file
        self._witness = witness
        self._attempts = "delivery_attempts" if counted else "0"
        self.queues = queues
        self.letters = False

    def address(self, name: str) -> Address:
        """The destination that the queue is here."""
        return address(name, self.queues.get(name, Options()))

    def waiting(self) -> Iterator[Waiting]:
        """All messages, in the order of each queue."""
        with opened(self._file, self._witness) as connection:
            rows = connection.execute(
                "SELECT CAST(id AS BLOB), CAST(queue_name AS BLOB), CAST(payload_json AS BLOB),"
                " CAST(timestamp AS BLOB), CAST(headers_json AS BLOB), priority,"
                f" {self._attempts} FROM messages ORDER BY queue_name, timestamp, rowid"
            )
            for row in self._rows(rows):
                yield self._message(*row)
            if self.letters:
                yield from self.dead_letters(connection)

    def _rows(self, rows: sqlite3.Cursor) -> Iterator[Any]:
        while True:
            try:
                row = next(rows, None)
            except sqlite3.Error as fault:
                raise Damage(f"{self._file}: {fault}") from None
            if row is None:
                return
            yield row

    def _message(
        self,
        raw_id: bytes,
        raw_queue: bytes,
        payload: bytes | None,
        timestamp: bytes | None,
        headers: bytes | None,
        priority: object,
        attempts: object,
    ) -> Waiting:
        identity = _text(raw_id)
        where = f"{self._file}: message {identity}"
        name = _text(raw_queue)
        try:
            said = _headers.decode(headers) if headers else {}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
            raise Damage(f"{where}: its headers are not JSON: {fault}") from None
        destination = self.address(name)
        message = _made(
            where, destination, identity, payload or b"", said, _number(priority, NORMAL)
        )
        message.timestamp = _instant(timestamp, where)
        ttl = self.queues.get(name, Options()).message_ttl
        if ttl:
            message.expiration = max(message.timestamp, _now()) + ttl
        count = _number(attempts, 0)
        return Waiting(message, key_of(KIND, destination, raw_id), {"": count})

    def dead_letters(self, connection: sqlite3.Connection) -> Iterator[Waiting]:
        """Those of all queues, oldest first."""
        rows = connection.execute(
            "SELECT id, CAST(message_json AS BLOB), reason, CAST(failed_at AS BLOB)"
            " FROM dead_letters ORDER BY failed_at, id"
        )
        for number, raw, reason, failed in self._rows(rows):
            where = f"{self._file}: dead letter {number}"
            try:
                letter = _letter.decode(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
                raise Damage(f"{where}: not a message in JSON: {fault}") from None
            name = letter.queueName
            queue = Address(Kind.QUEUE, self._dead_letter_queue(name))
            payload = bytes(letter.payload)
            message = _made(
                where,
                self.address(name),
                letter.id,
                payload if payload != b"null" else b"",
                letter.headers,
                letter.priority,
            )
            message.timestamp = _instant(letter.timestamp.encode(), where)
            dead = dead_letter_of(
                message,
                name,
                _REASONS.get(reason, str(reason)),
                letter.deliveryAttempts,
                _instant(failed, where),
            )
            dead.destination = queue
            identity = f"dead {number} {letter.id}".encode("utf-8", "surrogatepass")
            yield Waiting(dead, key_of(KIND, queue, identity), {"": 0})

    def _dead_letter_queue(self, name: str) -> str:
        return self.queues.get(name, Options()).dead_letter_queue or f"{name}.dlq"


def _made(
    where: str,
    destination: Address,
    identity: str,
    payload: bytes,
    headers: dict[str, str],
    priority: int,
) -> Message:
    """The message that a PUBLISH of this would have been."""
    name = PRIORITIES[priority] if 0 <= priority < len(PRIORITIES) else PRIORITIES[NORMAL]
    if PRIORITY not in headers and priority != NORMAL:
        headers = {**headers, PRIORITY: name}
    frame = Frame(PUBLISH, identity, destination.name, payload, headers)
    try:
        if payload:
            check(payload)
        message = to_message(destination, frame, Durability.SYNC, 0)
    except ProtocolError as fault:
        raise Damage(f"{where}: {fault}") from None
    message.priority = read_priority(name)
    return message


def _instant(text: bytes | None, where: str) -> int:
    """ms since the epoch of an ISO 8601 time, which is UTC if it says nothing else."""
    try:
        found = datetime.fromisoformat((text or b"").decode())
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        return max(0, round(found.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise Damage(f"{where}: {text!r} is no time") from None


def _number(value: object, usual: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else usual


def _now() -> int:
    return time.time_ns() // 1_000_000


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")
