"""Endpoint that writes the parts of a batch of messages exactly once.

    POST
    /batches?writer=W&batch=N&partition=N&part=N&final=BOOL[&bad_rows=…][&dead_letter_queue=QUEUE]

The body is frames of rows (`sluicemq.model.rows`). The broker appends all messages of a part and
the record of the part to the journal as one unit, and responds once that unit is on disk.
`sluicemq.broker.batches` holds the state of each writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from sluicemq.admin.api_context import ApiContext, ApiLimits
from sluicemq.admin.batch_part_reader import Addressed, PartReader
from sluicemq.admin.errors import RETRY_SECONDS, ApiError
from sluicemq.admin.printable_names import printable
from sluicemq.admin.request_bodies import BodyBudget, announced, read_chunks
from sluicemq.admin.routing import Call, Endpoint, RawBody
from sluicemq.broker import BatchAnswer, BatchPart, Broker
from sluicemq.model.access import Identity, Operation
from sluicemq.model.dead_letters import dead_letter_of
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import AccessDenied, BatchRefused
from sluicemq.model.rows import DIGEST_MASK, announced_rows, digest, frames

PART_ROWS: Final = 32_768
"""Maximum number of rows of a part. Writing a part blocks the event loop."""
TOGETHER_BYTES: Final = 256 * 1024 * 1024
"""Total size limit, in bytes, of the bodies being read or written at the same time."""
MAX_REPORTED: Final = 100
"""Maximum number of refused rows that a response lists."""
DEAD_LETTER: Final = "sluicemq.sink.dlq"

_LARGEST: Final = (1 << 63) - 1
_MOST_PARTITIONS: Final = 1 << 20


class BatchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query parameters that identify a part."""

    writer: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="Name of the writer; the same after the writer restarts.",
        ),
    ]
    batch: Annotated[int, Meta(ge=0, le=_LARGEST, description="Number of the batch; ascending.")]
    partition: Annotated[
        int,
        Meta(
            ge=0, lt=_MOST_PARTITIONS, description="Number of the partition in the batch, from 0."
        ),
    ]
    part: Annotated[int, Meta(ge=0, lt=1 << 32, description="Number of the part, from 0.")]
    final: Annotated[bool, Meta(description="True for the last part of its partition.")] = False
    bad_rows: Annotated[
        Literal["fail", "drop", "dead-letter"],
        Meta(
            description="Handling of rows that cannot be sent: reject the part, omit the rows, or "
            "send them to a dead-letter queue."
        ),
    ] = "fail"
    dead_letter_queue: Annotated[
        str, Meta(min_length=1, max_length=1024, description="Queue for `bad_rows=dead-letter`.")
    ] = DEAD_LETTER


class RejectedRow(msgspec.Struct, frozen=True):
    """A row that was not written."""

    row: int
    reason: str


class BatchPartResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of writing a part.

    duplicate     true if the part had been written already
    latest_batch  latest known batch of the writer, if the part is a duplicate
    rejected      the first of the rejected rows
    """

    written: int
    duplicate: bool
    latest_batch: int | None = None
    dead_lettered: int
    rejected: list[RejectedRow]
    rejected_rows: int


class Outcome(NamedTuple):
    """Messages and dead letters to write for a part, and refused rows with their reasons."""

    messages: list[Addressed]
    dead_letters: list[Addressed]
    refused: dict[int, str]


class BatchEndpoints:
    """Handlers of `/batches`, shared by all connections of a listener."""

    def __init__(self, broker: Broker, limits: ApiLimits) -> None:
        self._broker = broker
        self._limits = limits
        self._budget = BodyBudget(max(TOGETHER_BYTES, limits.part))

    async def post(self, call: Call) -> BatchPartResult:
        """POST /batches"""
        query: BatchQuery = call.query
        if not query.writer.isprintable():
            raise ApiError(400, "bad-parameter", "the parameter writer is printable characters")
        if query.bad_rows == "dead-letter":
            call.demand(Operation.PRODUCE, query.dead_letter_queue)
        request = call.request
        size = announced(
            request, self._limits.part, "send the partition's rows as several parts of a batch"
        )
        async with self._budget.reserve(size):
            body = bytearray()
            async for chunk in read_chunks(request):
                body += chunk
            rows = _count(body)
            part = BatchPart(
                writer=query.writer,
                batch=query.batch,
                partition=query.partition,
                part=query.part,
                final=query.final,
                digest=await _digest(body),
                rows=rows,
                owner=self._owner(call),
            )
            broker = self._broker
            broker.wake()
            found = broker.batches.find(part)
            if found is not None:
                return await self._known(found, part.writer)
            reader = await self._read(call.identity, body)
            del body  # free the body during the wait for the disk; the messages suffice
            for name in reader.forbidden:
                call.denied(f"{Operation.PRODUCE} {name}")
            return await self._write(call, part, reader)

    def _owner(self, call: Call) -> str:
        """Return the user that owns the writer: the caller, if the writer is new.

        Raises AccessDenied if another user owns it and the caller is no superuser.
        """
        writer = call.query.writer
        identity = call.identity
        owner = self._broker.batches.owner_of(writer) or identity.name
        if owner != identity.name and not identity.superuser:
            call.denied(f"write as {printable(writer)}")
            raise AccessDenied(
                f"the writer {writer!r} belongs to {owner}; write under another name, or as "
                "that user or a superuser"
            )
        return owner

    async def _read(self, identity: Identity, body: bytearray) -> PartReader:
        """Decode the rows. Other requests are handled between two frames."""
        reader = PartReader(
            identity, self._broker.clock.wall, self._limits.name, self._limits.targets
        )
        for frame in frames(memoryview(body)):
            reader.take(frame)
            await asyncio.sleep(0)
        return reader

    async def _write(self, call: Call, part: BatchPart, reader: PartReader) -> BatchPartResult:
        """Write a part and wait until it is on disk. Everything up to the append runs without
        yielding to the event loop."""
        broker = self._broker
        query: BatchQuery = call.query
        identity = call.identity
        broker.wake()
        # another user may have become the owner of the writer while the rows were read
        part = replace(part, owner=self._owner(call))
        found = broker.batches.find(part)
        if found is not None:  # a concurrent request has written the same part
            return await self._known(found, part.writer)
        outcome = Outcome(reader.messages, [], {})
        if reader.refused:
            outcome = self._sort(identity, reader, query)
        try:
            answered = broker.batches.write(
                part, outcome.messages + outcome.dead_letters, identity.creator
            )
        except BatchRefused:
            # rare; checking every message beforehand would take as long as writing it
            outcome = self._sort(identity, reader, query)
            answered = broker.batches.write(
                part, outcome.messages + outcome.dead_letters, identity.creator
            )
        broker.traffic_of("http").published += len(outcome.messages)
        await self._durable(answered.sequence)
        return BatchPartResult(
            written=len(outcome.messages),
            duplicate=False,
            dead_lettered=len(outcome.dead_letters),
            **refusal_report(outcome.refused),
        )

    async def _known(self, found: BatchAnswer, writer: str) -> BatchPartResult:
        latest = self._broker.batches.writers[writer].batch
        await self._durable(found.sequence)
        return BatchPartResult(
            written=0, duplicate=True, latest_batch=latest, dead_lettered=0, **refusal_report({})
        )

    async def _durable(self, sequence: int) -> None:
        """Wait until the record with that sequence number is on disk."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done() -> None:
            if not future.done():
                future.set_result(None)

        self._broker.when_durable(sequence, done)
        await future

    def _sort(self, identity: Identity, reader: PartReader, query: BatchQuery) -> Outcome:
        """Return the messages and dead letters to write for a part with refused rows. Raises
        Problem if nothing of the part is to be written."""
        refused = dict(reader.refused)
        later: dict[int, str] = {}
        for place, error, passing in self._broker.batches.check(reader.messages, identity.creator):
            (later if passing else refused)[reader.rows[place]] = str(error)
        if later:
            raise _later(later)
        if query.bad_rows == "fail":
            raise _refused(refused)
        dead_letters = []
        if query.bad_rows == "dead-letter":
            dead_letters = self._dead_letters(identity, reader, refused, query.dead_letter_queue)
        rows = zip(reader.rows, reader.messages, strict=True)
        return Outcome([each for row, each in rows if row not in refused], dead_letters, refused)

    def _dead_letters(
        self, identity: Identity, reader: PartReader, refused: Mapping[int, str], queue: str
    ) -> list[Addressed]:
        """Return the dead letters of refused rows. Raises ApiError if the queue refuses one."""
        address = Address(Kind.QUEUE, queue)
        wall = self._broker.clock.wall
        dead_letters = []
        rows = sorted(refused)
        for row in rows:
            origin, message = reader.message(row)
            dead_letter = dead_letter_of(message, origin, refused[row], 0, wall)
            dead_letter.destination = address
            dead_letters.append((address, dead_letter))
        refusals = self._broker.batches.check(dead_letters, identity.creator)
        reasons = {
            rows[place]: f"the dead-letter queue refuses it: {error}"
            for place, error, _ in refusals
        }
        if any(passing for _, _, passing in refusals):
            raise _later(reasons)
        if reasons:
            raise _refused(reasons)
        return dead_letters


