"""Open MQ's transaction log, its store of incomplete transactions, and its older state files.

    txnlog   0 magic:u32 5555AAAA  4 version:i16 1  6 status:i16  8 checkpoint position:i64
            16 time:i64  24 checkpoint:i64  32 Adler-32 of 0-32 with the checkpoint as it was:i64
            40 version of the events:i64 1          then, from the checkpoint position on, records

    record   0 magic:u32 AAAA5555  4 type:i32  8 size:i32  12 time:i64  20 number:i64
            28 checkpoint:i64  36 Adler-32 of the body:i64  44 -:i32  48 body

A record belongs to the log as long as its checkpoint is the header's and its number the next one
from 0. A body is an event, or if its type is 8 several: count:i32, then type:i32 size:i32 event of
each.

    event       = kind:u8 sort:u8 ...
      1 0       details work                  a local transaction has committed
      1 1       details work size:i32 object  ... is prepared
      1 2       details                       ... that was prepared has ended
      4 0       message                       sent outside of transactions
      5 0       ack                           acknowledged outside of transactions
      6 0       destination:str id:32         taken out of the store
    details     = kind:u8 transaction:i64 state:i32 complete:i32 flag:u8 [xid:136]
    work        = count:i32 message *  count:i32 ack *
    message     = packet  count:i32 consumer:i64 *
    ack         = destination:str id:32 consumer:i64

The store of incomplete transactions is a directory of items, of: details work.

Stores without the log have two maps instead:

    txn     number of the transaction -> TransactionInfo; in versions before 4.1 TransactionState.
            Behind the objects may be "%CD" and the state as it is now:u8
    txnack  number of the transaction -> set of TransactionAcknowledgement

A TransactionState begins with xid:136 state:i32, an acknowledgement with SysMessageID:32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import adler32

from sluicemq.migrate.openmq.records import (
    FILE_MAGIC,
    RECORD_MAGIC,
    DamageHandler,
    MapEntry,
    ParsedObject,
    handle_damage,
    read_items,
    read_map,
    uid_number,
)
from sluicemq.migrate.source_files import ByteReader, Damage, SourceFile
from sluicemq.protocols.jmq.fields import SYSID_SIZE, XID_SIZE
from sluicemq.protocols.jmq.wire import FIXED_SIZE

LOG: Final = "txnlog"
INCOMPLETE: Final = "incompleteTxnStore"
PREPARED: Final = 5
COMMITTED: Final = 6
LOCAL: Final = 1
"""Kind of the transactions of one broker."""

_COMPOUND: Final = 8
_RECORD_SIZE: Final = 48
_VERSION: Final = 1
_MAX_ENTRIES: Final = 1_000_000
"""Maximum number of messages or acknowledgements in a transaction."""


class LoggedAck(NamedTuple):
    """An acknowledgement. `destination` in the store's spelling (`Q:name`); `consumer` is the
    number of a durable subscription, undefined for a queue."""

    destination: str
    sysid: bytes
    consumer: int


class LoggedTransaction(NamedTuple):
    """A transaction: packets that it sends, and acknowledgements. `kind` is LOCAL for those of one
    broker; `xid` b"" if it has none."""

    kind: int
    number: int
    state: int
    xid: bytes
    sends: list[bytes]
    acks: list[LoggedAck]


class MessageRemoved(NamedTuple):
    """An event: a message was removed from the store."""

    destination: str
    sysid: bytes


Event = MessageRemoved | LoggedTransaction
"""An event of the log. A LoggedTransaction in state COMMITTED that has work was never prepared; one
without work ends a prepared transaction. A message or an acknowledgement outside of transactions
is a committed transaction with the number 0, which Open MQ gives to none."""


def read_log(directory: Path) -> tuple[list[Event], int]:
    """Return the events since the last checkpoint and the number of other brokers' transactions.

    Raises Damage if the log's header, or an event of an intact record, is invalid. The log ends
    after the last intact record, as for Open MQ.
    """
    path = directory / LOG
    events: list[Event | None] = []
    if path.exists():
        with SourceFile.open(path) as data:
            events += (
                _read_event(ByteReader(body, location)) for location, body in _read_bodies(data)
            )
    return [event for event in events if event is not None], events.count(None)


def _read_bodies(data: SourceFile) -> Iterator[tuple[str, bytes]]:
    if not data.size:
        return
    magic, version, _, position, _, checkpoint, _, cookie = data.unpack(">IhhqqqqQ", 0)
    if magic != FILE_MAGIC or version != _VERSION or cookie != _VERSION:
        raise data.damage(0, "the file is not a transaction log of Open MQ, or has another version")
    number = 0
    while 0 <= position <= data.size - _RECORD_SIZE:
        record_magic, record_type, size, _, count, record_checkpoint, checksum, _ = data.unpack(
            ">IiiqqqQi", position
        )
        start = position + _RECORD_SIZE
        if record_magic != RECORD_MAGIC or not 0 <= size <= data.size - start:
            return
        body = data.read(start, size)
        if adler32(body) != checksum or record_checkpoint != checkpoint or count != number:
            return
        location = f"{data.path}, record at byte {position}"
        if record_type == _COMPOUND:
            cursor = ByteReader(body, location)
            for _ in range(_read_count(cursor)):
                _, inner_size = cursor.unpack(">ii")
                yield location, cursor.take(inner_size)
        else:
            yield location, body
        number += 1
        position = start + size


def _read_event(cursor: ByteReader) -> Event | None:
    """Read an event; None for transactions that span several brokers."""
    kind, subtype = cursor.unpack(">BB")
    match kind, subtype:
        case (1, 0):
            return _read_transaction(cursor)._replace(state=COMMITTED)
        case (1, 1):
            return _read_transaction(cursor)._replace(state=PREPARED)
        case (1, 2):
            return _read_details(cursor)
        case (2 | 3, _):
            return None
        case (4, _):
            return LoggedTransaction(LOCAL, 0, COMMITTED, b"", [_read_packet(cursor)], [])
        case (5, _):
            return LoggedTransaction(LOCAL, 0, COMMITTED, b"", [], [_read_ack(cursor)])
        case (6, _):
            return MessageRemoved(_read_text(cursor), cursor.take(SYSID_SIZE))
    raise cursor.damage(f"there is no event {kind}.{subtype}")


def read_incomplete(directory: Path, on_damage: DamageHandler) -> Iterator[LoggedTransaction]:
    """Read the transactions that a checkpoint has saved."""
    for item in read_items(directory / INCOMPLETE, on_damage):
        with handle_damage(on_damage):
            yield _read_transaction(item.content())


# --- parts -------------------------------------------------------------------------------------


def _read_details(cursor: ByteReader) -> LoggedTransaction:
    kind, number, state, _, has_xid = cursor.unpack(">BqiiB")
    xid = cursor.take(XID_SIZE) if has_xid else b""
    return LoggedTransaction(kind, number, state, xid, [], [])


def _read_transaction(cursor: ByteReader) -> LoggedTransaction:
    transaction = _read_details(cursor)
    if transaction.kind == LOCAL:
        transaction.sends.extend(_read_packet(cursor) for _ in range(_read_count(cursor)))
        transaction.acks.extend(_read_ack(cursor) for _ in range(_read_count(cursor)))
    return transaction


def _read_count(cursor: ByteReader) -> int:
    count = cursor.number(">i")
    if not 0 <= count <= min(_MAX_ENTRIES, cursor.remaining):
        raise cursor.damage(f"{count} parts are announced")
    return count


def _read_packet(cursor: ByteReader) -> bytes:
    start = cursor.position
    size = cursor.number(">8xi")
    cursor.position = start
    if size < FIXED_SIZE:
        raise cursor.damage(f"a packet announces a size of {size} bytes")
    packet = cursor.take(size)
    cursor.take(8 * _read_count(cursor))  # the message is routed again, as Open MQ does
    return packet


def _read_ack(cursor: ByteReader) -> LoggedAck:
    return LoggedAck(_read_text(cursor), cursor.take(SYSID_SIZE), cursor.number(">q"))


def _read_text(cursor: ByteReader) -> str:
    return cursor.take(cursor.number(">H")).decode("utf-8", "replace")


# --- state files -------------------------------------------------------------------------------

_MARK: Final = b"%CD"
_NO_XID: Final = b"\xff" * 4
"""Start of a missing Xid: a Xid begins with its format, which is -1 if there is none."""


def read_states(directory: Path, on_damage: DamageHandler) -> dict[int, LoggedTransaction]:
    """Read the two files; missing files are empty. The transactions have no messages yet, and their
    acknowledgements no destinations, which are in the store of messages."""
    transactions: dict[int, LoggedTransaction] = {}
    for entry in read_map(directory / "txn", on_damage):
        with handle_damage(on_damage):
            transaction = _parse_state(entry)
            transactions[transaction.number] = transaction
    for entry in read_map(directory / "txnack", on_damage):
        with handle_damage(on_damage):
            acks = _parse_acks(entry)
            if (number := uid_number(entry.key, entry.location)) in transactions:
                transactions[number].acks.extend(acks)
    return transactions


def _parse_state(entry: MapEntry) -> LoggedTransaction:
    value = entry.value
    if isinstance(value, ParsedObject) and value.name.endswith(".TransactionInfo"):
        value = next(iter(value.custom_objects()), None)
    if not isinstance(value, ParsedObject) or len(value.written) < XID_SIZE + 4:
        raise Damage(f"{entry.location}: the record is not a state of a transaction")
    xid = value.written[:XID_SIZE]
    state = int.from_bytes(value.written[XID_SIZE : XID_SIZE + 4], "big", signed=True)
    if entry.trailing_data.startswith(_MARK) and len(entry.trailing_data) > len(_MARK):
        state = entry.trailing_data[len(_MARK)]
    known_xid = b"" if xid.startswith(_NO_XID) else xid
    number = uid_number(entry.key, entry.location)
    return LoggedTransaction(LOCAL, number, state, known_xid, [], [])


def _parse_acks(entry: MapEntry) -> list[LoggedAck]:
    acks = []
    for item in entry.value.custom_objects() if isinstance(entry.value, ParsedObject) else ():
        consumers = [uid_number(uid, entry.location) for uid in item.custom_objects()]
        if len(item.written) < SYSID_SIZE or not consumers:
            raise Damage(f"{entry.location}: the record is not an acknowledgement")
        # the store uses the last number
        acks.append(LoggedAck("", item.written[:SYSID_SIZE], consumers[-1]))
    return acks
