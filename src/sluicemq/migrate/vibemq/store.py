"""vibemq.db: queues, ready messages, dead letters.

A row is imported, or it is set aside into a file, with its reason:

| sort          | row                                                                            |
|---------------|--------------------------------------------------------------------------------|
| dropped       | a queue with DropOldest drops from memory and leaves the row in the store. The |
|               | original's restart keeps the newest maxQueueSize rows, and so does this        |
| delivered     | FanOutWithoutAck never removes a row; deliveries are not recorded              |
| undeliverable | a VibeMQ client cannot read it: too large, no JSON, nested too deep            |
| unreadable    | a column does not hold what belongs there                                      |

With the other overflow strategies rows beyond maxQueueSize were being delivered when the original
stopped: a message that it refuses never has a row. They are imported.

The original stores the time to live of a queue and never acts on it. It would be wrong to drop at
the first start what has been waiting there for good: imported messages have that time from now.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import brotli
import msgspec

from sluicemq.migrate.plan import Plan, SetAsideRow, SourceMessage, key_of
from sluicemq.migrate.source_files import ChangeDetector, Damage
from sluicemq.migrate.sqlite import columns, opened, required, text
from sluicemq.model.dead_letters import dead_letter_of
from sluicemq.model.destination import Address, Kind, Overflow, is_temporary
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.vibemq.mapping import PRIORITIES, PRIORITY, check, read_priority, to_message
from sluicemq.protocols.vibemq.queues import Mode, QueueOptions, origin_of, read_written
from sluicemq.protocols.vibemq.wire import MAX_BODY, NO_HEADERS, PUBLISH, Frame, encode

KIND: Final = "vibemq"
NORMAL: Final = 1
"""A stored priority, 0-3."""
MAX_UNPACKED: Final = 64 * 1024**2
"""Maximum number of bytes of a frame's uncompressed body that a .NET client reads."""
MOST_NAMED: Final = 100
"""Maximum number of rows that are reported individually; others are counted."""
MESSAGES: Final = frozenset(
    {"id", "queue_name", "payload_json", "timestamp", "headers_json", "priority"}
)
_REASONS: Final = {
    0: "max-attempts",
    1: "expired",
    2: "DeserializationError",
    3: "HandlerException",
}
_GZIP: Final = 31
"""zlib's window bits for the gzip format with its largest window."""
_AS_A_MATTER_OF_COURSE: Final = {
    "dropped": "beyond maxQueueSize: dropped by VibeMQ (DropOldest), at the latest by its next "
    "start, and left in its store; set aside",
    "delivered": "a FanOutWithoutAck queue keeps the rows of what it has delivered, and nothing "
    "tells them from what still waits; set aside. Import them with --fan-out-rows",
}
"""Types of rows that are reported per queue instead of individually."""
_OPTIONS: Final = (
    "mode", "deliveryMode", "maxQueueSize", "messageTtl", "enableDeadLetterQueue",
    "deadLetterQueueName", "overflowStrategy", "maxRetryAttempts",
)  # fmt: skip
_MESSAGE_COLUMNS: Final = (
    "id", "queue_name", "timestamp", "headers_json", "priority", "delivery_attempts",
    "payload_json",
)  # fmt: skip
_DEAD_LETTER_COLUMNS: Final = ("id", "message_json", "reason", "failed_at")
_header_values: Final = msgspec.json.Decoder(dict[str, str | int | float | bool | None])


class UnimportableRow(Exception):
    """Error for a row that cannot be imported. `sort` is a key of plan.ASIDE."""

    def __init__(self, sort: str, reason: str) -> None:
        super().__init__(reason)
        self.sort = sort


class StoredQueue(NamedTuple):
    """A row of `queues`: its name, its options as JSON and their readable part, None = nothing is
    readable; the reason if the row is invalid; the row."""

    name: str
    given: bytes
    options: QueueOptions | None
    reason: str
    row: dict[str, object]


