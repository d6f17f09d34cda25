"""Replay: publishes messages from a table again, in their original order and at a chosen rate.

    replay(lake.where("destination = 'orders' AND state = 'dead-lettered'"), url, "orders", rate=50)

Each row of the frame (silver, bronze, the source) is a message that was published. Messages of one
broker are ordered by their numbers, those of several brokers by time. The rows reach the driver in
order, as Arrow batches, and go to the broker over one connection in transactions. With a rate or
speed, a transaction has the messages due within a tenth of a second. Each message is stored once
per `write_id`: run an interrupted replay again with the same rows, rate and speed to continue it.

Messages keep their fields, except expiration and delivery times, which have passed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import DEFAULT_PRIORITY, Durability, Message
from sluicemq.model.rows import Row
from sluicemq.pipeline.sink.conversion import Converter
from sluicemq.pipeline.sink.delivery import PartitionWriter
from sluicemq.pipeline.sink.options import COLUMNS, column_indexes, parse_options

Predicate = Callable[[Message], bool]

WINDOWS: Final = 10
"""Windows per second: messages due within one window are sent together."""

_BODIES: Final = ("body", "text", "json")
"""Columns that may have the body: silver sets one of them."""
_DEADLINES: Final = frozenset({"ttl", "expiration", "deliver_at"})
_DESTINATION_COLUMNS: Final = frozenset({"destination", "destination_kind"})
_ORDER: Final = "message_sequence"
_OF_BROKERS: Final = (
    "struct(max({time}) OVER (PARTITION BY broker ORDER BY message_sequence), broker, "
    "message_sequence) AS message_sequence"
)
"""Order of the messages of several brokers, whose numbers are unrelated: by time, but never against
the order of one broker."""
_TIME: Final = "published"
_WINDOW: Final = "_window"


class ReplayResult(NamedTuple):
    """Result of a replay.

    write_id   id by which it can be continued, or repeated without effect
    rows       selected messages
    written    messages sent now, dead letters included
    already    messages sent earlier with this write_id
    bad        invalid rows among `written`, which went to the dead-letter queue
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
    speed: float | None = None,
    make_predicate: Callable[[], Predicate] | None = None,
    write_id: str = "",
    progress: Callable[[int, int], None] | None = None,
    **options: str,
) -> ReplayResult:
    """Publish the frame's messages again, and return when the broker has stored all.

    destination     a queue, or "topic:NAME"; "" = each message's original destination
    rate            messages per second; None = no limit
    speed           1 = with the original intervals, 2 = twice as fast, ...; None = without
    make_predicate  creates a predicate on the executors; rows for which it is false are skipped
    write_id        "" = a new unique one
    progress        called with the number of messages sent so far, and of all
    options         further options of the sink: user, password, token, deadLetterQueue, badRows,
                    retryTimeout

    Raises ConfigurationError for a frame without messages or for invalid options; ConnectionLost,
    AccessError and RequestRefused for errors from the broker.
    """
    if rate is not None and speed is not None:
        raise ConfigurationError("a replay has a rate or a speed, not both")
    if not all(number is None or number > 0 for number in (rate, speed)):
        raise ConfigurationError("the rate and the speed of a replay are larger than 0")
    write_id = write_id or f"replay-{uuid.uuid4().hex}"
    sink_options = {"badRows": "dead-letter", **options, "url": url, "writeId": write_id}
    sink = parse_options({**sink_options, **({"destination": destination} if destination else {})})
    messages = _messages(frame, keep_destination=not destination)
    converter = Converter(
        column_indexes(messages.drop(_ORDER, _TIME).schema, sink.destination.name), sink
    )
    if make_predicate is not None:
        messages = messages.mapInArrow(_filter_rows(make_predicate, converter), messages.schema)
    total = messages.count() if progress is not None else 0
    messages = messages.withColumn(_WINDOW, _window(rate, speed))
    latest, start = 0, time.monotonic()
    with PartitionWriter(sink, converter, write_id, sink.batch, 0) as delivery:
        for batch in _ordered_batches(messages):
            for window, piece in _split_by_window(batch):
                if window > latest:
                    start = _begin_window(delivery, start, window / WINDOWS)
                    latest = window
                delivery.add(piece)
                if progress is not None:
                    progress(delivery.written.rows, total)
        result = delivery.finish()
    return ReplayResult(
        write_id,
        result.rows,
        result.written,
        result.already,
        result.dead_lettered + result.dropped,
    )


