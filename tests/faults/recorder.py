"""An independent record of client observations, and the resulting guarantees after a crash.

One producer numbers the messages; the queue is FIFO. Observations of clients prove:

confirmed  the broker has confirmed the message to the producer: it is on disk
delivered  a consumer has received the message: it is on disk, and so are all messages sent before
           it to the same process of the broker (messages that a killed process had not stored yet
           may be missing)
acked      the consumer has acknowledged the message and received a fence that it sent later on the
           same connection: the acknowledgement was journaled before the fence, so it is on disk
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Recorder:
    """Records the observations of clients; raises AssertionError if a guarantee is violated."""

    highest: int = -1
    runs: list[list[int]] = field(default_factory=list)
    """For each broker process: the first number sent to it, the highest number delivered."""
    acknowledged_numbers: set[int] = field(default_factory=set)
    confirmed_numbers: set[int] = field(default_factory=set)
    confirmed_acks: set[int] = field(default_factory=set)
    unconfirmed_acks: set[int] = field(default_factory=set)
    last: int = -1
    """Number delivered last on the current connection."""
    received: set[int] = field(default_factory=set)
    """Numbers delivered on the current connection."""

    def started(self, first: int) -> None:
        """Record a new process of the broker; numbers from `first` on go to it."""
        self.runs.append([first, -1])

    def connected(self) -> None:
        """Record that a new consumer has connected."""
        self.last = -1
        self.received = set()

    def delivered(self, number: int) -> None:
        """Record the delivery of a numbered message."""
        assert number not in self.confirmed_acks, (
            f"{number} was redelivered after its acknowledgement was on disk"
        )
        assert number not in self.received, f"{number} was delivered twice on one connection"
        assert number > self.last, f"{number} was delivered after {self.last}"
        self.received.add(number)
        self.last = number
        self.highest = max(self.highest, number)
        run = self.runs[bisect_right(self.runs, [number, 1 << 62]) - 1]
        run[1] = max(run[1], number)

    def confirmed(self, numbers: Iterable[int]) -> None:
        """Record the numbers that the broker has confirmed to the producer."""
        self.confirmed_numbers.update(numbers)

    def acknowledged(self, number: int) -> None:
        """Record an acknowledgement, which a crash may still undo."""
        self.acknowledged_numbers.add(number)
        self.unconfirmed_acks.add(number)

    def fenced(self, numbers: set[int]) -> None:
        """Record the return of a fence that was sent after acknowledging `numbers`."""
        self.confirmed_acks |= numbers
        self.unconfirmed_acks -= numbers

    def drained(self) -> None:
        """Check that no message is missing after all ready messages have been delivered."""
        accounted = self.acknowledged_numbers | self.received
        for first, highest in self.runs:
            for number in range(first, highest + 1):
                assert number in accounted, f"{number} was on disk like {highest}, and is lost"
        for number in self.confirmed_numbers:
            assert number in accounted, f"{number} had been confirmed and is lost"