class DeadRow(msgspec.Struct):
    """A message in the format of the table `dead_letters`."""

    id: str = ""
    queueName: str = ""  # noqa: N815  their spelling
    payload: msgspec.Raw = msgspec.Raw(b"")
    timestamp: str = ""
    headers: dict[str, str | int | float | bool | None] | None = None
    priority: int = NORMAL
    deliveryAttempts: int = 0  # noqa: N815


_dead_row: Final = msgspec.json.Decoder(DeadRow)


def read_store(plan: Plan, file: Path, *, strict: bool = False, fan_out_rows: bool = False) -> None:
    """Add queues and messages to the plan.

    strict        an odd queue or row is an error, instead of being set aside
    fan_out_rows  rows of FanOutWithoutAck queues are imported, delivered or not

    Raises SourceError.
    """
    with opened(file, plan.change_detector) as connection:
        there = required(connection, file, "VibeMQ", "messages", MESSAGES)
        required(connection, file, "VibeMQ", "queues", ())
        store = _Store(
            file,
            plan.change_detector,
            list(_queues(connection)),
            "delivery_attempts" in there,
            bool(columns(connection, "dead_letters")),
            fan_out_rows,
        )
        _StoreScan(plan, file, strict).take(store, connection)
    plan.one_name = True
    plan.waiting = store.waiting
    plan.aside = store.aside


class _StoreScan:
    """Completes a plan's information on a store, which it reads to the end."""

    def __init__(self, plan: Plan, file: Path, strict: bool) -> None:
        self._plan = plan
        self._file = file
        self._strict = strict
        self._named = 0
        self._unnamed = 0
        self._rows: Counter[tuple[str, str]] = Counter()
        """Rows of queues that are set aside by design, by type and queue."""
        self._renewed: dict[str, int] = {}
        """Lifetime of queues' messages from the import on, ms."""

    def take(self, store: _Store, connection: sqlite3.Connection) -> None:
        """Read the store. Raises Damage."""
        plan = self._plan
        for queue in store.all_queues:
            if queue.reason:
                self._name("queue", queue.name, queue.reason)
            if queue.options is not None:
                where = store.address(queue.name)
                plan.destinations[where] = queue.options.settings
                with suppress(ProtocolError):
                    given, created = queue.row["options_json"], queue.row["created_at"]
                    plan.origins[where] = origin_of(
                        bytes(given) if isinstance(given, bytes) else b"", text(created)
                    )
        now = _now()
        for found in store.rows(connection):
            if isinstance(found, SetAsideRow):
                plan.set_aside[found.sort] += 1
                self._set_aside(found)
            else:
                self._count(found, store, now)
        for (sort, name), count in self._rows.items():
            plan.leave("messages", f"{count} of {name}", _AS_A_MATTER_OF_COURSE[sort])
        if self._unnamed:
            plan.leave("rows", f"{self._unnamed} more", "see the file of rows that are set aside")
        if self._renewed:
            names = ", ".join(f"{name} ({ms / 1000:g} s)" for name, ms in self._renewed.items())
            plan.notes.append(
                "VibeMQ never acts on messageTtl, this broker does: imported messages live for "
                f"that time from the import on: {names}"
            )

    def _count(self, waiting: SourceMessage, store: _Store, now: int) -> None:
        message = waiting.message
        self._plan.counts[message.destination] += 1
        if message.expiration:
            name = message.destination.name
            life = store.options(name).settings.message_ttl
            self._plan.late += message.timestamp + life <= now
            if len(self._renewed) < MOST_NAMED:
                self._renewed[name] = life

    def _set_aside(self, aside: SetAsideRow) -> None:
        row = aside.row
        if aside.sort in _AS_A_MATTER_OF_COURSE:
            self._rows[aside.sort, text(row["queue_name"])] += 1
        elif row["table"] == "dead_letters":
            self._name("dead letter", str(row["id"]), aside.reason)
        elif row["table"] == "messages":
            where = f"{text(row['id'])} of {text(row['queue_name'])}"
            self._name("message", where, aside.reason)

    def _name(self, what: str, name: str, reason: str) -> None:
        if self._strict:
            raise Damage(f"{self._file}: {what} {name}: {reason}")
        if self._named < MOST_NAMED:
            self._named += 1
            self._plan.leave(what, name, f"{reason}; its row is set aside")
        else:
            self._unnamed += 1


