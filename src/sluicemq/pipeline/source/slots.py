"""Retention slots that move with a query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from sluicemq.model.errors import ClientError, ConfigurationError, JournalError, RecordNotFound
from sluicemq.pipeline.source.connect import connect
from sluicemq.pipeline.source.offsets import read_offset
from sluicemq.pipeline.source.options import SourceOptions, parse_options
from sluicemq.pipeline.source.places import Place
from sluicemq.pipeline.source.reading import log


def slot_is_lost(options: SourceOptions, why: str) -> None:
    """Raises JournalError, or warns if what is lost is not to be an error."""
    message = (
        f"the slot {options.slot} protects nothing any more: {why}. Segments that this query has "
        "not read may be gone. Drop the slot (a new one is made when the query starts) and, if "
        "the query then says that it comes too late, go on as it says."
    )
    if options.fail_on_data_loss:
        raise JournalError(message)
    log.warning("%s", message)


def move_slot(options: SourceOptions, place: Place, sequence: int) -> None:
    """Everything before `sequence` has been dealt with.

    A broker that does not answer is no reason to end a query: the slot moves next time.
    """
    try:
        place.advance(options.slot, sequence - 1)
    except RecordNotFound:
        slot_is_lost(options, "somebody has dropped it")
    except JournalError as error:
        slot_is_lost(options, str(error))
    except ClientError as error:
        log.warning("The slot %s was not moved: %s", options.slot, error)


class SlotMover(StreamingQueryListener):
    """Moves the slot after every batch.

    The source itself is told of a batch when the one after it begins, and so never of the last
    one of a query that ends by itself (Trigger.AvailableNow).
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._place = connect(options)
        self._identity = ""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing to do yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Spark has committed a batch."""
        for source in event.progress.sources:
            try:
                written = json.loads(source.endOffset)
            except (TypeError, ValueError):
                continue
            if isinstance(written, dict) and written.get("slot") == self._options.slot:
                self._move(written)

    def _move(self, written: dict[str, Any]) -> None:
        try:
            self._identity = self._identity or self._place.state().identity
            offset = read_offset(written, self._identity)
            move_slot(self._options, self._place, offset.sequence)
        except ConfigurationError:
            return  # a slot of that name in another journal
        except (JournalError, ClientError) as error:
            log.warning("The slot %s was not moved: %s", self._options.slot, error)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing new."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """The last progress has come before."""


def follow(spark: SparkSession, options: Mapping[str, str]) -> SlotMover:
    """Move a query's slot after each of its batches, the last one included.

    `options` are those of the query's source, `slot` among them. Call it before the query starts;
    `spark.streams.removeListener` ends it. Raises ConfigurationError.
    """
    parsed = parse_options(options)
    if not parsed.slot:
        raise ConfigurationError("option slot: without it there is no slot to move")
    mover = SlotMover(parsed)
    spark.streams.addListener(mover)
    return mover
