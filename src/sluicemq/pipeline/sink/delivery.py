"""Delivery of one partition to the broker, in the tasks of a write.

A part of a partition has the rows that are written in one transaction and sent in one request. The
boundaries of parts depend on the rows alone, not on Spark's batches: a partition that is written
again after a failure has the same parts.

If an earlier step fails (an error in it, a killed Python worker), Spark closes its end of the
socket on which it sends the rows. Arrow takes that for the end of the rows, so the writer sees a
truncated partition and no error; the failure becomes known only after the writer has returned.
That is too late for messages: a truncated partition, once stored as complete, can neither be
withdrawn nor completed.

Therefore the writer checks, after the last row and before it sends the last part, that Spark's end
of the socket is still open, as it is in a successful task. No interface identifies Spark's socket;
it is one of those that were open before the first row. If another one of them was closed
meanwhile, the task is repeated unnecessarily.
"""

from __future__ import annotations

import os
import select
import stat
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from sluicemq.clients.http import HttpClient, HttpRefusal, answer_in, request_of
from sluicemq.management.journal import WRITE_BATCH_PART, BatchQuery
from sluicemq.model.errors import ConnectionLost, RequestRefused
from sluicemq.model.rows import Row, encode
from sluicemq.pipeline.sink.conversion import Converter, Values
from sluicemq.pipeline.sink.options import SinkOptions

MAX_REASONS: Final = 20
"""Number of reasons in a commit message; further ones are counted together."""
OTHER_REASONS: Final = "other reasons"

ROW_BYTES: Final = 64
"""Bytes of a part by which each row counts in addition to its body, texts and properties."""
PROPERTY_BYTES: Final = 40
"""The same for each property: a part of the default size has fewer than the broker accepts."""
PART_DESTINATIONS: Final = 1000
"""Maximum number of destinations of a part: the default of `http.max_batch_destinations`."""
_TEXTS: Final = Row.__struct_fields__.index("message_id")
"""Index of the first field of a row that is a text or the properties, if it has the field."""


