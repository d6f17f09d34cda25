"""Processes by their ids, from Linux's /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> Iterator[int]:
    """The processes that it has started, and they have."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return  # it has ended
    for task in tasks:
        try:
            children = (task / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)


def command_of(pid: int) -> str:
    """Its command line; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def kill_if_there(pid: int) -> None:
    """SIGKILL, if it has not ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
