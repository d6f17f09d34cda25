"""What the operating system and Python say of this process."""

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
    """Measures how long the garbage collector stops the program. Costs two calls for each run of
    the collector, of which there are few, and only in a broker that has been asked for it."""

    def __init__(self) -> None:
        self.seen = Histogram()
        self._began = 0.0
        self._counting = False

    def begin(self) -> None:
        """From now on; a second call does nothing."""
        if not self._counting:
            self._counting = True
            gc.callbacks.append(self._mark)

    def _mark(self, phase: str, details: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seen.record(time.perf_counter() - self._began)


class Usage(NamedTuple):
    """Seconds of processor time, when the process started (seconds since the epoch), bytes in RAM,
    threads."""

    cpu: float
    started: float
    resident: int
    threads: int


def usage() -> Usage:
    """As of now; Linux only: all 0 elsewhere."""
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
    """When the system started. Asked once: clocks are adjusted, and a start that moves looks like
    another one."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def open_files() -> int:
    """Descriptors in use; 0 where that is not known."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # one of them reads the directory
    except OSError:
        return 0


def add_process(into: Exposition, pauses: Pauses) -> None:
    """All families of the process."""
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
