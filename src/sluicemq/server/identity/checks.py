"""Passwords are checked in a few threads beside the event loop, and few wait for one.

argon2 lets go of the interpreter, so that messages flow on meanwhile. Everything but the check
itself happens on the loop's thread; nothing here is locked.

    begin(attempt) ─ the same is under way ──> waits for its outcome
                   ├ the queue is full ──────> False
                   └ queue ─ throttled by now ──> refused, unchecked
                           └ thread ──> outcome

Attempts that were queued before the first of them failed are looked at by the throttle again when
their turn comes: sending many at once gains nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from sluicemq.server.identity.passwords import verify

THREADS: Final = 2
MOST_WAITING: Final = 256
"""Different attempts in the queue; at 20 ms and two threads the last waits for 2.5 s."""

CallSoon = Callable[..., Any]
"""Makes a call on the loop's thread: `loop.call_soon_threadsafe`."""


class Attempt:
    """One password for one stored hash, and who wants to know.

    key      says which attempts are the same
    wanted   asked when its turn comes: whether it is to be looked at still
    outcome  called with True or False, or with None when it was not wanted
    """

    __slots__ = ("key", "outcomes", "password", "stored", "wanted")

    def __init__(
        self,
        key: bytes,
        stored: str,
        password: str,
        wanted: Callable[[], bool],
        outcome: Callable[[bool | None], None],
    ) -> None:
        self.key = key
        self.stored = stored
        self.password = password
        self.wanted = wanted
        self.outcomes = [outcome]


class Checks:
    """See the module."""

    __slots__ = ("_attempts", "_call_soon", "_pool", "_running", "_threads", "_verify", "_waiting")

    def __init__(
        self,
        call_soon: CallSoon,
        *,
        threads: int = THREADS,
        verify: Callable[[str, str], bool] = verify,
    ) -> None:
        self._call_soon = call_soon
        self._threads = threads
        self._verify = verify
        self._pool = ThreadPoolExecutor(threads, "password")
        self._running = 0
        self._waiting: deque[Attempt] = deque()
        self._attempts: dict[bytes, Attempt] = {}
        """Those that wait or run."""

    def begin(self, attempt: Attempt) -> bool:
        """Check it; False if too many wait already."""
        same = self._attempts.get(attempt.key)
        if same is not None:
            same.outcomes += attempt.outcomes
            return True
        if len(self._waiting) >= MOST_WAITING:
            return False
        self._attempts[attempt.key] = attempt
        self._waiting.append(attempt)
        self._advance()
        return True

    def close(self) -> None:
        """Nobody wants to know any more."""
        self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _advance(self) -> None:
        while self._waiting and self._running < self._threads:
            attempt = self._waiting.popleft()
            if attempt.wanted():
                self._running += 1
                self._pool.submit(self._check, attempt)
            else:
                self._tell(attempt, None)

    def _check(self, attempt: Attempt) -> None:
        right = self._verify(attempt.stored, attempt.password)
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            self._call_soon(self._finish, attempt, right)

    def _finish(self, attempt: Attempt, right: bool) -> None:
        self._running -= 1
        self._tell(attempt, right)
        self._advance()

    def _tell(self, attempt: Attempt, outcome: bool | None) -> None:
        del self._attempts[attempt.key]
        for tell in attempt.outcomes:
            tell(outcome)
