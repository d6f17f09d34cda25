"""Structured logs on standard error: for people, or one JSON object a line.

Log lines that clients can cause are limited in number per minute (`Notices`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TextIO, cast

import structlog
from structlog.typing import Processor

from sluicemq.server.config import LoggingSettings

STANDARD_ERROR: Final = 2


class StandardError:
    """Log output to standard error.

    Write errors, such as a full disk or a closed pipe, are ignored: the broker continues without
    its log.

    Writes are unbuffered: a failing flush at exit would change the exit code of the process.
    """

    def write(self, text: str) -> int:
        """Write the text and return its number of characters."""
        data = text.encode(errors="backslashreplace")
        with suppress(OSError):
            while data:
                data = data[os.write(STANDARD_ERROR, data) :]
        return len(text)

    def flush(self) -> None:
        """Do nothing: writes are unbuffered."""


def configure(settings: LoggingSettings) -> None:
    """Configure structlog for the whole process according to `settings`."""
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[settings.level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, StandardError())),
        cache_logger_on_first_use=True,
    )


_MINUTE: Final = 60.0
"""Seconds."""


class Notices:
    """Log of at most `max_lines` lines per minute.

    The first line of a later minute has a field `left_out`: the number of suppressed lines."""

    def __init__(self, log: Callable[..., Any], max_lines: int, clock: Callable[[], float]) -> None:
        """Write to `log`, which takes a text and fields; `clock` returns monotonic seconds."""
        self._log = log
        self._max_lines = max_lines
        self._clock = clock
        self._since = clock()
        self._written = 0
        self._suppressed = 0

    def write(self, text: str) -> None:
        """Write a line, or count it if this minute's lines are used up."""
        now = self._clock()
        if now - self._since >= _MINUTE:
            self._since = now
            self._written = 0
        if self._written >= self._max_lines:
            self._suppressed += 1
            return
        self._written += 1
        if self._suppressed:
            self._log(text, left_out=self._suppressed)
            self._suppressed = 0
        else:
            self._log(text)
