"""Rate limit for log lines that clients can cause: a number per minute, the others counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_MINUTE: Final = 60.0
"""Seconds."""


class Notices:
    """Log of at most `most` lines per minute.

    The first line of a later minute has a field `left_out`: the number of suppressed lines."""

    __slots__ = ("_clock", "_left_out", "_log", "_most", "_since", "_written")

    def __init__(self, log: Callable[..., Any], most: int, clock: Callable[[], float]) -> None:
        """Write to `log`, which takes a text and fields; `clock` returns monotonic seconds."""
        self._log = log
        self._most = most
        self._clock = clock
        self._since = clock()
        self._written = 0
        self._left_out = 0

    def say(self, text: str) -> None:
        """Write a line, or count it if this minute's lines are used up."""
        now = self._clock()
        if now - self._since >= _MINUTE:
            self._since = now
            self._written = 0
        if self._written >= self._most:
            self._left_out += 1
            return
        self._written += 1
        if self._left_out:
            self._log(text, left_out=self._left_out)
            self._left_out = 0
        else:
            self._log(text)
