"""Conversion of the engine's part of a snapshot to older versions of the journal's format."""

from __future__ import annotations

from sluicemq.broker.codec import decode_state, encode


def state_of_version_1(payload: bytes) -> bytes:
    """Return a state without the data that version 1 lacks: batches, pauses and unacked deliveries.

    A stopped broker has no unacked deliveries: they count among the attempts.
    """
    if not payload:
        return payload
    state = decode_state(payload)
    settings = [
        (
            each.kind,
            each.name,
            each.settings,
            each.temporary,
            each.automatic,
            each.created,
            each.raw_name,
        )
        for each in state.settings
    ]
    return encode(
        (
            settings,
            state.subscriptions,
            state.pending,
            state.attempts,
            state.requeued,
            state.prepared,
            state.next_subscription,
        )
    )


def writers_in(payload: bytes) -> int:
    """Return the number of writers of batches in a state."""
    return len(decode_state(payload).writers) if payload else 0
