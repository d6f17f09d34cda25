"""What a run costs: the processor time and the memory of the broker, and of this generator.

Rates depend on what else the machine does; processor time per message hardly does.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from sluicemq.cli.bench.result import Latency, Run

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far (`/proc/PID/stat`, 10 ms steps).

    Raises OSError.
    """
    # the name of the program stands in brackets and may hold blanks
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_bytes(pid: int) -> tuple[int, int]:
    """Memory of a process that is in RAM: now, and the most so far. Raises OSError."""
    kilobytes = {"VmRSS": 0, "VmHWM": 0}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in kilobytes:
            kilobytes[name] = int(value.split()[0])
    return kilobytes["VmRSS"] * 1024, kilobytes["VmHWM"] * 1024


class Meter:
    """Runs from its making to `read`."""

    def __init__(self, pid: int | None) -> None:
        """`pid` is the broker's process; None = unknown, on another machine perhaps."""
        self._pid = pid
        self._broker = cpu_seconds(pid) if pid is not None else 0.0
        self._generator = time.process_time()
        self._started = time.perf_counter()

    @property
    def started(self) -> float:
        """When (`time.perf_counter`)."""
        return self._started

    def read(
        self, messages: int, *, asked: int = 0, delays: list[int] | None = None, late: float = 0.0
    ) -> Run:
        """What `messages` (at least 1) have cost until now; the rest is for steady runs."""
        seconds = time.perf_counter() - self._started
        generator = time.process_time() - self._generator
        broker, resident, peak = 0.0, 0, 0
        if self._pid is not None:
            broker = cpu_seconds(self._pid) - self._broker
            resident, peak = memory_bytes(self._pid)
        return Run(
            messages=messages,
            seconds=round(seconds, 4),
            rate=round(messages / seconds),
            broker_us=round(broker / messages * 1e6, 3),
            generator_us=round(generator / messages * 1e6, 3),
            resident_bytes=resident,
            peak_bytes=peak,
            asked=asked,
            late_ms=round(late, 3),
            latency=Latency.of(delays) if delays else None,
        )
