"""Length and seed of the fault tests.

FAULT_LONG=1  run the long form, like `make faults`
FAULT_SEED=N  repeat the random choices of a failed run, which prints its seed
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TypeVar

Count = TypeVar("Count", int, float)

LONG = os.environ.get("FAULT_LONG", "") not in ("", "0")

SMALL_SEGMENTS = {"SLUICEMQ_JOURNAL__SEGMENT_BYTES": "1 MiB"}
"""Segment size at which faults also occur during sealing, snapshots and segment removal."""


def size(short: Count, long: Count) -> Count:
    """Return `short` for `make test` and `long` for `make faults`."""
    return long if LONG else short


def seeded_random() -> random.Random:
    """Return the random generator of a test, and print its seed."""
    setting = os.environ.get("FAULT_SEED")
    seed = random.SystemRandom().randrange(1 << 32) if setting is None else int(setting)
    print(f"to repeat: FAULT_SEED={seed}{' FAULT_LONG=1' if LONG else ''}")
    return random.Random(seed)


def machine(*faults: str) -> tuple[str, ...]:
    """Return the command to start instead of `sluicemq`; machine.py lists the faults."""
    return (str(Path(__file__).with_name("machine.py")), ",".join(faults))
