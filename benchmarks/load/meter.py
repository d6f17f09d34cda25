"""Cost of a run: processor time and memory of the broker and of the generator.

Rates depend on the other load of the machine; processor time per message hardly does.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from .result import Latency, TransferResult

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return user and system time of all threads of a process (`/proc/PID/stat`, 10 ms steps).

    Raises OSError.
    """
    # the program's name is in parentheses and may contain spaces
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_bytes(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process, present and peak, in bytes. Raises OSError."""
    kilobytes = {"VmRSS": 0, "VmHWM": 0}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in kilobytes:
            kilobytes[name] = int(value.split()[0])
    return kilobytes["VmRSS"] * 1024, kilobytes["VmHWM"] * 1024


class Meter:
    """Meter that runs from its construction until `read`."""

    def __init__(self, pid: int | None) -> None:
        """Start the meter. `pid` is the broker's process; None = unknown, such as on another
        machine."""
        self._pid = pid
        self._broker = cpu_seconds(pid) if pid is not None else 0.0
        self._generator = time.process_time()
        self._started = time.perf_counter()

    @property
    def started(self) -> float:
        """Return the start time (`time.perf_counter`)."""
        return self._started

    def read(
        self,
        messages: int,
        *,
        target_rate: int = 0,
        delays: list[int] | None = None,
        late: float = 0.0,
    ) -> TransferResult:
        """Return the cost of `messages` (at least 1) until now; the other arguments are for steady
        runs."""
        seconds = time.perf_counter() - self._started
        generator = time.process_time() - self._generator
        broker, resident, peak = 0.0, 0, 0
        if self._pid is not None:
            broker = cpu_seconds(self._pid) - self._broker
            resident, peak = memory_bytes(self._pid)
        return TransferResult(
            messages=messages,
            seconds=round(seconds, 4),
            rate=round(messages / seconds),
            broker_us=round(broker / messages * 1e6, 3),
            generator_us=round(generator / messages * 1e6, 3),
            resident_bytes=resident,
            peak_bytes=peak,
            target_rate=target_rate,
            late_ms=round(late, 3),
            latency=Latency.of(delays) if delays else None,
        )
