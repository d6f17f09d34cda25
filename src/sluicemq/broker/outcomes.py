"""Outcomes of delivery attempts, as observers are notified of them (Observer.ended)."""

from __future__ import annotations

from typing import Final

from sluicemq.journal.format import Cause

ACKNOWLEDGED: Final = "acknowledged"
RELEASED: Final = "released"
REDELIVERED: Final = "redelivered"
REPLACED: Final = "dead-lettered or moved"

_OUTCOMES: Final = {
    Cause.ACKNOWLEDGED: ACKNOWLEDGED,
    Cause.EXPIRED: "expired",
    Cause.DROPPED: "dropped",
    Cause.PURGED: "purged",
    Cause.DISCARDED: "discarded",
}


def outcome_of(cause: Cause) -> str:
    """Return the outcome of a delivery that the journal ends for this cause."""
    return _OUTCOMES.get(cause, REPLACED)
