"""Detection of truncated partitions in a write task.

If an earlier step fails (an error in it, a killed Python worker), Spark closes its end of the
socket on which it sends the rows. Arrow takes that for the end of the rows, so the writer sees a
truncated partition and no error; the failure becomes known only after the writer has returned.
That is too late for messages: a truncated partition, once stored as complete, can neither be
withdrawn nor completed.

Therefore the writer checks, after the last row and before it sends the last part, that Spark's end
of the socket is still open, as it is in a successful task. No interface identifies Spark's socket;
it is one of those that were open before the first row. If another one of them was closed
meanwhile, the task is repeated unnecessarily.
"""

from __future__ import annotations

import os
import select
import stat
from typing import Final

from sluicemq.model.errors import ConnectionLost

_SOCKETS: Final = "/proc/self/fd"
_CLOSED: Final = select.POLLRDHUP | select.POLLHUP


class Feed:
    """Input sockets of one task; create it before the first row is read."""

    def __init__(self) -> None:
        sockets = _sockets()
        self._open = {each for each, closed in sockets.items() if not closed}

    def expect_whole(self) -> None:
        """Check that the rows ended normally. Raises ConnectionLost if Spark closed its socket."""
        sockets = _sockets()
        if not all(each in sockets and not sockets[each] for each in self._open):
            raise ConnectionLost(
                "Spark broke off the rows of this task: an earlier step has failed. The error is "
                "reported with the task's failure, or by the other attempts"
            )


def _sockets() -> dict[int, bool]:
    """Return the process's sockets by inode; True if the other end has closed."""
    poll = select.poll()
    inodes: dict[int, int] = {}
    for name in os.listdir(_SOCKETS):
        descriptor = int(name)
        try:
            status = os.fstat(descriptor)
        except OSError:  # the descriptor of the directory itself
            continue
        if stat.S_ISSOCK(status.st_mode):
            inodes[descriptor] = status.st_ino
            poll.register(descriptor, _CLOSED)
    closed = {descriptor for descriptor, events in poll.poll(0) if events & _CLOSED}
    return {inode: descriptor in closed for descriptor, inode in inodes.items()}