def _begin_window(delivery: PartitionWriter, started: float, due: float) -> float:
    """Send the messages of the last window, and wait for the next one.

    started  time at which the first window began
    due      seconds from then to the next window

    Return `started`, as if the first window had begun later if an earlier run had sent the last
    one.
    """
    before = delivery.written.written
    delivery.flush()
    if delivery.written.already and delivery.written.written == before:
        started = time.monotonic() - due
    time.sleep(max(0.0, started + due - time.monotonic()))
    return started


# --- selection of messages -----------------------------------------------------------------------


def _messages(frame: DataFrame, *, keep_destination: bool) -> DataFrame:
    """Return the columns of the sink, and those for order and time."""
    names = set(frame.columns)
    if "event" in names:
        frame = frame.where("event = 'published'")
    elif "size" in names:
        frame = frame.where("size IS NOT NULL")  # silver has no record of other messages
    bodies = [name for name in _BODIES if name in names]
    if _ORDER not in names or not bodies:
        raise ConfigurationError(
            "a replay needs rows of silver, of bronze or of the source, with the columns "
            f"{_ORDER} and {', '.join(_BODIES)}"
        )
    body = ", ".join(f"CAST(`{name}` AS BINARY)" for name in bodies)
    columns = ["body"] if bodies == ["body"] else [f"coalesce({body}) AS body"]
    left_out = {"body", *_DEADLINES} | (set() if keep_destination else _DESTINATION_COLUMNS)
    columns += [name for name in COLUMNS if name in names and name not in left_out]
    time_column = _TIME if _TIME in names else "CAST(NULL AS TIMESTAMP)"
    if "event" in names:
        time_column = "time"
    order = _ORDER
    if "broker" in names and frame.select("broker").distinct().limit(2).count() > 1:
        order = _OF_BROKERS.format(time=time_column)
    return frame.selectExpr(*columns, order, f"{time_column} AS {_TIME}")


def _filter_rows(
    make_predicate: Callable[[], Predicate], converter: Converter
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Filter rows in a task by the predicate."""

    def choose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        predicate = make_predicate()
        for batch in batches:
            rows = converter.convert(batch)
            times = batch.column(_TIME).cast(pa.int64()).fill_null(0).to_pylist()
            keep = [
                predicate(_message(row, moment)) for row, moment in zip(rows, times, strict=True)
            ]
            yield batch.filter(pa.array(keep, pa.bool_()))

    return choose


def _message(values: Sequence[Any], moment: int) -> Message:
    """Return a row as a message for selectors, published at `moment` µs."""
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


# --- ordered transfer to the driver ---------------------------------------------------------------


def _ordered_batches(messages: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield the columns of the sink, the time and the window, in order.

    Spark transfers rows to the driver one by one; here each row is a whole batch, as bytes.
    """
    # the schedule's window function leaves one partition, which the driver would fetch as a whole
    packed = (
        messages.repartitionByRange(_ORDER)
        .sortWithinPartitions(_ORDER, _WINDOW)
        .drop(_ORDER)
        .mapInArrow(_pack, "batch binary")
    )
    for row in packed.toLocalIterator(prefetchPartitions=True):
        yield from pa.ipc.open_stream(row[0])


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()])], ["batch"])


# --- schedule ------------------------------------------------------------------------------------


def _window(rate: float | None, speed: float | None) -> Column:
    """Return the number of the window in which a message is due, counted from the first message.

    Messages of one window are sent together, so transactions depend on the messages alone."""
    order = Window.orderBy(_ORDER)
    if rate is not None:
        return f.floor((f.row_number().over(order) - 1) * WINDOWS / rate)
    if speed is None:
        return f.lit(0)
    moment = f.unix_micros(_TIME)
    first = f.first(moment, ignorenulls=True).over(order)
    # a message without a time, or after the clock went back, is due with the one before
    elapsed = f.max(moment).over(order) - first
    return f.coalesce(f.floor(elapsed * WINDOWS / (1e6 * speed)), f.lit(0))


def _split_by_window(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch into messages of one window each, which follow its number."""
    windows = batch.column(_WINDOW).to_numpy()
    cuts = (np.flatnonzero(np.diff(windows)) + 1).tolist()
    for start, end in pairwise(sorted({0, *cuts, batch.num_rows})):
        yield int(windows[start]), batch.slice(start, end - start)
