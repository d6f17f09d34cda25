"""vibemq.db: queues, ready messages, dead letters.

A row is imported, or it is set aside into a file, with its reason:

| category      | row                                                                            |
|---------------|--------------------------------------------------------------------------------|
| dropped       | a queue with DropOldest drops from memory and leaves the row in the store.     |
|               | VibeMQ's restart keeps the newest maxQueueSize rows, and so does the migration |
| delivered     | FanOutWithoutAck never removes a row; deliveries are not recorded              |
| undeliverable | a VibeMQ client cannot read it: too large, no JSON, nested too deep            |
| unreadable    | a column has an invalid value                                                  |

With the other overflow strategies, rows beyond maxQueueSize were being delivered when VibeMQ
stopped, because a message that it rejects never has a row. They are imported.

VibeMQ stores the time to live of a queue and never applies it. Its messages would expire at the
first start if it counted from their publishing, so it counts from the import.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from sluicemq.journal.slots import now_ms
from sluicemq.migrate.plan import Plan, SetAsideRow, SourceMessage, key_of
from sluicemq.migrate.source_files import (
    ChangeDetector,
    Damage,
    column_text,
    columns,
    open_database,
    require_columns,
)
from sluicemq.model.dead_letters import dead_letter_of
from sluicemq.model.destination import Address, Kind, Overflow, is_temporary
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.vibemq.compression import SUPPORTED, compress
from sluicemq.protocols.vibemq.mapping import (
    PRIORITIES,
    PRIORITY,
    check_payload,
    read_priority,
    to_message,
)
from sluicemq.protocols.vibemq.queues import Mode, QueueOptions, origin_of, read_written
from sluicemq.protocols.vibemq.wire import (
    MAX_BODY,
    MAX_UNPACKED,
    NO_HEADERS,
    PUBLISH,
    Frame,
    encode,
)

KIND: Final = "vibemq"
NORMAL: Final = 1
"""A stored priority, 0-3."""
MAX_NAMED: Final = 100
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
_COUNTED_PER_QUEUE: Final = {
    "dropped": "beyond maxQueueSize: dropped by VibeMQ (DropOldest), at the latest by its next "
    "start, and left in its store; set aside",
    "delivered": "a FanOutWithoutAck queue keeps the rows of delivered messages, which cannot be "
    "distinguished from those of ready ones; set aside. Import them with --fan-out-rows",
}
"""Types of rows that are reported per queue instead of individually."""
_OPTIONS: Final = (
    "mode", "deliveryMode", "maxQueueSize", "messageTtl", "enableDeadLetterQueue",
    "deadLetterQueueName", "overflowStrategy", "maxRetryAttempts",
)  # fmt: skip
_NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

HeaderValue = str | int | float | bool | None
DecodedT = TypeVar("DecodedT")
RowT = TypeVar("RowT", SourceMessage, SetAsideRow)
_header_values: Final = msgspec.json.Decoder(dict[str, HeaderValue])


class UnimportableRow(Exception):
    """Error for a row that cannot be imported. `category` is a key of plan.SET_ASIDE."""

    def __init__(self, category: str, reason: str) -> None:
        super().__init__(reason)
        self.category = category


class StoredQueue(NamedTuple):
    """A row of `queues`: the readable part of its options, None = nothing is readable; the reason
    if the row is invalid; the row."""

    options: QueueOptions | None
    reason: str
    row: dict[str, Any]


class DeadRow(msgspec.Struct, rename="camel"):
    """A message in the format of the table `dead_letters`."""

    id: str = ""
    queue_name: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"")
    timestamp: str = ""
    headers: dict[str, HeaderValue] | None = None
    priority: int = NORMAL
    delivery_attempts: int = 0


_dead_row: Final = msgspec.json.Decoder(DeadRow)


def read_store(plan: Plan, file: Path, *, strict: bool = False, fan_out_rows: bool = False) -> None:
    """Add queues and messages to the plan.

    strict        an invalid queue or row is an error, instead of being set aside
    fan_out_rows  rows of FanOutWithoutAck queues are imported, delivered or not

    Raises SourceError.
    """
    with open_database(file, plan.change_detector) as connection:
        require_columns(connection, file, "VibeMQ", "messages", MESSAGES)
        require_columns(connection, file, "VibeMQ", "queues", ())
        queues = dict(_read_queues(connection))
        store = _Store(file, plan.change_detector, queues, fan_out_rows)
        for name, queue in store.queues.items():
            if queue.options is not None:
                address = Address(queue.options.kind, name)
                plan.destinations[address] = queue.options.settings
                options_json, created_at = queue.row["options_json"] or b"", queue.row["created_at"]
                with suppress(ProtocolError):
                    plan.origins[address] = origin_of(options_json, column_text(created_at))
        _scan(plan, store, connection, strict)
    plan.has_shared_namespace = True
    plan.read_messages = partial(store.select, SourceMessage)
    plan.read_set_aside = partial(store.select, SetAsideRow)


def _scan(plan: Plan, store: _Store, connection: sqlite3.Connection, strict: bool) -> None:
    """Read the store to the end, and add its rows to the plan. Raises Damage."""
    expected_counts: Counter[tuple[str, str]] = Counter()
    lifetimes: dict[str, int] = {}
    """Lifetime of queues' messages from the import on, ms."""
    reported = 0
    now = now_ms()
    for entry in store.rows(connection):
        if isinstance(entry, SourceMessage):
            message = entry.message
            plan.counts[message.destination] += 1
            if message.expiration:
                name = message.destination.name
                lifetime = store.options(name).settings.message_ttl
                plan.expired_count += message.timestamp + lifetime <= now
                if len(lifetimes) < MAX_NAMED:
                    lifetimes[name] = lifetime
            continue
        plan.set_aside[entry.category] += 1
        if entry.category in _COUNTED_PER_QUEUE:
            expected_counts[entry.category, column_text(entry.row["queue_name"])] += 1
            continue
        kind, name = _describe_row(entry.row)
        if strict:
            raise Damage(f"{store.file}: {kind} {name}: {entry.reason}")
        reported += 1
        if reported <= MAX_NAMED:
            plan.skip(kind, name, f"{entry.reason}; its row is set aside")
    for (category, name), count in expected_counts.items():
        plan.skip("messages", f"{count} of {name}", _COUNTED_PER_QUEUE[category])
    if reported > MAX_NAMED:
        plan.skip("rows", f"{reported - MAX_NAMED} more", "see the file of rows set aside")
    if lifetimes:
        names = ", ".join(f"{name} ({ttl / 1000:g} s)" for name, ttl in lifetimes.items())
        plan.notes.append(
            "VibeMQ never applies messageTtl, this broker does: imported messages expire that time "
            f"after the import: {names}"
        )


