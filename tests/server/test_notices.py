"""Log lines that clients can cause at any rate."""

from __future__ import annotations

from typing import Any

from sluicemq.server.logs import Notices


class Log:
    """A log and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, text: str, **fields: Any) -> None:
        self.lines.append((text, fields))

    def clock(self) -> float:
        return self.now


def test_lines_beyond_the_limit_are_counted_until_the_next_minute() -> None:
    log = Log()
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


def test_none_are_written_without_a_budget() -> None:
    log = Log()
    notices = Notices(log, 0, log.clock)
    notices.write("x")
    assert log.lines == []
