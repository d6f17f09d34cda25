"""Length of a fault campaign, and its repetition.

FAULT_LONG=1  the long form, as `make faults` runs it
FAULT_SEED=N  the random choices of a run that has failed; each test prints its own
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TypeVar

Count = TypeVar("Count", int, float)

LONG = os.environ.get("FAULT_LONG", "") not in ("", "0")

SMALL_SEGMENTS = {"SLUICEMQ_JOURNAL__SEGMENT_BYTES": "1 MiB"}
"""Segment size at which the faults also meet sealing, snapshots and the removal of segments."""


def size(short: Count, long: Count) -> Count:
    """Return the count or duration for the current form: `make test` or `make faults`."""
    return long if LONG else short


def repeatable() -> random.Random:
    """Return the source of all random choices of a test. pytest shows its seed on failure."""
    setting = os.environ.get("FAULT_SEED")
    seed = random.SystemRandom().randrange(1 << 32) if setting is None else int(setting)
    print(f"to repeat: FAULT_SEED={seed}{' FAULT_LONG=1' if LONG else ''}")
    return random.Random(seed)


def machine(*faults: str) -> tuple[str, ...]:
    """Return the command to start instead of `sluicemq`; machine.py lists the faults."""
    return (str(Path(__file__).with_name("machine.py")), ",".join(faults))