@dataclass
class SinkCommitMessage(WriterCommitMessage):
    """Result of one partition, or of all.

    rows           received rows
    written        messages that the broker stored now, dead letters included
    already        messages that the broker had stored in an earlier attempt
    dropped, dead_lettered   bad rows
    latest         latest batch of that writer, if the broker had stored this one
    reasons        number of bad rows by reason
    """

    rows: int = 0
    written: int = 0
    already: int = 0
    latest: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, other: SinkCommitMessage) -> None:
        """Add another partition's result."""
        for name in ("rows", "written", "already", "dropped", "dead_lettered"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latest = max(self.latest, other.latest)
        for reason, count in other.reasons.items():
            self.count(reason, count)

    def count(self, reason: str, count: int = 1) -> None:
        """Count bad rows with that reason."""
        is_listed = reason in self.reasons or len(self.reasons) < MAX_REASONS
        self.reasons[reason if is_listed else OTHER_REASONS] += count


class BadRow(RequestRefused):
    """Raised for a row that is not a valid message if the option badRows is `fail`."""


class EncodedPart(NamedTuple):
    """Encoded rows; `number` is the index of the part in its partition, from 0."""

    number: int
    rows: int
    frames: list[bytes]


class Parts:
    """Collects the rows of one partition."""

    def __init__(self, part_rows: int, part_bytes: int) -> None:
        """Set the limits of a part, besides PART_DESTINATIONS; a larger row forms a part alone."""
        self._part_rows = part_rows
        self._part_bytes = part_bytes
        self._number = 0
        self._rows: list[Values] = []
        self._destinations: set[tuple[str | bytes, bool] | None] = set()
        self._size = 0

    def add(self, rows: Sequence[Values]) -> Iterator[EncodedPart]:
        """Add rows; yield each full part except the last."""
        for values in rows:
            size = _size_of(values)
            name, topic = values[:2]
            # the name is a list in a row that could not be converted
            destination = (name, topic) if type(name) is not list else None
            if self._rows and (
                len(self._rows) == self._part_rows
                or self._size + size > self._part_bytes
                or (
                    len(self._destinations) == PART_DESTINATIONS
                    and destination not in self._destinations
                )
            ):
                yield self._encode()
            self._rows.append(values)
            self._destinations.add(destination)
            self._size += size

    def cut(self, *, final: bool) -> EncodedPart | None:
        """Return the collected rows as a part; None if there are none.

        The `final` part of a partition exists, and may be empty, if there is one before it."""
        return self._encode() if self._rows or (final and self._number) else None

    def _encode(self) -> EncodedPart:
        part = EncodedPart(self._number, len(self._rows), list(encode(self._rows)))
        self._number += 1
        self._rows = []
        self._destinations = set()
        self._size = 0
        return part


def _size_of(values: Values) -> int:
    """Return the approximate bytes of a row, which depend on the row alone."""
    size = len(values[2]) + ROW_BYTES
    for value in values[_TEXTS:]:
        if type(value) is str:
            size += len(value)
        elif type(value) is dict:
            for name, item in value.items():
                size += PROPERTY_BYTES + len(name)
                if isinstance(item, str | bytes):
                    size += len(item)
    return size


class PartitionWriter(AbstractContextManager["PartitionWriter"]):
    """Writes one partition; a context manager.

    Parts are sent one after the other; the next one is prepared while the broker stores one."""

    def __init__(
        self, options: SinkOptions, converter: Converter, writer: str, batch: int, partition: int
    ) -> None:
        """Prepare a write; the broker recognises its repetitions by the last three arguments."""
        self.written = SinkCommitMessage()
        self._options = options
        self._converter = converter
        self._query: dict[str, Any] = {
            "writer": writer,
            "batch": batch,
            "partition": partition,
            "bad_rows": options.bad_rows,
            "dead_letter_queue": options.dead_letters,
        }
        self._parts = Parts(options.part_rows, options.part_bytes)
        self._remote = HttpClient(options.target, retry_timeout=options.retry_timeout)
        self._pending_part: EncodedPart | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises BadRow, and as `HttpClient.request`."""
        rows = self._converter.convert(batch)
        self.written.rows += len(rows)
        for part in self._parts.add(rows):
            self._send(part, final=False)

    def flush(self) -> None:
        """Send the added rows and wait until the broker has stored them."""
        self._send(self._parts.cut(final=False), final=False)
        self._receive_response()

    def finish(self) -> SinkCommitMessage:
        """Send the last part and return the result once the broker has stored everything."""
        self._send(self._parts.cut(final=True), final=True)
        self._receive_response()
        return self.written

    def _send(self, part: EncodedPart | None, final: bool) -> None:
        """Wait for the response to the part sent last, then send this one, if there is one."""
        self._receive_response()
        if part is not None:
            query = BatchQuery(**self._query, part=part.number, final=final)
            method, path, _, _ = request_of(WRITE_BATCH_PART, query)
            self._remote.send(method, path, part.frames)
        self._pending_part = part

    def _receive_response(self) -> None:
        part, self._pending_part = self._pending_part, None
        if part is None:
            return
        try:
            response = self._remote.receive()
        except HttpRefusal as refusal:
            raise self._explain_refusal(refusal, part) from None
        answer = answer_in(WRITE_BATCH_PART, self._options.target, response)
        written = self.written
        if answer.duplicate:
            written.already += part.rows
            written.latest = max(written.latest, answer.latest_batch or 0)
            return
        written.written += answer.written + answer.dead_lettered
        written.dead_lettered += answer.dead_lettered
        written.dropped += answer.rejected_rows - answer.dead_lettered
        for refused in answer.rejected:
            written.count(refused.reason)
        if answer.rejected_rows > len(answer.rejected):
            written.count(OTHER_REASONS, answer.rejected_rows - len(answer.rejected))

    def _explain_refusal(self, refusal: HttpRefusal, part: EncodedPart) -> RequestRefused:
        location = f"part {part.number} of partition {self._query['partition']}"
        if refusal.code == "batch-conflict":
            return RequestRefused(
                f"{location} of batch {self._query['batch']} has been written with other rows "
                f"before ({refusal}). A batch that is written again must have the same rows in the "
                "same partitions: write other rows under another writeId or batchId, store the "
                "result of a query with rand(), uuid() or the like in a table first, and do not "
                "change transactionRows and transactionBytes"
            )
        if refusal.code == "rejected":
            return BadRow(
                f"{refusal} ({location}). The option badRows can be drop or dead-letter instead "
                "of fail"
            )
        if refusal.status == 413:
            return RequestRefused(
                f"{refusal} ({location}). The options transactionRows and transactionBytes limit "
                "the rows of a part"
            )
        return refusal

    def __exit__(self, *_: object) -> None:
        self._remote.close()


# --- truncated partitions ----------------------------------------------------------------------

_CLOSED: Final = select.POLLRDHUP | select.POLLHUP


def check_sockets_open(sockets: Set[int]) -> None:
    """Check that the rows ended normally, after the last row.

    `sockets` are the `open_sockets` before the first row. Raises ConnectionLost if Spark closed
    one of them.
    """
    if not sockets <= open_sockets():
        raise ConnectionLost(
            "Spark ended the rows of this task early, because an earlier step has failed. That "
            "error is reported with the failure of the task, or by its other attempts"
        )


def open_sockets() -> set[int]:
    """Return the inodes of the process's sockets whose other end has not closed."""
    poll = select.poll()
    inodes: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            status = os.fstat(descriptor)
        except OSError:  # the descriptor of the directory itself
            continue
        if stat.S_ISSOCK(status.st_mode):
            inodes[descriptor] = status.st_ino
            poll.register(descriptor, _CLOSED)
    closed = {descriptor for descriptor, events in poll.poll(0) if events & _CLOSED}
    return {inode for descriptor, inode in inodes.items() if descriptor not in closed}
