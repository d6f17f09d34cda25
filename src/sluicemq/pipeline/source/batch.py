"""spark.read: the journal from one sequence number to another, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from sluicemq.model.errors import RecordNotFound
from sluicemq.pipeline.source.connect import connect
from sluicemq.pipeline.source.filters import apply_filter
from sluicemq.pipeline.source.journal import Journal
from sluicemq.pipeline.source.offsets import resolve
from sluicemq.pipeline.source.options import EARLIEST, LATEST, SourceOptions
from sluicemq.pipeline.source.plan import pieces, share
from sluicemq.pipeline.source.reading import Piece, Reading, gone, log
from sluicemq.pipeline.source.selection import Selection


class Share(InputPartition):
    """One task: pieces of the journal with that identity.

    Spark pickles a reader before it plans: what the plan finds out goes with the tasks.
    """

    def __init__(self, pieces: list[Piece], identity: str) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.identity = identity


class _Pushing:
    """BatchReader.pushFilters, for a session that may have filter push-down switched off.

    Spark refuses a reader that overrides the method while the setting is off, which the reader
    cannot see; it compares `__func__`. So to that question this says "not overridden".
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, push: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._push = push

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


class BatchReader(DataSourceReader):
    """One batch read. `schema` are the columns that are asked for, as Spark wants them in Arrow."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        selection = Selection.of(options)
        if options.starting_timestamp is not None:
            selection = replace(selection, since=options.starting_timestamp)
        if options.ending_timestamp is not None:
            selection = replace(selection, until=options.ending_timestamp)
        self._reading = Reading(connect(options), schema, selection, options.fail_on_data_loss)
        self.pushFilters = _Pushing(self._push)  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["pushFilters"]
        return state

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        refused = []
        selection = self._reading.selection
        for given in filters:
            selection, exact = apply_filter(selection, given)
            if not exact:
                refused.append(given)
        self._reading = replace(self._reading, selection=selection)
        return refused

    def partitions(self) -> list[InputPartition]:
        """Plans the tasks. Raises JournalError, ConfigurationError."""
        options = self._options
        journal = Journal(self._reading.place, "")
        state = journal.state
        journal.identity = state.identity
        low = resolve(journal, options.starting_offsets or EARLIEST)
        if options.starting_offsets == 0:
            low = 0
        high = resolve(
            journal, LATEST if options.ending_offsets is None else options.ending_offsets
        )
        if low < state.earliest and isinstance(options.starting_offsets, int) and low:
            message = gone(low, state.earliest, "their segments have been removed")
            if options.fail_on_data_loss:
                raise RecordNotFound(message)
            log.warning("Not read: %s", message)
        selection = self._reading.selection.between(low, high)
        columns = frozenset(self._reading.schema.names)
        weighed = pieces(journal, selection, columns, options.fail_on_data_loss)
        tasks = share(weighed, options.min_partitions)
        return [Share(task, state.identity) for task in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task."""
        assert isinstance(partition, Share)
        return self._reading.read(partition.pieces, partition.identity)
