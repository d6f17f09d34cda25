"""Messages of the past, sent once more: chosen from a table, in their old order, at a chosen pace.

    replay(lake.where("destination = 'orders' AND state = 'dead-lettered'"), url, "orders", rate=50)

Whatever the frame is (silver, bronze, the source), a row of it is a message that was published. The
rows come to the driver in order, as batches of Arrow, and go to the broker over one connection, in
transactions: at a rate or an original pace what is due within a tenth of a second is one. Each is
stored once for a `write_id`: a replay that was broken off is continued by running it again, with
the same rows, rate and pace.

What a message had is sent again, except the times after which it would have expired, or before
which it was not to be delivered, which have passed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import DEFAULT_PRIORITY, Durability, Message
from sluicemq.model.rows import Row
from sluicemq.pipeline.sink.columns import COLUMNS, places
from sluicemq.pipeline.sink.conversion import Converter
from sluicemq.pipeline.sink.delivery import Batch, Delivery
from sluicemq.pipeline.sink.options import read

Predicate = Callable[[Message], bool]

WINDOWS: Final = 10
"""In a second: what is due within one of them is sent together."""

_BODIES: Final = ("body", "text", "json")
"""Where a body may stand: silver has it once."""
_PASSED: Final = frozenset({"ttl", "expiration", "deliver_at"})
_TO: Final = frozenset({"destination", "destination_kind"})
_ORDER: Final = "message"
_TIME: Final = "published"
_MICROSECONDS: Final = 1e6
_PACKED: Final = "batch binary"


class Replayed(NamedTuple):
    """What became of a replay.

    write_id   by which it can be continued or repeated without effect
    rows       messages that were chosen
    written    sent now, dead letters included
    already    had been sent before with this write_id
    bad        of `written`: rows that are no messages, and went to the dead-letter queue
    """

    write_id: str
    rows: int
    written: int
    already: int
    bad: int


def replay(
    frame: DataFrame,
    url: str,
    destination: str = "",
    *,
    rate: float | None = None,
    pace: float | None = None,
    selects: Callable[[], Predicate] | None = None,
    write_id: str = "",
    progress: Callable[[int, int], None] | None = None,
    **options: str,
) -> Replayed:
    """Send the frame's messages once more, and return when the broker has stored all.

    destination  a queue, or "topic:NAME"; "" = each to where it was sent first
    rate         messages a second; None = no limit
    pace         1 = with the pauses they had, 2 = twice as fast, ...; None = without
    selects      makes a predicate, on the executors; rows for which it is false are left out
    write_id     "" = one that nobody else has
    progress     called with the messages sent so far, and all
    options      more of the sink's: user, password, token, deadLetterQueue, badRows, retryTimeout

    Raises ConfigurationError for a frame that has no messages or options that cannot be;
    ConnectionLost, AccessError and RequestRefused as the broker answers.
    """
    if rate is not None and pace is not None:
        raise ConfigurationError("a replay has a rate or a pace, not both")
    if (rate is not None and rate <= 0) or (pace is not None and pace <= 0):
        raise ConfigurationError("the rate and the pace of a replay are larger than 0")
    write_id = write_id or f"replay-{uuid.uuid4().hex}"
    given = {"badRows": "dead-letter", **options, "url": url, "writeId": write_id}
    sink = read({**given, **({"destination": destination} if destination else {})})
    messages = _messages(frame, keep_destination=not destination)
    converter = Converter(places(messages.drop(_ORDER, _TIME).schema, sink.destination), sink)
    if selects is not None:
        messages = messages.mapInArrow(_selected(selects, converter), messages.schema)
    total = messages.count() if progress is not None else 0
    schedule = ReplaySchedule(rate, pace)
    with Delivery(sink, converter, Batch(write_id, sink.batch, 0)) as delivery:
        for batch in _in_order(messages):
            for piece, due in schedule.windows(batch):
                if due is not None:
                    _begin_window(delivery, schedule, due)
                delivery.add(piece)
                if progress is not None:
                    progress(delivery.written.rows, total)
        written = delivery.finish()
    bad = written.dead_lettered + written.dropped
    return Replayed(write_id, written.rows, written.written, written.already, bad)


def _begin_window(delivery: Delivery, schedule: ReplaySchedule, due: float) -> None:
    """Send what the last one has collected, and wait for the next one's time."""
    before = delivery.written.written
    delivery.flush()
    if delivery.written.already and delivery.written.written == before:
        schedule.skip_to(due)
    schedule.wait(due)


# --- which messages ------------------------------------------------------------------------------