# --- queues --------------------------------------------------------------------------------------


def _queues(connection: sqlite3.Connection) -> Iterator[StoredQueue]:
    for raw, given, created in connection.execute(
        "SELECT CAST(name AS BLOB), CAST(options_json AS BLOB), CAST(created_at AS BLOB)"
        " FROM queues ORDER BY created_at, 1"
    ):
        name = text(raw)
        options, reason = _options(name, given or b"")
        row = {"table": "queues", "name": raw, "options_json": given, "created_at": created}
        yield StoredQueue(name, given or b"", options, reason, row)


def _options(name: str, given: bytes) -> tuple[QueueOptions | None, str]:
    """Return the options as far as they can be read, and what is wrong with the rest.

    Options that cannot be read are as if they had not been given. If none can, it is not known
    what kind of destination the queue would be.
    """
    if not name or is_temporary(name):
        return None, "this is no name of a queue, so it is not created"
    try:
        return read_written(given, NO_HEADERS).options(), ""
    except ProtocolError as fault:
        reason = str(fault)
    try:
        values = msgspec.json.decode(given)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return None, f"{reason}; the queue is not created"
    readable: dict[str, object] = {}
    for key in _OPTIONS:
        if key in values:
            try:
                read_written(msgspec.json.encode({**readable, key: values[key]}), NO_HEADERS)
            except ProtocolError:
                continue
            readable[key] = values[key]
    options = read_written(msgspec.json.encode(readable), NO_HEADERS).options()
    return options, f"{reason}; the queue has the default instead"


# --- rows ----------------------------------------------------------------------------------------