def refusal_report(refused: Mapping[int, str]) -> dict[str, Any]:
    """Return the JSON fields for refused rows: their number and the first MAX_REPORTED of them."""
    first = sorted(refused.items())[:MAX_REPORTED]
    return {
        "rejected": [RejectedRow(row, reason) for row, reason in first],
        "rejected_rows": len(refused),
    }


def _refused(refused: Mapping[int, str]) -> ApiError:
    row, reason = min(refused.items())
    return ApiError(
        409,
        "rejected",
        f"{len(refused)} rows cannot be sent, the first of them is row {row}: {reason}. Nothing of "
        "the part has been written; bad_rows=drop leaves such rows out, bad_rows=dead-letter puts "
        "them into a queue of their own",
        more=refusal_report(refused),
    )


def _later(refused: Mapping[int, str]) -> ApiError:
    row, reason = min(refused.items())
    return ApiError(
        503,
        "temporarily-unavailable",
        f"{len(refused)} rows cannot be sent now, the first of them is row {row}: {reason}. "
        "Nothing of the part has been written; send it again",
        {"Retry-After": str(RETRY_SECONDS)},
        refusal_report(refused),
    )


def _count(body: bytearray) -> int:
    """Return the number of rows of a part. Raises ApiError for too many, ProtocolError for invalid
    frames."""
    rows = sum(announced_rows(frame) for frame in frames(memoryview(body)))
    if rows > PART_ROWS:
        raise ApiError(
            413,
            "too-many-rows",
            f"the part has {rows} rows, and {PART_ROWS} are the most; send several parts",
            more={"limit": PART_ROWS},
        )
    return rows


async def _digest(body: bytearray) -> int:
    """Return the digest of a part's rows. Other requests are handled between two frames.

    Raises ProtocolError (FrameTooLarge) for an invalid frame.
    """
    total = 0
    for frame in frames(memoryview(body)):
        total += digest(frame)
        await asyncio.sleep(0)
    return total & DIGEST_MASK


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /batches."""
    handlers = BatchEndpoints(context.broker, context.limits)
    return [
        Endpoint(
            "POST",
            "/batches",
            "writeBatchPart",
            handlers.post,
            "Write a part of a batch, exactly once",
            (Operation.PRODUCE,),
            query=BatchQuery,
            body=RawBody.OCTETS,
            answer=BatchPartResult,
            limit=context.limits.part,
            audited=False,
        ),
    ]
