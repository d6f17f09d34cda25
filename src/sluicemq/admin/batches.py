"""Endpoints that write the parts of a batch of messages exactly once, and list the writers.

    POST
    /batches?writer=W&batch=N&partition=N&part=N&final=BOOL[&bad_rows=…][&dead_letter_queue=QUEUE]

The body is frames of rows (`sluicemq.model.rows`). The broker appends all messages of a part and
the record of the part to the journal as one unit, and responds once that unit is on disk.
`sluicemq.broker.batches` holds the state of each writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from sluicemq.admin.endpoints import Call, Service, handles, read_body
from sluicemq.admin.errors import RETRY_SECONDS, ApiError, printable
from sluicemq.admin.time_slices import wait_until_durable
from sluicemq.broker import BatchAnswer, BatchPart
from sluicemq.management.journal import (
    LIST_BATCH_WRITERS,
    WRITE_BATCH_PART,
    BatchPartResult,
    BatchQuery,
    RejectedRow,
    WritersQuery,
    WriterView,
)
from sluicemq.management.operation import Page
from sluicemq.model.access import Identity, Operation
from sluicemq.model.dead_letters import dead_letter_of, note_topic
from sluicemq.model.destination import Address, Kind, encode_name
from sluicemq.model.errors import AccessDenied, BatchRefused, FrameTooLarge, ProtocolError
from sluicemq.model.message import BodyKind, Durability, Message, Origin, Property
from sluicemq.model.rows import (
    DIGEST_MASK,
    MAX_TIME,
    Row,
    UnusableRow,
    announced_rows,
    decode,
    digest,
    frames,
    name_of,
    properties_of,
)
from sluicemq.protocols.jmq.destinations import is_wildcard

# --- Rows of a part -------------------------------------------------------------------------------
#
# Decodes the rows of a batch part into messages and finds those that cannot be published.

MAX_PROPERTIES: Final = 500_000
"""Maximum number of properties of all rows of a part."""

Addressed = tuple[Address, Message]
"""A message and its destination."""

_KINDS: Final = tuple(BodyKind)
_NIL: Final = b"\xc0"


class PartReader:
    """Reader of consecutive frames; row numbers start at 0 and continue over the frames.

    messages   message of each row with its destination; of a refused row, as much as is valid
    refused    reasons for which rows cannot be published, by row number
    forbidden  names of destinations to which the sender may not publish
    """

    def __init__(self, identity: Identity, wall: int, max_name: int, max_targets: int = 0) -> None:
        """Create a reader.

        `wall` is the time from which times to live count, `max_name` the maximum length of names in
        bytes, `max_targets` the maximum number of destinations, 0 = unlimited.
        """
        self.messages: list[Addressed] = []
        self.refused: dict[int, str] = {}
        self.forbidden: set[str] = set()
        self._identity = identity
        self._wall = wall
        self._max_name = max_name
        self._max_targets = max_targets
        self._properties = 0
        self._targets: dict[tuple[bytes, bool], tuple[Address, str]] = {}
        """Destinations by encoded name and kind, with the reason for those that accept no
        messages."""
        self._usable = 0

    def read(self, frame: memoryview) -> None:
        """Decode a frame. Raises ProtocolError (FrameTooLarge) for an invalid frame."""
        targets = self._targets
        for row in decode(frame):
            key = (bytes(row.destination), row.topic)
            target = targets.get(key)
            if target is None:
                target = targets[key] = self._target(*key)
            address, problem = target
            properties = None
            if bytes(row.properties) != _NIL:
                try:
                    properties = properties_of(row.properties)
                except ProtocolError as error:
                    problem = problem or str(error)
                self._properties += len(properties or {})
                if self._properties > MAX_PROPERTIES:
                    raise FrameTooLarge(
                        f"the rows of the part have more than {MAX_PROPERTIES} properties; "
                        "send several parts"
                    )
            if row.body_kind != BodyKind.BYTES and (
                reason := body_problem(row.body_kind, row.body)
            ):
                problem = problem or reason
                row.body_kind = BodyKind.BYTES
            if row.reply_to and len(encode_name(row.reply_to)) > self._max_name:
                problem = problem or f"the reply address has more than {self._max_name} bytes"
                row.reply_to = None
            if problem:
                self.refused[len(self.messages)] = problem
            self.messages.append((address, self._message(row, address, properties)))

    def _message(
        self, row: Row, address: Address, properties: dict[str, Property] | None
    ) -> Message:
        wall = self._wall
        expiration = row.expiration
        if row.ttl:
            end = wall + row.ttl
            expiration = min(expiration or MAX_TIME, end)
        reply_to = None
        if row.reply_to:
            reply_to = Address(Kind.TOPIC if row.reply_topic else Kind.QUEUE, row.reply_to)
        return Message(
            address,
            row.body,
            _KINDS[row.body_kind],
            Origin.INTERNAL,
            Durability.SYNC,
            row.timestamp or wall,
            expiration,
            row.priority,
            row.deliver_at,
            row.message_id,
            row.correlation_id,
            reply_to,
            row.type,
            properties or None,
        )

    def _target(self, raw: bytes, topic: bool) -> tuple[Address, str]:
        """Return the destination, and the reason why it accepts no messages, "" if it does. Raises
        FrameTooLarge for more destinations than the limit."""
        name, problem = "", ""
        try:
            name = name_of(raw)
        except UnusableRow as error:
            name, problem = error.name, str(error)
        except ProtocolError as error:
            problem = str(error)
        address = Address(Kind.TOPIC if topic else Kind.QUEUE, name)
        return address, problem or self._check(address)

    def _check(self, address: Address) -> str:
        """Return why the sender cannot publish to a destination, "" if it can. Raises FrameTooLarge
        for more destinations than the limit."""
        name, limit = address.name, self._max_targets
        if limit and self._usable >= limit:
            raise FrameTooLarge(
                f"the rows of the part have more than {limit} destinations, the limit "
                "(http.max_batch_destinations); send several parts"
            )
        size = len(encode_name(name))
        if not 0 < size <= self._max_name:
            return f"a destination's name has 1 to {self._max_name} bytes, this one {size}"
        if is_wildcard(address):
            return f"{name!r} matches several topics; name one of them"
        if not self._identity.may(Operation.PRODUCE, name):
            self.forbidden.add(name)
            client = self._identity.name or "an anonymous client"
            return f"{client} may not {Operation.PRODUCE} {name!r}"
        self._usable += 1
        return ""


def body_problem(kind: int, body: bytes) -> str:
    """Return why the bytes are not a body of that kind, "" if they are. Java serialization
    streams are not decoded."""
    if kind == BodyKind.NONE:
        return "a body of kind none has no bytes" if body else ""
    if kind not in (BodyKind.TEXT, BodyKind.JSON):
        return ""
    try:
        if not body.isascii():
            body.decode()  # the JSON decoder does not check strings
        if kind == BodyKind.JSON:
            _json.decode(body)
    except UnicodeDecodeError as error:
        return f"the body is not UTF-8: {error.reason} at byte {error.start}"
    except (msgspec.MsgspecError, RecursionError) as error:
        return f"the body is not JSON: {error}"
    return ""


_json: Final = msgspec.json.Decoder(msgspec.Raw)


PART_ROWS: Final = 32_768
"""Maximum number of rows of a part. Writing a part blocks the event loop."""
MAX_REPORTED: Final = 100
"""Maximum number of refused rows that a response lists."""


class Outcome(NamedTuple):
    """Messages and dead letters to write for a part, and refused rows with their reasons."""

    messages: list[Addressed]
    dead_letters: list[Addressed]
    refused: dict[int, str]


class BatchService(Service):
    """Handlers of `/batches`, shared by all connections of a listener."""

    @handles(WRITE_BATCH_PART)
    async def post(self, call: Call, query: BatchQuery) -> BatchPartResult:
        """Write a part of a batch, unless it has been written before."""
        if not call.identity.may_anywhere(Operation.PRODUCE):
            # a part without rows names no destination whose permission could be checked
            raise call.denial(f"{Operation.PRODUCE} to any destination")
        if not query.writer.isprintable():
            raise ApiError(400, "bad-parameter", "the parameter writer is printable characters")
        limit = self._context.limits.name
        if len(encode_name(query.dead_letter_queue)) > limit:
            message = f"the parameter dead_letter_queue has at most {limit} bytes"
            raise ApiError(400, "bad-parameter", message)
        if query.bad_rows == "dead-letter":
            call.demand(Operation.PRODUCE, query.dead_letter_queue)
        advice = "send the partition's rows as several parts of a batch"
        body = await read_body(call.request, call.endpoint.limit, advice)
        rows, rows_digest = await _measure(call, body)
        part = BatchPart(
            writer=query.writer,
            batch=query.batch,
            partition=query.partition,
            part=query.part,
            final=query.final,
            digest=rows_digest,
            rows=rows,
            owner=self._owner(call, query.writer),
        )
        broker = self._broker
        broker.schedule_flush()
        existing = broker.batches.find(part)
        if existing is not None:
            return await self._report_duplicate(existing, part.writer)
        reader = await self._read(call, body)
        del body  # free the body during the wait for the disk; the messages suffice
        if forbidden := reader.forbidden:  # one line of the audit log for up to 32,768 names
            others = f" and {len(forbidden) - 1} others" if len(forbidden) > 1 else ""
            call.log_denied(f"{Operation.PRODUCE} {min(forbidden)}{others}")
        return await self._write(call, query, part, reader)

    @handles(LIST_BATCH_WRITERS)
    async def writers(self, call: Call, query: WritersQuery) -> Page[WriterView]:
        """Return a page of the writers."""
        writers = self._broker.batches.writers
        ordered = writers.items() if query.order == "asc" else reversed(writers.items())
        page = list(islice(ordered, query.part.start, query.part.stop))
        items = []
        async for name, writer in call.slices.iterate(page):
            parts = [rows for entries in writer.partial.values() for _, rows in entries]
            view = WriterView(
                writer=name,
                owner=writer.owner,
                batch=writer.batch,
                partitions_done=len(writer.done),
                parts_open=len(parts),
                rows=sum(writer.rows) + sum(parts),
                last_seen=writer.last_used,
            )
            items.append(view)
        return query.page_with(items, len(writers))

    def _owner(self, call: Call, writer: str) -> str:
        """Return the user that owns the writer: the caller, if the writer is new.

        Raises AccessDenied if another user owns it and the caller is no superuser.
        """
        identity = call.identity
        owner = self._broker.batches.owner_of(writer) or identity.name
        if owner != identity.name and not identity.superuser:
            call.log_denied(f"write as {printable(writer)}")
            raise AccessDenied(
                f"the writer {writer!r} belongs to {owner}; write under another name, or as "
                "that user or a superuser"
            )
        return owner

    async def _read(self, call: Call, body: bytearray) -> PartReader:
        """Decode the rows. Other requests are handled between two frames."""
        reader = PartReader(
            call.identity,
            self._broker.clock.wall,
            self._context.limits.name,
            self._context.http.max_batch_destinations,
        )
        for frame in frames(memoryview(body)):
            reader.read(frame)
            await _handle_others(call)
        return reader

    async def _write(
        self, call: Call, query: BatchQuery, part: BatchPart, reader: PartReader
    ) -> BatchPartResult:
        """Write a part and wait until it is on disk. Everything up to the append runs without
        yielding to the event loop."""
        broker = self._broker
        identity = call.identity
        broker.schedule_flush()
        # another user may have become the owner of the writer while the rows were read
        part = replace(part, owner=self._owner(call, query.writer))
        existing = broker.batches.find(part)
        if existing is not None:  # a concurrent request has written the same part
            return await self._report_duplicate(existing, part.writer)
        outcome = Outcome(reader.messages, [], {})
        if reader.refused:
            outcome = self._select(identity, reader, query)
        try:
            answer = broker.batches.write(
                part, outcome.messages + outcome.dead_letters, identity.creator
            )
        except BatchRefused:
            # rare; checking every message beforehand would take as long as writing it
            outcome = self._select(identity, reader, query)
            answer = broker.batches.write(
                part, outcome.messages + outcome.dead_letters, identity.creator
            )
        broker.traffic_of("http").published += len(outcome.messages)
        await wait_until_durable(self._broker, answer.sequence)
        return BatchPartResult(
            written=len(outcome.messages),
            duplicate=False,
            dead_lettered=len(outcome.dead_letters),
            **refusal_report(outcome.refused),
        )

    async def _report_duplicate(self, existing: BatchAnswer, writer: str) -> BatchPartResult:
        """Return the result for a part that was written before, once that is on disk."""
        latest = self._broker.batches.writers[writer].batch
        await wait_until_durable(self._broker, existing.sequence)
        return BatchPartResult(
            written=0, duplicate=True, latest_batch=latest, dead_lettered=0, **refusal_report({})
        )

    def _select(self, identity: Identity, reader: PartReader, query: BatchQuery) -> Outcome:
        """Return the messages and dead letters to write for a part with refused rows. Raises
        ApiError if nothing of the part is to be written."""
        refused = dict(reader.refused)
        temporary_errors: dict[int, str] = {}
        rows = [row for row in range(len(reader.messages)) if row not in refused]
        messages = [reader.messages[row] for row in rows]
        for index, error, is_temporary in self._broker.batches.check(messages, identity.creator):
            # a name in the error may have any bytes
            (temporary_errors if is_temporary else refused)[rows[index]] = printable(str(error))
        if temporary_errors:
            raise _rejected(temporary_errors, is_temporary=True)
        if query.bad_rows == "fail":
            raise _rejected(refused, is_temporary=False)
        dead_letters = []
        if query.bad_rows == "dead-letter":
            dead_letters = self._dead_letters(identity, reader, refused, query.dead_letter_queue)
        accepted = [reader.messages[row] for row in rows if row not in refused]
        return Outcome(accepted, dead_letters, refused)

    def _dead_letters(
        self, identity: Identity, reader: PartReader, refused: Mapping[int, str], queue: str
    ) -> list[Addressed]:
        """Return the dead letters of refused rows. Raises ApiError if the queue refuses one."""
        address = Address(Kind.QUEUE, queue)
        wall = self._broker.clock.wall
        dead_letters = []
        rows = sorted(refused)
        for row in rows:
            origin, message = reader.messages[row]
            dead_letter = dead_letter_of(message, origin.name, refused[row], 0, wall)
            if message.destination.kind is Kind.TOPIC:
                note_topic(dead_letter, "")
            dead_letter.destination = address
            dead_letters.append((address, dead_letter))
        refusals = self._broker.batches.check(dead_letters, identity.creator)
        reasons = {
            rows[index]: f"the dead-letter queue refuses it: {printable(str(error))}"
            for index, error, _ in refusals
        }
        if reasons:
            are_temporary = any(is_temporary for _, _, is_temporary in refusals)
            raise _rejected(reasons, is_temporary=are_temporary)
        return dead_letters


def refusal_report(refused: Mapping[int, str]) -> dict[str, Any]:
    """Return the JSON fields for refused rows: their number and the first MAX_REPORTED of them."""
    first = sorted(refused.items())[:MAX_REPORTED]
    return {
        "rejected": [RejectedRow(row, reason) for row, reason in first],
        "rejected_rows": len(refused),
    }


def _rejected(rows: Mapping[int, str], *, is_temporary: bool) -> ApiError:
    """Return the error for a part of which nothing is written because of these rows;
    `is_temporary`: the same rows may be accepted later."""
    row, reason = min(rows.items())
    first = f"the first of them is row {row}: {reason}. Nothing of the part has been written"
    if is_temporary:
        return ApiError(
            503,
            "temporarily-unavailable",
            f"{len(rows)} rows cannot be sent now, {first}; send it again",
            {"Retry-After": str(RETRY_SECONDS)},
            refusal_report(rows),
        )
    return ApiError(
        409,
        "rejected",
        f"{len(rows)} rows cannot be sent, {first}; bad_rows=drop leaves such rows out, "
        "bad_rows=dead-letter puts them into a queue of their own",
        more=refusal_report(rows),
    )


async def _measure(call: Call, body: bytearray) -> tuple[int, int]:
    """Return the number of rows of a part and their digest. Other requests are handled between two
    frames. Raises ApiError for too many rows, ProtocolError (FrameTooLarge) for invalid and empty
    frames, of which a part could have millions."""
    rows = total = 0
    for frame in frames(memoryview(body)):
        count = announced_rows(frame)
        if not count:
            raise ProtocolError("a frame has no rows")
        rows += count
        if rows > PART_ROWS:
            raise ApiError(
                413,
                "too-many-rows",
                f"the part has more than {PART_ROWS} rows; send several parts",
                more={"limit": PART_ROWS},
            )
        total += digest(frame)
        await _handle_others(call)
    return rows, total & DIGEST_MASK


async def _handle_others(call: Call) -> None:
    """Let other requests be handled. Raises ApiError if the connection has closed meanwhile: the
    memory limit for input no longer counts the body, of which a client could leave any number
    behind."""
    await asyncio.sleep(0)
    if call.caller.is_closed:
        raise ApiError(400, "client-disconnected", "the connection has closed")
