"""Helpers of the tests of the source: journals with every kind of record, and a naive reader."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluicemq.broker.codec import Requeue, decode_requeue, encode
from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.format import (
    DEPTH,
    ENTRY,
    Cause,
    Record,
    RecordType,
    decode_deliveries,
    decode_depth,
    decode_message,
    encode_completed,
    encode_redelivered,
    has_client_timestamp,
)
from sluicemq.journal.reader import read_records
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.model.rows import MAX_TIME
from sluicemq.pipeline.schema import EVENTS, Event
from sluicemq.pipeline.source.options import (
    SourceOptions,
    arrow_columns,
    parse_options,
    requested_columns,
)
from sluicemq.pipeline.source.readers import BatchReader
from sluicemq.pipeline.source.reading import TaskRanges

Row = dict[str, Any]
T0 = 1_700_000_000_000
SMALL = JournalOptions(segment_bytes=4000, preallocate_bytes=0, flush_interval=0)
"""Segments of a few records each."""
ORDERS = Address(Kind.QUEUE, "orders")


def message(body: bytes = b"hello", address: Address = ORDERS, **fields: object) -> Message:
    """Return a message of PHPMQ; `fields` set its other attributes."""
    result = Message(address, body, BodyKind.TEXT, Origin.PHPMQ, Durability.SYNC, T0, 0, 4)
    for name, value in fields.items():
        setattr(result, name, value)
    result.arrival = result.arrival or result.timestamp
    return result


def put(journal: FileJournal, made: Message | None = None) -> int:
    """Append one message."""
    made = made or message()
    return journal.append_message(made, journal.destination_number(made.destination))


def deliver(journal: FileJournal, sequences: list[int], address: Address = ORDERS) -> int:
    """Append the first delivery of messages."""
    body = encode_completed(7, sequences)
    number = journal.destination_number(address)
    return journal.append_entry(RecordType.DELIVERED, body, T0 + 1, destination=number)


def redeliver(
    journal: FileJournal, sequences: list[int], attempts: list[int], address: Address = ORDERS
) -> int:
    """Append the redelivery of messages."""
    body = encode_redelivered(7, sequences, attempts)
    number = journal.destination_number(address)
    return journal.append_entry(RecordType.REDELIVERED, body, T0 + 2, destination=number)


def complete(
    journal: FileJournal,
    sequences: list[int],
    cause: Cause = Cause.ACKNOWLEDGED,
    address: Address = ORDERS,
) -> int:
    """Append the end of deliveries."""
    return journal.append_completed(
        7, journal.destination_number(address), cause, sequences, T0 + 3
    )


def requeue(journal: FileJournal, sequence: int, attempts: int, address: Address = ORDERS) -> int:
    """Append the requeueing of a message."""
    return journal.append_entry(
        RecordType.REQUEUED,
        encode(Requeue(7, 0, attempts)),
        T0 + 4,
        reference=sequence,
        destination=journal.destination_number(address),
    )


def depth(journal: FileJournal, waiting: int, address: Address = ORDERS) -> int:
    """Append the depth of a destination."""
    return journal.append_entry(
        RecordType.DEPTH,
        DEPTH.pack(waiting, 2, 3, 0),
        T0 + 5,
        destination=journal.destination_number(address),
    )


# --- the reader under test ------------------------------------------------------------------------


def options_of(place: Path | str, **given: str) -> SourceOptions:
    """Return options, by default to read everything, with lower-case names as Spark passes them."""
    location = {"url": place} if isinstance(place, str) else {"path": str(place)}
    texts = {"events": "*", "includeheaders": "true", **location, **given}
    return parse_options({name: text for name, text in texts.items() if text})


def reader_of(place: Path | str, **given: str) -> BatchReader:
    """Return the reader that Spark uses for `spark.read`."""
    options = options_of(place, **given)
    return BatchReader(options, arrow_columns(requested_columns(options)))


def table_of(reader: BatchReader) -> pa.Table:
    """Return all rows in journal order. As in Spark, tasks run on a copy of the reader."""
    sent = pickle.dumps(reader)
    shares = pickle.dumps(reader.partitions())
    batches = [
        batch
        for share in pickle.loads(shares)
        if isinstance(share, TaskRanges)
        for batch in pickle.loads(sent).read(share)
    ]
    if not batches:
        return pa.table({name: [] for name in EVENTS.names})
    table = pa.Table.from_batches(batches)
    table.validate(full=True)
    return table


def read(place: Path | str, **given: str) -> list[Row]:
    """Return the rows of a batch read."""
    return rows_of(table_of(reader_of(place, **given)))


def rows_of(table: pa.Table) -> list[Row]:
    """Return rows with maps as dictionaries."""
    rows: list[Row] = table.to_pylist()
    for row in rows:
        for name in ("properties", "property_types"):
            if row.get(name) is not None:
                row[name] = dict(row[name])
    return rows


# --- naive reader -----------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(microseconds: int) -> datetime:
    """Return a time as Arrow does."""
    return _EPOCH + timedelta(microseconds=microseconds)


def _name(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _property(value: object) -> tuple[str | None, str]:
    if value is None:
        return None, "null"
    if isinstance(value, bool):
        return str(value).lower(), "boolean"
    if isinstance(value, int):
        return str(value), "integer"
    if isinstance(value, float):
        return repr(value), "real"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode(), "bytes"
    return _name(str(value)), "text"


def naive_rows(directory: Path, selects: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """Return every event of a journal, read one record at a time."""
    records = [record for _, _, record in read_records(directory)]
    names = {
        record.destination: record.address
        for record in records
        if record.type in (RecordType.DESTINATION_CREATED, RecordType.DESTINATION_DELETED)
    }
    published: dict[int, Record] = {}
    for record in records:
        if record.is_message and (record.type == RecordType.MESSAGE or not record.flags & ENTRY):
            published.setdefault(record.identity, record)
    rows = []
    before: Record | None = None
    for record in records:
        record_rows = _rows(record, names, published)
        after_message = before is not None and before.type == RecordType.MESSAGE
        if before is not None and after_message and record.kind == Cause.DEAD_LETTERED:
            dead_letter = _fields(before, names[before.destination])
            for row in record_rows if record.type == RecordType.COMPLETED else ():
                row["properties"] = dead_letter.get("properties")
                row["property_types"] = dead_letter.get("property_types")
        rows += record_rows
        before = record
    return [row for row in rows if selects(row)]


def _rows(record: Record, names: dict[int, Address], published: dict[int, Record]) -> list[Row]:
    messages: list[tuple[int | None, int | None]]
    fields: Row = {}
    event = RecordType(record.type).name.lower()
    if record.type == RecordType.MESSAGE:
        event = Event.PUBLISHED
    if record.is_message:
        messages = [(record.identity, None)]
        fields = _fields(record, names[record.destination])
    elif record.type == RecordType.COMPLETED:
        event = Cause(record.kind).name.lower().replace("_", "-")
        messages = [(sequence, None) for sequence in record.sequences]
        fields = {"subscription": record.subscription}
    elif record.type == RecordType.DELIVERED:
        messages = [(sequence, 1) for sequence in record.sequences]
        fields = {"subscription": record.subscription}
    elif record.type == RecordType.REDELIVERED:
        subscription, sequences, attempts = decode_deliveries(record.body)
        messages = list(zip(sequences, attempts, strict=True))
        fields = {"subscription": subscription}
    elif record.type == RecordType.REQUEUED:
        requeued = decode_requeue(record.body)
        messages = [(record.reference, requeued.attempts)]
        fields = {"subscription": requeued.subscription}
    elif record.type == RecordType.DEPTH:
        messages = [(None, None)]
        waiting, unacked, consumers = decode_depth(record.body)
        fields = {"ready": waiting, "unacked": unacked, "consumers": consumers}
    else:
        return []
    rows = []
    for item, (number, attempts_made) in enumerate(messages):
        row: Row = dict.fromkeys(EVENTS.names)
        address = names[record.destination]
        row |= {
            "sequence": record.sequence,
            "record_index": item,
            "time": moment(record.time),
            "event": event,
            "destination": _name(address.name),
            "destination_kind": address.kind.name.lower(),
            "message_sequence": number,
            "attempts": attempts_made,
            **fields,
        }
        origin = published.get(number) if number is not None else None
        if origin is not None:
            row["published"] = moment(origin.time)
            row["protocol"] = Origin(origin.origin).name.lower()
        rows.append(row)
    return rows


def _fields(record: Record, address: Address) -> Row:
    decoded = decode_message(record, address)
    row: Row = {
        "priority": decoded.priority,
        "durability": decoded.durability.name.lower(),
        "expiration": moment(min(decoded.expiration, MAX_TIME) * 1000)
        if decoded.expiration
        else None,
        "size": len(decoded.body),
        "body_kind": decoded.kind.name.lower(),
        "body": None if decoded.kind is BodyKind.NONE and not decoded.body else decoded.body,
        "message_id": _name(decoded.message_id) or None,
        "correlation_id": _name(decoded.correlation_id) or None,
        "type": _name(decoded.type) or None,
        "deliver_at": moment(min(decoded.deliver_at, MAX_TIME) * 1000)
        if decoded.deliver_at
        else None,
        "client_timestamp": moment(decoded.timestamp * 1000)
        if has_client_timestamp(decoded)
        else None,
    }
    if decoded.reply_to is not None:
        row["reply_to"] = _name(str(decoded.reply_to))
    if decoded.properties:
        pairs = {_name(name): _property(value) for name, value in decoded.properties.items()}
        row["properties"] = {name: text for name, (text, _) in pairs.items()}
        row["property_types"] = {name: kind for name, (_, kind) in pairs.items()}
    return row


def only(rows: Iterable[Row], *columns: str) -> list[tuple[Any, ...]]:
    """Return some columns of each row."""
    return [tuple(row[column] for column in columns) for row in rows]
