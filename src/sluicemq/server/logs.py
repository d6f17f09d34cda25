"""Structured logs on standard error: for people, or one JSON object a line."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Final, TextIO, cast

import structlog
from structlog.typing import Processor

from sluicemq.server.config import LoggingSettings

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


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
    renderer: Processor
    if settings.format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.level]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, StandardError())),
        cache_logger_on_first_use=True,
    )
