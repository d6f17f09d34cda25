"""How long a campaign is, and how it is repeated.

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
"""So that the faults also meet sealing, snapshots and the removal of segments."""


def size(short: Count, long: Count) -> Count:
    """How many, or how long: in `make test` and in `make faults`."""
    return long if LONG else short


def repeatable() -> random.Random:
    """The source of all random choices of a test. pytest shows its seed when the test fails."""
    given = os.environ.get("FAULT_SEED")
    seed = random.SystemRandom().randrange(1 << 32) if given is None else int(given)
    print(f"to repeat: FAULT_SEED={seed}{' FAULT_LONG=1' if LONG else ''}")
    return random.Random(seed)


def machine(*faults: str) -> tuple[str, ...]:
    """What to start instead of `sluicemq`: see machine.py for the faults."""
    return (str(Path(__file__).with_name("machine.py")), ",".join(faults))
