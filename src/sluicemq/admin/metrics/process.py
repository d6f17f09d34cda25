"""Metrics of the process, from the operating system and from Python."""

from __future__ import annotations

import gc
import os
import resource
import time
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from sluicemq.admin.metrics.exposition import Exposition
from sluicemq.admin.metrics.families import (
    COLLECTIONS,
    CPU,
    FILES,
    FILES_LIMIT,
    PAUSES,
    RESIDENT,
    STARTED,
    THREADS,
)
from sluicemq.model.histogram import Histogram

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = resource.getpagesize()


class Pauses:
    """Recorder of the pauses of the garbage collector. It costs two calls per collection, and only
    after the first scrape."""

    def __init__(self) -> None:
        self.seen = Histogram()
        self._began = 0.0
        self._counting = False

    def begin(self) -> None:
        """Start recording; a second call has no effect."""
        if not self._counting:
            self._counting = True
            gc.callbacks.append(self._mark)

    def _mark(self, phase: str, details: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seen.record(time.perf_counter() - self._began)


class Usage(NamedTuple):
    """CPU time in seconds, start time in seconds since the epoch, resident bytes, threads."""

    cpu: float
    started: float
    resident: int
    threads: int


def usage() -> Usage:
    """Return the present usage; zeros on systems other than Linux."""
    try:
        line = Path("/proc/self/stat").read_text()
    except OSError:
        return Usage(0.0, 0.0, 0, 0)
    # the name of the program comes before and may contain anything
    fields = line.rpartition(")")[2].split()
    return Usage(
        cpu=(int(fields[11]) + int(fields[12])) / _TICKS,
        started=_booted() + int(fields[19]) / _TICKS,
        resident=int(fields[21]) * _PAGE,
        threads=int(fields[17]),
    )


@cache
def _booted() -> float:
    """Return the start time of the system. Read once, because clock adjustments would move it and
    look like a restart of the process."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def open_files() -> int:
    """Return the number of open file descriptors; 0 if unknown."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # one of them reads the directory
    except OSError:
        return 0


def add_process(into: Exposition, pauses: Pauses) -> None:
    """Add all families of the process."""
    now = usage()
    if now.started:
        into.add(CPU, now.cpu)
        into.add(RESIDENT, now.resident)
        into.add(STARTED, round(now.started, 2))
        into.add(THREADS, now.threads)
    into.add(FILES, open_files())
    into.add(FILES_LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for generation, figures in enumerate(gc.get_stats()):
        into.add(COLLECTIONS, figures["collections"], str(generation))
    into.add_histogram(PAUSES, pauses.seen.read())
