"""Delivery of one partition to the broker, in the tasks of a write."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import urlencode

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from sluicemq.clients.http import HttpClient, HttpRefusal
from sluicemq.management.journal import BatchPartResult
from sluicemq.model.errors import ProtocolError, RequestRefused
from sluicemq.pipeline.sink.conversion import Converter, Values, dead_letter
from sluicemq.pipeline.sink.options import BadRows, SinkOptions
from sluicemq.pipeline.sink.parts import EncodedPart, Parts
from sluicemq.pipeline.sink.values import Faults, abbreviated

PATH: Final = "/api/v1/batches"
MOST_REASONS: Final = 20
"""Number of reasons in a commit message; further ones are counted together."""
OTHER_REASONS: Final = "other reasons"

_CONFLICT: Final = "batch-conflict"
_REFUSED: Final = "rejected"


class WriteId(NamedTuple):
    """Identity of a write, by which the broker recognises repetitions."""

    writer: str
    batch: int
    partition: int


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
        self.rows += other.rows
        self.written += other.written
        self.already += other.already
        self.latest = max(self.latest, other.latest)
        self.dropped += other.dropped
        self.dead_lettered += other.dead_lettered
        for reason, count in other.reasons.items():
            self.count(reason, count)

    def count(self, reason: str, count: int = 1) -> None:
        """Count bad rows with that reason."""
        known = reason in self.reasons or len(self.reasons) < MOST_REASONS
        self.reasons[reason if known else OTHER_REASONS] += count


class BadRow(RequestRefused):
    """Raised for a row that is not a valid message if the option badRows is `fail`."""


class PartitionWriter:
    """Writes one partition; a context manager.

    Parts are sent one after the other; the next one is prepared while the broker stores one."""

    def __init__(self, options: SinkOptions, converter: Converter, batch: WriteId) -> None:
        self.written = SinkCommitMessage()
        self._options = options
        self._converter = converter
        self._batch = batch
        self._parts = Parts(options.part_rows, options.part_bytes)
        self._remote = HttpClient(options.target, options.patience)
        self._waiting: EncodedPart | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises BadRow, and as `Remote.request`."""
        rows, sizes, faults = self._converter.convert(batch)
        self.written.rows += len(rows)
        if faults:
            rows, sizes = self._sound(rows, sizes, faults)
        for part in self._parts.add(rows, sizes):
            self._send(part, final=False)

    def flush(self) -> None:
        """Send the added rows and wait until the broker has stored them."""
        part = self._parts.cut()
        if part is not None:
            self._send(part, final=False)
        self._settle()

    def finish(self) -> SinkCommitMessage:
        """Send the last part and return the result once the broker has stored everything."""
        last = self._parts.last()
        if last is not None:
            self._send(last, final=True)
        self._settle()
        return self.written

    def _sound(
        self, rows: list[Values], sizes: list[int], faults: Faults
    ) -> tuple[list[Values], list[int]]:
        """Return the rows with faulty ones removed or replaced by dead letters."""
        written, options = self.written, self._options
        if options.bad_rows is BadRows.FAIL:
            row, reason = min(faults.items())
            raise BadRow(
                f"row {written.rows - len(rows) + row} of partition {self._batch.partition}, for "
                f"{abbreviated(rows[row][0])}, is no message: {reason}. The option badRows can be "
                f"{BadRows.DROP} or {BadRows.DEAD_LETTER} instead of {BadRows.FAIL}"
            )
        for reason in faults.values():
            written.count(reason)
        if options.bad_rows is BadRows.DROP:
            written.dropped += len(faults)
            kept = [row for row in range(len(rows)) if row not in faults]
            return [rows[row] for row in kept], [sizes[row] for row in kept]
        written.dead_lettered += len(faults)
        for row, reason in faults.items():
            rows[row] = dead_letter(rows[row], reason, options)
        return rows, sizes

    def _send(self, part: EncodedPart, final: bool) -> None:
        self._settle()
        query = {
            "writer": self._batch.writer,
            "batch": self._batch.batch,
            "partition": self._batch.partition,
            "part": part.number,
            "final": "true" if final else "false",
            "bad_rows": self._options.bad_rows.value,
            "dead_letter_queue": self._options.dead_letters,
        }
        self._waiting = part
        self._remote.send("POST", f"{PATH}?{urlencode(query)}", part.frames)

    def _settle(self) -> None:
        """Wait for the response to the part sent last."""
        part, self._waiting = self._waiting, None
        if part is None:
            return
        try:
            answer = msgspec.json.decode(self._remote.receive().body, type=BatchPartResult)
        except HttpRefusal as refusal:
            raise self._refusal(refusal, part) from None
        except msgspec.MsgspecError as error:
            raise ProtocolError(
                f"the broker at {self._options.target} answered a batch with an unexpected "
                f"response: {error}"
            ) from None
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

    def _refusal(self, refusal: HttpRefusal, part: EncodedPart) -> RequestRefused:
        location = f"part {part.number} of partition {self._batch.partition}"
        if refusal.code == _CONFLICT:
            return RequestRefused(
                f"{location} of batch {self._batch.batch} has been written with other rows before "
                f"({refusal}). A batch that is written again has to have the same rows in the same "
                "partitions: other rows need another writeId or batchId, a query with rand(), "
                "uuid() or the like needs a table between, and transactionRows and "
                "transactionBytes have to stay as they were"
            )
        if refusal.code == _REFUSED:
            return BadRow(
                f"{refusal} ({location}). The option badRows can be {BadRows.DROP} or "
                f"{BadRows.DEAD_LETTER} instead of {BadRows.FAIL}"
            )
        return refusal

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._remote.close()
