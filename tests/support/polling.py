"""Wait for an effect of another process, thread or connection."""

from __future__ import annotations

import time
from collections.abc import Callable

INTERVAL_SECONDS = 0.02


def wait_until(
    condition: Callable[[], bool],
    failure: str = "the condition is not met in time",
    seconds: float = 30,
) -> None:
    """Call `condition` until it is true; fail with `failure` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, failure
        time.sleep(INTERVAL_SECONDS)