class _Store:
    """The rows of the file, which can be read repeatedly.

    counted       messages have a number of deliveries
    dead_letters  there is a table of dead letters
    fan_out_rows  as of `read_store`
    """

    def __init__(
        self,
        file: Path,
        change_detector: ChangeDetector,
        queues: list[StoredQueue],
        counted: bool,
        dead_letters: bool,
        fan_out_rows: bool,
    ) -> None:
        self._file = file
        self._witness = change_detector
        self._attempts = "delivery_attempts" if counted else "0"
        self._has_dead_letters = dead_letters
        self._fan_out_rows = fan_out_rows
        self.all_queues = queues
        self._queues = {queue.name: queue for queue in queues}

    def options(self, name: str) -> QueueOptions:
        """Return the options of a queue; the defaults if its row is missing or invalid."""
        queue = self._queues.get(name)
        return QueueOptions() if queue is None or queue.options is None else queue.options

    def address(self, name: str) -> Address:
        """Return the equivalent destination of the queue."""
        return Address(self.options(name).kind, name)

    def waiting(self) -> Iterator[SourceMessage]:
        """Read the messages to import, in the order of each queue."""
        with opened(self._file, self._witness) as connection:
            for found in self.rows(connection):
                if not isinstance(found, SetAsideRow):
                    yield found

    def aside(self) -> Iterator[SetAsideRow]:
        """Read the rows that are not imported, invalid queues first."""
        with opened(self._file, self._witness) as connection:
            for found in self.rows(connection):
                if isinstance(found, SetAsideRow):
                    yield found

    def rows(self, connection: sqlite3.Connection) -> Iterator[SourceMessage | SetAsideRow]:
        """Read invalid queues, messages, dead letters. Raises Damage where the file is damaged."""
        for queue in self.all_queues:
            if queue.reason:
                yield SetAsideRow("unreadable", queue.reason, queue.row)
        yield from self._messages(connection)
        if self._has_dead_letters:
            yield from self._dead_letters(connection)

    def _messages(self, connection: sqlite3.Connection) -> Iterator[SourceMessage | SetAsideRow]:
        count = "SELECT CAST(queue_name AS BLOB), COUNT(*) FROM messages GROUP BY 1"
        surplus = {
            raw: total - self._capacity(text(raw)) for raw, total in self._read(connection, count)
        }
        size = "LENGTH(CAST(payload_json AS BLOB))"
        rows = self._read(
            connection,
            "SELECT CAST(id AS BLOB), CAST(queue_name AS BLOB), CAST(timestamp AS BLOB),"
            f" CAST(headers_json AS BLOB), priority, {self._attempts}, {size},"
            f" CASE WHEN {size} > {MAX_UNPACKED} THEN NULL ELSE CAST(payload_json AS BLOB) END"
            " FROM messages ORDER BY queue_name, timestamp, rowid",
        )
        for *values, length, payload in rows:
            row = dict(zip(_MESSAGE_COLUMNS, (*values, payload), strict=True))
            surplus[row["queue_name"]] -= 1
            try:
                if surplus[row["queue_name"]] >= 0:
                    raise UnimportableRow("dropped", "beyond maxQueueSize")
                if (length or 0) > MAX_UNPACKED:
                    row["payload_bytes"] = length
                    raise UnimportableRow("undeliverable", _too_large(length))
                yield self._message(row)
            except UnimportableRow as fault:
                yield SetAsideRow(fault.sort, str(fault), {"table": "messages", **row})

    def _capacity(self, name: str) -> int:
        """Return the number of a queue's rows to import, the newest ones."""
        settings = self.options(name).settings
        if settings.overflow is not Overflow.DROP_OLDEST or not settings.max_messages:
            return 1 << 62
        return settings.max_messages

    def _read(self, connection: sqlite3.Connection, sql: str) -> Iterator[Any]:
        try:
            yield from connection.execute(sql)
        except sqlite3.Error as fault:
            raise Damage(f"{self._file}: {fault}") from None

    def _message(self, row: Mapping[str, Any]) -> SourceMessage:
        """Convert a row. Raises Odd."""
        raw_id = row["id"] or b""
        name = text(row["queue_name"])
        queue = self._queues.get(name)
        if not name or (queue is not None and queue.options is None):
            raise UnimportableRow("unreadable", f"its queue {name!r} is not created")
        options = self.options(name)
        if options.mode is Mode.FAN_OUT_WITHOUT_ACK and not self._fan_out_rows:
            raise UnimportableRow("delivered", "of a FanOutWithoutAck queue")
        try:
            given = _header_values.decode(row["headers_json"]) if row["headers_json"] else {}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
            raise UnimportableRow("unreadable", f"its headers are not JSON: {fault}") from None
        message = _made(
            self.address(name), text(raw_id), row["payload_json"] or b"", given, row["priority"]
        )
        message.timestamp = _instant(row["timestamp"])
        ttl = options.settings.message_ttl
        if ttl:
            message.expiration = max(message.timestamp, _now()) + ttl
        count = _number(row["delivery_attempts"])
        return SourceMessage(message, key_of(KIND, message.destination, raw_id), {"": count})

    def _dead_letters(
        self, connection: sqlite3.Connection
    ) -> Iterator[SourceMessage | SetAsideRow]:
        """Read the rows of all queues, oldest first."""
        rows = self._read(
            connection,
            "SELECT id, CAST(message_json AS BLOB), reason, CAST(failed_at AS BLOB)"
            " FROM dead_letters ORDER BY failed_at, id",
        )
        for values in rows:
            row = dict(zip(_DEAD_LETTER_COLUMNS, values, strict=True))
            try:
                yield self._dead_letter(row)
            except UnimportableRow as fault:
                yield SetAsideRow(fault.sort, str(fault), {"table": "dead_letters", **row})

    def _dead_letter(self, row: Mapping[str, Any]) -> SourceMessage:
        """Convert a row. Raises Odd."""
        try:
            dead_row = _dead_row.decode(row["message_json"] or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
            raise UnimportableRow("unreadable", f"not a message in JSON: {fault}") from None
        name = dead_row.queueName
        queue = Address(Kind.QUEUE, self.options(name).dead_letter_queue or f"{name}.dlq")
        if queue.name in self._queues and self.address(queue.name).kind is Kind.TOPIC:
            raise UnimportableRow(
                "unreadable", f"its dead-letter queue {queue.name} is a fan-out queue"
            )
        payload = bytes(dead_row.payload)
        message = _made(
            self.address(name),
            dead_row.id,
            payload if payload != b"null" else b"",
            dead_row.headers or {},
            dead_row.priority,
        )
        message.timestamp = _instant(dead_row.timestamp.encode("utf-8", "replace"))
        reason = row["reason"]
        dead = dead_letter_of(
            message,
            name,
            _REASONS.get(reason, text(reason) or str(reason)),
            _number(dead_row.deliveryAttempts),
            _instant(row["failed_at"]),
        )
        dead.destination = queue
        identity = f"dead {row['id']} {dead_row.id}".encode("utf-8", "surrogatepass")
        return SourceMessage(dead, key_of(KIND, queue, identity), {"": 0})


def _made(
    destination: Address,
    identity: str,
    payload: bytes,
    given: Mapping[str, str | int | float | bool | None],
    priority: object,
) -> Message:
    """Return the message that a PUBLISH of the row would have been. Raises Odd."""
    headers = {key: _spelled(value) for key, value in given.items() if value is not None}
    # VibeMQ delivers a number above the last one before Critical
    number = min(max(0, priority), len(PRIORITIES) - 1) if isinstance(priority, int) else NORMAL
    name = PRIORITIES[number]
    if PRIORITY not in headers and number != NORMAL:
        headers[PRIORITY] = name
    frame = Frame(PUBLISH, identity, destination.name, payload, headers)
    try:
        if payload:
            check(payload)
        _check_size(frame)
        message = to_message(destination, frame, Durability.SYNC, 0)
    except (ProtocolError, UnicodeEncodeError) as fault:
        raise UnimportableRow("undeliverable", str(fault)) from None
    message.priority = read_priority(name)
    return message


def _check_size(frame: Frame) -> None:
    """Raise ProtocolError if it is no frame, Odd if it exceeds, even compressed, the size that a
    .NET client reads."""
    body = encode(frame, trailer=False, limit=1 << 40)
    if len(body) <= MAX_BODY:
        return
    if len(body) > MAX_UNPACKED:
        raise UnimportableRow("undeliverable", _too_large(len(body)))
    if (
        len(zlib.compress(body, 1, _GZIP)) > MAX_BODY
        and len(brotli.compress(body, quality=5, lgwin=24)) > MAX_BODY
        and len(zlib.compress(body, 9, _GZIP)) > MAX_BODY
    ):
        raise UnimportableRow("undeliverable", _too_large(len(body)))


def _too_large(size: int) -> str:
    return (
        f"it has {size} bytes; a .NET client reads frames of {MAX_BODY} bytes, compressed, and of "
        f"{MAX_UNPACKED} bytes unpacked"
    )


def _spelled(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _instant(raw: bytes | None) -> int:
    """Return ms since the epoch of an ISO 8601 time, which is UTC if it says nothing else.

    Raises Odd.
    """
    try:
        found = datetime.fromisoformat((raw or b"").decode())
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        return max(0, round(found.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UnimportableRow("unreadable", f"{raw!r} is no time") from None


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


def _now() -> int:
    return time.time_ns() // 1_000_000
