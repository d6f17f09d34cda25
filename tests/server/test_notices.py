"""Rate limit of log lines that clients cause."""

from __future__ import annotations

from typing import Any

from sluicemq.server.logs import Notices


class RecordingLog:
    """A log function that records its calls, with a manual clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, text: str, **fields: Any) -> None:
        self.lines.append((text, fields))

    def clock(self) -> float:
        return self.now


def test_lines_over_limit_are_counted_until_next_minute() -> None:
    log = RecordingLog()
    notices = Notices(log, 2, log.clock)
    for number in range(5):
        notices.write(str(number))
    log.now += 59
    notices.write("5")
    assert log.lines == [("0", {}), ("1", {})]
    log.now += 1
    for number in range(6, 9):
        notices.write(str(number))
    assert log.lines[2:] == [("6", {"left_out": 4}), ("7", {})]


def test_limit_of_zero_suppresses_all_lines() -> None:
    log = RecordingLog()
    notices = Notices(log, 0, log.clock)
    notices.write("x")
    assert log.lines == []
