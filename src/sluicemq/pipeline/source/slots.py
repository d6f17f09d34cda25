"""Retention slots of streaming queries."""

from __future__ import annotations

from sluicemq.model.errors import ClientError, JournalError, RecordNotFound
from sluicemq.pipeline.source.journal_storage import JournalStorage
from sluicemq.pipeline.source.options import SourceOptions
from sluicemq.pipeline.source.reading import log


def slot_is_lost(options: SourceOptions, why: str) -> None:
    """Raise JournalError, or log a warning if `fail_on_data_loss` is off."""
    message = (
        f"the slot {options.slot} protects nothing any more: {why}. Segments that this query has "
        "not read may have been removed. Drop the slot; the query creates a new one when it "
        "starts. If the query then reports removed records, follow that message."
    )
    if options.fail_on_data_loss:
        raise JournalError(message)
    log.warning("%s", message)


def move_slot(options: SourceOptions, place: JournalStorage, sequence: int) -> bool:
    """Acknowledge every record before `sequence` in the slot.

    Return False if the broker does not answer; the caller tries again with the next batch.
    Raises JournalError if the slot is lost, or logs a warning as `slot_is_lost` does.
    """
    try:
        place.advance(options.slot, sequence - 1)
    except RecordNotFound:
        slot_is_lost(options, "the slot has been dropped")
    except JournalError as error:
        slot_is_lost(options, str(error))
    except ClientError as error:
        log.warning("The slot %s was not moved: %s", options.slot, error)
        return False
    return True
