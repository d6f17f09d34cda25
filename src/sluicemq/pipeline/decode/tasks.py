"""The two steps of decoding, as functions of Arrow batches that run in Spark's tasks.

find    one row for each file in, chunks of connections and errors of files out
decode  chunks in, sorted by file, connection and number; frames out
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from sluicemq.pipeline.decode.captures import CaptureFault
from sluicemq.pipeline.decode.connections import ConnectionPackets, find_connections
from sluicemq.pipeline.decode.conversation import Conversation
from sluicemq.pipeline.decode.options import DecodeOptions
from sluicemq.pipeline.decode.payload import CaptureFile
from sluicemq.pipeline.decode.rows import RowBuffer

FOUND: Final = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("connection", pa.int64()),
        pa.field("number", pa.int64()),
        pa.field("one", pa.string()),
        pa.field("other", pa.string()),
        pa.field("notes", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("fault", pa.string()),
    ]
)
"""Columns of Chunk, or of an error in a file, which sets `fault` and has a negative number."""

_CHUNKS: Final = 128
"""Rows of a batch, about 2 MB."""


def find(files: Iterable[str], options: DecodeOptions) -> Iterator[pa.RecordBatch]:
    """Yield the contents of each file in rows of FOUND."""
    for file in files:
        rows: list[tuple[Any, ...]] = []
        for row in _found_in(file, options):
            rows.append((file, *row))
            if len(rows) >= _CHUNKS:
                yield _batch(rows)
                rows = []
        if rows:
            yield _batch(rows)


def _found_in(file: str, options: DecodeOptions) -> Iterator[tuple[Any, ...]]:
    faults = 0
    try:
        for each in find_connections(Path(file), options):
            if isinstance(each, CaptureFault):
                faults += 1
                offset = each.offset if each.offset >= 0 else None
                yield -faults, 0, None, None, None, offset, each.text
            else:
                yield each.connection, each.number, *each.endpoints, each.notes, None, None
    except OSError as fault:
        yield -faults - 1, 0, None, None, None, None, f"the file cannot be read: {fault.strerror}"


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, FOUND, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=FOUND)


def decode_found(
    batches: Iterable[pa.RecordBatch], options: DecodeOptions
) -> Iterator[pa.RecordBatch]:
    """Yield rows of columns.FRAMES; `batches` are sorted rows of FOUND."""
    rows = RowBuffer()
    current: tuple[str, int] | None = None
    conversation: Conversation | None = None
    file: CaptureFile | None = None
    opened = ""
    try:
        for row in _each(batches):
            name, connection, number, one, other, notes, offset, fault = row
            if (name, connection) != current:
                if conversation is not None:
                    yield from conversation.end()
                conversation = None
                current = name, connection
                if fault is not None:
                    rows.add((name, None, None, None, None, None, offset, None), None, fault)
                    continue
                if opened != name or file is None:
                    if file is not None:
                        file.close()
                        file = None
                    try:
                        file = CaptureFile(Path(name))
                    except OSError as error:
                        why = f"the file cannot be read where it is decoded: {error.strerror}"
                        rows.add((name, connection, None, None, None, None, None, None), None, why)
                        continue
                    opened = name
                chunk = ConnectionPackets(connection, number, (one, other), notes)
                conversation = Conversation(file, name, chunk, options, rows)
            if conversation is not None:
                yield from conversation.add(
                    ConnectionPackets(connection, number, (one, other), notes)
                )
            if rows.enough:
                yield from rows.batches()
        if conversation is not None:
            yield from conversation.end()
        yield from rows.batches()
    finally:
        if file is not None:
            file.close()


def _each(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        for number in range(len(batch)):
            yield tuple(column[number].as_py() for column in batch.columns)