def _messages(frame: DataFrame, *, keep_destination: bool) -> DataFrame:
    """The columns of the sink, and those that order and time the messages."""
    names = set(frame.columns)
    if "event" in names:
        frame = frame.where("event = 'message'")
    elif "size" in names:
        frame = frame.where("size IS NOT NULL")  # of others silver knows the life, not the message
    bodies = [name for name in _BODIES if name in names]
    if _ORDER not in names or not bodies:
        raise ConfigurationError(
            "a replay needs rows of silver, of bronze or of the source, with the columns "
            f"{_ORDER} and {', '.join(_BODIES)}"
        )
    body = ", ".join(f"CAST(`{name}` AS BINARY)" for name in bodies)
    columns = ["body"] if bodies == ["body"] else [f"coalesce({body}) AS body"]
    left_out = {"body", *_PASSED} | (set() if keep_destination else _TO)
    columns += [name for name in COLUMNS if name in names and name not in left_out]
    time_column = _TIME if _TIME in names else "CAST(NULL AS TIMESTAMP)"
    if "event" in names:
        time_column = "time"
    return frame.selectExpr(*columns, _ORDER, f"{time_column} AS {_TIME}")


def _selected(
    selects: Callable[[], Predicate], converter: Converter
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Leaves out the rows that the predicate does not select, in a task."""

    def choose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        predicate = selects()
        for batch in batches:
            converted = converter.convert(batch)
            times = batch.column(_TIME).cast(pa.int64()).fill_null(0).to_pylist()
            keep = [
                predicate(_message(row, moment))
                for row, moment in zip(converted.rows, times, strict=True)
            ]
            yield batch.filter(pa.array(keep, pa.bool_()))

    return choose


def _message(values: Sequence[Any], moment: int) -> Message:
    """A row as selectors look at it; published at `moment` µs."""
    fields = dict(zip(Row.__struct_fields__, values, strict=False))
    return Message(
        Address(Kind.TOPIC if fields["topic"] else Kind.QUEUE, str(fields["destination"])),
        fields["body"],
        durability=Durability(fields.get("durability", Durability.SYNC)),
        timestamp=moment // 1000,
        priority=fields.get("priority", DEFAULT_PRIORITY),
        message_id=fields.get("message_id", ""),
        correlation_id=fields.get("correlation_id", ""),
        type=fields.get("type", ""),
        properties=fields.get("properties"),
    )


# --- in their order, to the driver ----------------------------------------------------------------


def _in_order(messages: DataFrame) -> Iterator[pa.RecordBatch]:
    """The columns of the sink and the time, ordered by the message's number.

    Spark hands rows to the driver one by one; here each is a whole batch, as bytes.
    """
    packed = messages.orderBy(_ORDER).drop(_ORDER).mapInArrow(_pack, _PACKED)
    for row in packed.toLocalIterator(prefetchPartitions=True):
        yield from pa.ipc.open_stream(row[0])


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()])], ["batch"])


class ReplaySchedule:
    """When messages are due, in seconds after the first; in windows, so that what is sent together
    depends on the messages alone."""

    def __init__(self, rate: float | None, pace: float | None) -> None:
        self._rate = rate
        self._pace = pace
        self._sent = 0
        self._first: int | None = None
        self._latest = 0.0
        self._window = -1
        self._start = time.monotonic()

    def windows(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, float | None]]:
        """The batch in pieces, each with the time at which it is due if it begins a window."""
        if self._rate is None and self._pace is None:
            yield batch, None
            return
        start = 0
        for window, members in groupby(map(int, self._due(batch))):
            count = sum(1 for _ in members)
            begins = window > self._window
            self._window = max(window, self._window)
            yield batch.slice(start, count), window / WINDOWS if begins else None
            start += count

    def _due(self, batch: pa.RecordBatch) -> list[float]:
        """The window of each message."""
        count = batch.num_rows
        if self._rate is not None:
            self._sent += count
            first = self._sent - count
            return [(first + row) * WINDOWS / self._rate for row in range(count)]
        assert self._pace is not None
        moments = batch.column(_TIME).cast(pa.int64()).to_pylist()
        if self._first is None:
            self._first = next((moment for moment in moments if moment is not None), None)
        earliest = self._first or 0
        scale = self._pace * _MICROSECONDS / WINDOWS
        # one whose time nobody knows, or before which the clock went back, goes with the one before
        found = []
        for moment in moments:
            if moment is not None:
                self._latest = max(self._latest, (moment - earliest) / scale)
            found.append(self._latest)
        return found

    def wait(self, due: float) -> None:
        """Until then."""
        time.sleep(max(0.0, self._start + due - time.monotonic()))

    def skip_to(self, due: float) -> None:
        """What was due before had been sent before: time goes on from here."""
        self._start = time.monotonic() - due
