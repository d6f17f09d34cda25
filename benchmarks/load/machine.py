"""Description of the machine, without which results cannot be compared."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from sluicemq.broker import COMPILED

from .result import Machine

_LIBRARIES: Final = ("uvloop", "msgspec")


def describe() -> Machine:
    """Describe this machine."""
    return Machine(
        python=f"{platform.python_implementation()} {platform.python_version()}"
        f"{', compiled' if COMPILED else ''}",
        kernel=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        libraries={name: version(name) for name in _LIBRARIES},
    )


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
