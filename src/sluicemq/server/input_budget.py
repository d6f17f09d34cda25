"""Memory for the unfinished input of connections, shared by all listeners.

A connection holds input when its session has bytes that it cannot process yet: half a frame, the
beginning of an HTTP body, requests after a login. `Connection` reports the number after each read.

    used <= limit      every connection is read
    used >  limit      only one connection, the `reader`, is still read: the one that has held input
                       for the longest time and does not pause reading itself. Every other
                       connection whose input grows is suspended. When the reader's frame is
                       complete, or the reader ends, the next one is chosen
    others > ceiling   a connection other than the reader whose input grows is closed if all but
                       the reader hold so much: each may add one read before it is suspended, and
                       there may be many

The reader may exceed the limit by one frame, so the budget cannot deadlock. `Connection` closes a
reader that makes too little progress, so that it does not keep the others waiting for hours.

Frames that are decompressed in another thread need memory that no connection holds yet. It is
reserved before that begins, and counts as used. The first reservation may exceed the limit.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

READ_BYTES: Final = 256 * 1024
"""Maximum bytes of a single read of the event loop."""
CEILING_FACTOR: Final = 2
"""Ceiling of the budget, in multiples of its limit."""
_PROGRESS_BYTES: Final = 16 * 1024
"""Bytes of an unfinished frame that count as progress. Otherwise a client could send one byte at a
time and hold the memory for input for as long as it likes."""
_PROGRESS_SHARE: Final = 128
"""Progress of the reader while the budget is exhausted, as a fraction of the limit: a frame as
large as the limit is complete, or its connection closed, after 128 times `stall_timeout`."""


class InputHolder(Protocol):
    """Interface of a connection for the budget.

    held_bytes  size of the input that it holds, as last reported; written by the budget only
    """

    held_bytes: int

    @property
    def awaits_no_input(self) -> bool:
        """True if more input would not complete the held input.

        The session has paused reading or waits for another event, or the connection is closing.
        """

    def set_suspended(self, suspended: bool) -> None:
        """Suspend or resume reading. The budget has the new state already."""

    def review_input(self, now: int, exhausted_since: int) -> None:
        """Report the held input, and enforce deadlines. Called once a second while it holds input.

        now              steady ms
        exhausted_since  steady ms since which the budget has been exhausted; -1 if it is not
        """


class InputBudget:
    """Count the input that connections hold, and suspend connections beyond `limit` bytes."""

    def __init__(self, limit: int, stall_timeout: float) -> None:
        """`limit` in bytes, at least 1. `stall_timeout` in seconds: a connection that is read and
        makes no progress for this time while the budget is exhausted is closed."""
        self.limit = limit
        self.stall_timeout = stall_timeout
        self.ceiling = CEILING_FACTOR * limit
        self.used = 0
        """Bytes held by all connections, and reserved."""
        self.reserved = 0
        """Bytes reserved for frames that are being decompressed."""
        self._holders: dict[InputHolder, None] = {}
        """Connections that hold input, the one with the oldest unfinished frame first."""
        self.suspended: dict[InputHolder, None] = {}
        """Connections that are not read until there is room."""
        self._reader: InputHolder | None = None
        """Connection that is still read while the budget is exhausted, else None."""
        self._exhausted_since = -1

    @property
    def holders(self) -> int:
        """Number of connections that hold input."""
        return len(self._holders)

    @property
    def progress_bytes(self) -> int:
        """Bytes of an unfinished frame that count as progress now."""
        share = self.limit // _PROGRESS_SHARE if self.used > self.limit else 0
        return max(_PROGRESS_BYTES, share)

    def report(self, holder: InputHolder, held_bytes: int) -> bool:
        """Record that a connection holds `held_bytes` now.

        Returns False if it has to be closed because the ceiling is exceeded.
        """
        before = holder.held_bytes
        holder.held_bytes = held_bytes
        self.used += held_bytes - before
        if held_bytes < before or not before:
            # Less than before: a frame is complete, and the next one is younger than all others.
            self._holders.pop(holder, None)
            if self._reader is holder:
                self._reader = None
            if held_bytes:
                self._holders[holder] = None
            elif holder in self.suspended:
                self._resume(holder)
        self.balance()
        if self.used <= self.limit or held_bytes <= before or holder is self._reader:
            return True
        other_bytes = (
            self.used - self.reserved - (0 if self._reader is None else self._reader.held_bytes)
        )
        if other_bytes > self.ceiling:
            return False
        if holder not in self.suspended:
            self.suspended[holder] = None
            holder.set_suspended(True)
        return True

    def release(self, holder: InputHolder) -> None:
        """Forget a connection that is closing and holds nothing any more. It is not resumed."""
        if not holder.held_bytes:
            return
        self.used -= holder.held_bytes
        holder.held_bytes = 0
        self._holders.pop(holder, None)
        self.suspended.pop(holder, None)
        if self._reader is holder:
            self._reader = None
        self.balance()

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes that no connection holds.

        Return False if the budget has too little room and other bytes are reserved. The caller may
        retry when those are released.
        """
        if self.reserved and self.used + size > self.limit:
            return False
        self.reserved += size
        self.used += size
        self.balance()
        return True

    def unreserve(self, size: int) -> None:
        """Release `size` reserved bytes."""
        self.reserved -= size
        self.used -= size
        self.balance()

    def balance(self) -> None:
        """Choose the reader while the budget is exhausted; else resume as many connections as there
        is room for, in the order in which they were suspended."""
        if self.used > self.limit:
            reader = self._reader
            if reader is None or reader.awaits_no_input:
                reader = next(
                    (candidate for candidate in self._holders if not candidate.awaits_no_input),
                    None,
                )
                self._reader = reader
            if reader is not None and reader in self.suspended:
                self._resume(reader)
            return
        self._reader = None
        self._exhausted_since = -1
        if self.suspended:
            capacity = max(1, (self.limit - self.used) // READ_BYTES)
            for holder in list(islice(self.suspended, capacity)):
                self._resume(holder)

    def review(self, now: int) -> None:
        """Enforce the deadlines of all connections that hold input. `now` is steady ms."""
        if self.used > self.limit and self._exhausted_since < 0:
            self._exhausted_since = now
        for holder in list(self._holders):
            holder.review_input(now, self._exhausted_since)
        self.balance()

    def _resume(self, holder: InputHolder) -> None:
        del self.suspended[holder]
        holder.set_suspended(False)
