"""Random histories compared with a model.

The live records never depend on segment switches, snapshots, moves, removals or replays.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.journal import FileJournal, JournalOptions, RecordType
from sluicemq.journal.inspect import check
from tests.journal.support import ORDERS, T0, crash, live_of, make_message

OPTIONS = JournalOptions(segment_bytes=700, compaction_threshold=0.9)

operations = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 300), st.sampled_from([1, 1, 1, 2, 300])),
    st.tuples(st.just("settle"), st.integers(0, 10**6), st.integers(1, 4)),
    st.tuples(st.just("setting"), st.integers(0, 99), st.just(0)),
    st.tuples(st.just("number"), st.integers(1, 5), st.just(0)),
    st.tuples(
        st.sampled_from(["sync", "sync", "seal", "crash", "close", "fetch"]),
        st.just(0),
        st.just(0),
    ),
)


class Model:
    """Expected state of the journal: the live messages and all settings."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.live: dict[int, tuple[bytes, int]] = {}
        self.settings: list[int] = []
        self.saved: tuple[dict[int, tuple[bytes, int]], list[int]] = ({}, [])
        self.open()

    def open(self) -> None:
        self.journal = FileJournal.open(self.directory, OPTIONS)
        recovery = self.journal.recovery
        settings = json.loads(recovery.state or b"[]")
        settings += [
            int(e.body) for e in recovery.events() if e.type == RecordType.DESTINATION_SETTINGS
        ]
        assert settings == self.settings
        rows = list(recovery.live_rows())
        assert [row.sequence for row in rows] == sorted(self.live)
        assert {row.sequence: row.references for row in rows} == {
            sequence: references for sequence, (_, references) in self.live.items()
        }
        assert {row.sequence: row.size for row in rows} == {
            sequence: len(body) for sequence, (body, _) in self.live.items()
        }
        assert live_of(self.journal) == {s: body for s, (body, _) in self.live.items()}
        self.journal.set_snapshot_source(lambda: json.dumps(self.settings).encode())
        recovery.close()

    def put(self, size: int, references: int) -> None:
        body = bytes([size % 251]) * size
        number = self.journal.destination_number(ORDERS)
        sequence = self.journal.append_message(make_message(body), number, references)
        self.live[sequence] = (body, references)

    def settle(self, seed: int, count: int) -> None:
        live_sequences = sorted(self.live)
        sequences = [
            live_sequences[(seed + i * 7) % len(live_sequences)]
            for i in range(min(count, len(live_sequences)))
        ]
        self.journal.append_completed(1, 1, 1, sequences, T0)
        for sequence in sequences:
            body, references = self.live.get(sequence, (b"", 0))
            if references > 1:
                self.live[sequence] = (body, references - 1)
            else:
                self.live.pop(sequence, None)

    def setting(self, value: int, _: int) -> None:
        self.journal.append_entry(RecordType.DESTINATION_SETTINGS, b"%d" % value, T0)
        self.settings.append(value)

    def number(self, count: int, _: int) -> None:
        for _ in range(count):
            self.journal.next_sequence()

    def sync(self, *_: int) -> None:
        self.journal.sync()
        self.saved = (dict(self.live), list(self.settings))

    def seal(self, *_: int) -> None:
        self.journal.seal()
        self.sync()

    def crash(self, *_: int) -> None:
        crash(self.journal)
        self.live, self.settings = dict(self.saved[0]), list(self.saved[1])
        self.open()

    def close(self, *_: int) -> None:
        self.journal.close()
        self.saved = (dict(self.live), list(self.settings))
        self.open()

    def fetch(self, *_: int) -> None:
        for sequence, (body, _) in self.live.items():
            assert self.journal.fetch(sequence).body == body


@settings(max_examples=60, deadline=None)
@given(st.lists(operations, max_size=60))
def test_any_history_is_recovered(history: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        model = Model(Path(name))
        for operation, first, second in history:
            action: Callable[[int, int], None] = getattr(model, operation)
            action(first, second)
        model.crash()
        report = check(model.directory)
        assert report.problems == []
        model.close()
        model.journal.close()
