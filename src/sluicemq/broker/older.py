"""The engine's part of a snapshot as older versions of the journal's format tell it."""

from __future__ import annotations

from sluicemq.broker.codec import decode_state, encode


def state_of_version_1(payload: bytes) -> bytes:
    """Without what has no place there: which batches have been written, and what is paused. What is
    in flight has none either, but of a broker that does not run nothing is: what was, counts among
    the attempts."""
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
    """How many writers of batches a state remembers."""
    return len(decode_state(payload).writers) if payload else 0
