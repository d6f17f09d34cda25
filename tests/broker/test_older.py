"""State of the engine in an older format: all of it except batches and paused destinations."""

from __future__ import annotations

import msgspec

from sluicemq.broker.codec import (
    Attempts,
    EngineState,
    StoredSettings,
    WriterState,
    decode_state,
    encode,
)
from sluicemq.broker.older import state_of_version_1, writers_in
from sluicemq.model.destination import DestinationSettings, Kind


def test_the_state_has_the_fields_of_its_version() -> None:
    settings = StoredSettings(Kind.QUEUE, "a", DestinationSettings(max_messages=3), automatic=True)
    state = EngineState(
        [settings],
        [],
        [(1, bytes(8))],
        [Attempts(1, [(2, 3)])],
        [(1, 2, 3, 4)],
        [(5, b"prepared")],
        9,
        [],
        [WriterState("w", 1, 2, b"", b"", b"", [])],
    )
    payload = encode(state)
    older = state_of_version_1(payload)
    assert writers_in(payload) == 1
    assert writers_in(older) == 0
    fields = msgspec.msgpack.decode(older)
    assert len(fields) == 7
    assert len(fields[0][0]) == 7
    read = decode_state(older)
    assert (read.delivered, read.writers) == ([], [])
    assert read.settings == [settings]
    assert read.attempts == state.attempts
    assert (read.pending, read.requeued, read.prepared) == (
        state.pending,
        state.requeued,
        state.prepared,
    )
    assert read.next_subscription == 9


def test_no_state_stays_none() -> None:
    assert state_of_version_1(b"") == b""
    assert writers_in(b"") == 0