def _describe_row(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the type of a row and its name, for the report."""
    if row["table"] == "queues":
        return "queue", column_text(row["name"])
    if row["table"] == "dead_letters":
        return "dead letter", str(row["id"])
    return "message", f"{column_text(row['id'])} of {column_text(row['queue_name'])}"


# --- queues --------------------------------------------------------------------------------------


def _read_queues(connection: sqlite3.Connection) -> Iterator[tuple[str, StoredQueue]]:
    for row in connection.execute(
        "SELECT CAST(name AS BLOB) AS name, CAST(options_json AS BLOB) AS options_json,"
        " CAST(created_at AS BLOB) AS created_at FROM queues ORDER BY queues.created_at, 1"
    ):
        name = column_text(row["name"])
        options, reason = _read_options(name, row["options_json"] or b"")
        yield name, StoredQueue(options, reason, {"table": "queues", **row})


def _read_options(name: str, options_json: bytes) -> tuple[QueueOptions | None, str]:
    """Return the options as far as they can be read, and the problem of the others.

    Options that cannot be read have their defaults. If none can be read, the queue is not created,
    because it could be a topic.
    """
    if not name or is_temporary(name):
        return None, "the name is not valid for a queue, which is not created"
    try:
        return read_written(options_json, NO_HEADERS).options(), ""
    except ProtocolError as error:
        reason = str(error)
    values = None
    with suppress(*_NOT_JSON):
        values = msgspec.json.decode(options_json)
    if not isinstance(values, dict):
        return None, f"{reason}; the queue is not created"
    readable_values: dict[str, object] = {}
    options = QueueOptions()
    for key in _OPTIONS:
        option_json = msgspec.json.encode({**readable_values, key: values.get(key)})
        with suppress(ProtocolError):
            options = read_written(option_json, NO_HEADERS).options()
            readable_values[key] = values.get(key)
    return options, f"{reason}; the queue has the default instead"


# --- rows ----------------------------------------------------------------------------------------

_PAYLOAD_SIZE: Final = "LENGTH(CAST(payload_json AS BLOB))"
_MESSAGES: Final = (
    "SELECT CAST(id AS BLOB) AS id, CAST(queue_name AS BLOB) AS queue_name,"
    " CAST(timestamp AS BLOB) AS timestamp, CAST(headers_json AS BLOB) AS headers_json, priority,"
    f" {{attempts}} AS delivery_attempts, {_PAYLOAD_SIZE} AS payload_bytes,"
    f" CASE WHEN {_PAYLOAD_SIZE} > {MAX_UNPACKED} THEN NULL"
    " ELSE CAST(payload_json AS BLOB) END AS payload_json"
    " FROM messages ORDER BY messages.queue_name, messages.timestamp, rowid"
)
_DEAD_LETTERS: Final = (
    "SELECT id, CAST(message_json AS BLOB) AS message_json, reason,"
    " CAST(failed_at AS BLOB) AS failed_at FROM dead_letters ORDER BY dead_letters.failed_at, id"
)


@dataclass(slots=True)
class _Store:
    """The rows of the file, which can be read repeatedly.

    fan_out_rows  as of `read_store`
    """

    file: Path
    change_detector: ChangeDetector
    queues: dict[str, StoredQueue]
    fan_out_rows: bool

    def options(self, name: str) -> QueueOptions:
        """Return the options of a queue; the defaults if its row is missing or invalid."""
        queue = self.queues.get(name)
        return QueueOptions() if queue is None or queue.options is None else queue.options

    def select(self, kind: type[RowT]) -> Iterator[RowT]:
        """Read the messages to import, or the rows that are not imported, in the order of `rows`.
        Opens the file."""
        with open_database(self.file, self.change_detector) as connection:
            yield from (entry for entry in self.rows(connection) if isinstance(entry, kind))

    def rows(self, connection: sqlite3.Connection) -> Iterator[SourceMessage | SetAsideRow]:
        """Read invalid queues, messages in the order of each queue, and dead letters, oldest
        first."""
        for queue in self.queues.values():
            if queue.reason:
                yield SetAsideRow("unreadable", queue.reason, queue.row)
        surplus: Counter[bytes | None] = Counter()
        for name, count in connection.execute(
            "SELECT CAST(queue_name AS BLOB), COUNT(*) FROM messages GROUP BY 1"
        ):
            settings = self.options(column_text(name)).settings
            if settings.overflow is Overflow.DROP_OLDEST and settings.max_messages:
                surplus[name] = count - settings.max_messages
        # old versions do not count deliveries, and have no dead letters
        counted = "delivery_attempts" in columns(connection, "messages")
        sql = _MESSAGES.format(attempts="delivery_attempts" if counted else "0")
        tables: list[tuple[str, str, Callable[[dict[str, Any]], SourceMessage]]] = [
            ("messages", sql, partial(self._message, surplus))
        ]
        if columns(connection, "dead_letters"):
            tables.append(("dead_letters", _DEAD_LETTERS, self._dead_letter))
        for table, sql, convert in tables:
            for columns_by_name in connection.execute(sql):
                row = {"table": table, **columns_by_name}
                try:
                    yield convert(row)
                except UnimportableRow as error:
                    yield SetAsideRow(error.category, str(error), row)

    def _message(self, surplus: Counter[bytes | None], row: dict[str, Any]) -> SourceMessage:
        """Convert a row. `surplus` counts the rows of each queue that are dropped, which are its
        oldest. Raises UnimportableRow."""
        size = row.pop("payload_bytes") or 0
        surplus[row["queue_name"]] -= 1
        if surplus[row["queue_name"]] >= 0:
            raise UnimportableRow("dropped", "beyond maxQueueSize")
        if size > MAX_UNPACKED:
            row["payload_bytes"] = size
            raise UnimportableRow("undeliverable", _too_large_reason(size))
        name = column_text(row["queue_name"])
        queue = self.queues.get(name)
        if not name or (queue is not None and queue.options is None):
            raise UnimportableRow("unreadable", f"its queue {name!r} is not created")
        options = self.options(name)
        if options.mode is Mode.FAN_OUT_WITHOUT_ACK and not self.fan_out_rows:
            raise UnimportableRow("delivered", "of a FanOutWithoutAck queue")
        headers = _decode(_header_values, row["headers_json"] or b"{}", "its headers are not JSON")
        raw_id = row["id"] or b""
        message = _build_message(
            Address(options.kind, name),
            column_text(raw_id),
            row["payload_json"] or b"",
            headers,
            row["priority"],
        )
        message.timestamp = _parse_time(row["timestamp"])
        if ttl := options.settings.message_ttl:
            message.expiration = max(message.timestamp, now_ms()) + ttl
        count = _count_or_zero(row["delivery_attempts"])
        return SourceMessage(message, key_of(KIND, message.destination, raw_id), {"": count})

    def _dead_letter(self, row: dict[str, Any]) -> SourceMessage:
        """Convert a row. Raises UnimportableRow."""
        record = _decode(_dead_row, row["message_json"] or b"", "not a message in JSON")
        name = record.queue_name
        options = self.options(name)
        queue = Address(Kind.QUEUE, options.dead_letter_queue or f"{name}.dlq")
        if self.options(queue.name).kind is Kind.TOPIC:
            raise UnimportableRow(
                "unreadable", f"its dead-letter queue {queue.name} is a fan-out queue"
            )
        payload = bytes(record.payload)
        message = _build_message(
            Address(options.kind, name),
            record.id,
            payload if payload != b"null" else b"",
            record.headers or {},
            record.priority,
        )
        message.timestamp = _parse_time(record.timestamp.encode("utf-8", "replace"))
        reason = row["reason"]
        dead_letter = dead_letter_of(
            message,
            name,
            _REASONS.get(reason, column_text(reason) or str(reason)),
            _count_or_zero(record.delivery_attempts),
            _parse_time(row["failed_at"]),
        )
        dead_letter.destination = queue
        identity = f"dead {row['id']} {record.id}".encode("utf-8", "surrogatepass")
        return SourceMessage(dead_letter, key_of(KIND, queue, identity), {"": 0})


def _decode(decoder: msgspec.json.Decoder[DecodedT], raw: bytes, problem: str) -> DecodedT:
    try:
        return decoder.decode(raw)
    except _NOT_JSON as error:
        raise UnimportableRow("unreadable", f"{problem}: {error}") from None


def _build_message(
    destination: Address,
    identity: str,
    payload: bytes,
    header_values: Mapping[str, HeaderValue],
    priority: object,
) -> Message:
    """Return the message that a PUBLISH of the row would have been. Raises UnimportableRow."""
    headers = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in header_values.items()
        if value is not None
    }
    # VibeMQ delivers a number above the last one before Critical
    number = min(max(0, priority), len(PRIORITIES) - 1) if isinstance(priority, int) else NORMAL
    name = PRIORITIES[number]
    if PRIORITY not in headers and number != NORMAL:
        headers[PRIORITY] = name
    frame = Frame(PUBLISH, identity, destination.name, payload, headers)
    try:
        if payload:
            check_payload(payload)
        _check_size(frame)
        message = to_message(destination, frame, Durability.SYNC, 0)
    except (ProtocolError, UnicodeEncodeError) as error:
        raise UnimportableRow("undeliverable", str(error)) from None
    message.priority = read_priority(name)
    return message


def _check_size(frame: Frame) -> None:
    """Raise ProtocolError if it is no frame, UnimportableRow if it exceeds, even compressed, the
    size that a .NET client reads."""
    body = encode(frame, trailer=False, limit=1 << 40)
    if len(body) > MAX_UNPACKED or (
        len(body) > MAX_BODY
        and not any(compress(body, algorithm, MAX_BODY) for algorithm in SUPPORTED)
    ):
        raise UnimportableRow("undeliverable", _too_large_reason(len(body)))


def _too_large_reason(size: int) -> str:
    return (
        f"it has {size} bytes; a .NET client reads frames of {MAX_BODY} bytes, compressed, and of "
        f"{MAX_UNPACKED} bytes unpacked"
    )


def _parse_time(raw: bytes | None) -> int:
    """Return ms since the epoch of an ISO 8601 time, which is UTC if it has no offset.

    Raises UnimportableRow.
    """
    try:
        instant = datetime.fromisoformat((raw or b"").decode())
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
        return max(0, round(instant.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UnimportableRow("unreadable", f"{raw!r} is not a time") from None


def _count_or_zero(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0
