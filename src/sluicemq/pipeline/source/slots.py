"""Retention slots that move with a query."""

from __future__ import annotations

from sluicemq.model.errors import ClientError, JournalError, RecordNotFound
from sluicemq.pipeline.source.journal_storage import JournalStorage
from sluicemq.pipeline.source.options import SourceOptions
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


def move_slot(options: SourceOptions, place: JournalStorage, sequence: int) -> bool:
    """Acknowledge everything before `sequence`.

    Return False if the broker does not answer: that is no reason to end a query, try again with the
    next batch. Raises JournalError if the slot is lost, or warns as `slot_is_lost`.
    """
    try:
        place.advance(options.slot, sequence - 1)
    except RecordNotFound:
        slot_is_lost(options, "somebody has dropped it")
    except JournalError as error:
        slot_is_lost(options, str(error))
    except ClientError as error:
        log.warning("The slot %s was not moved: %s", options.slot, error)
        return False
    return True
