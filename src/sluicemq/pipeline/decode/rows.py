"""Collection of rows into record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from sluicemq.pipeline.decode.codec import FrameColumns
from sluicemq.pipeline.decode.columns import FRAMES

MOST_ROWS: Final = 4096
MOST_BYTES: Final = 16 << 20
"""Maximum size of a batch's bodies."""


class RowBuffer:
    """Rows that do not form a batch yet."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    @property
    def enough(self) -> bool:
        """Return True if a batch is due."""
        return len(self._rows) >= MOST_ROWS or self._bytes >= MOST_BYTES

    def add(self, place: tuple[Any, ...], columns: FrameColumns | None, error: str | None) -> None:
        """Add a row; `place` has the columns before `frame`."""
        columns = columns or FrameColumns(None, error=error)
        self._rows.append(place + columns)
        self._bytes += len(columns.body or b"")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all added rows and clear them."""
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, FRAMES, strict=True)
        ]
        self._rows = []
        self._bytes = 0
        made = pa.RecordBatch.from_arrays(arrays, schema=FRAMES)
        for start in range(0, len(made), MOST_ROWS):
            yield made.slice(start, MOST_ROWS)
