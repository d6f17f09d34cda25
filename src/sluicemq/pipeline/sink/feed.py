"""Whether the rows that a task was given were all there are.

When what makes the rows fails (an error in an earlier step, a killed Python worker), Spark
closes its end of the socket on which it sends them. Arrow takes that for the end of the rows, so a
writer sees a partition that is shorter than it is, and nothing else; that the task has failed
becomes known when the writer has returned. For a table that is soon enough. Messages that were sent
and known as a whole partition could neither be taken back nor be completed.

So a writer asks, after the last row and before it sends the last part, whether Spark's end of the
socket is still open, as it is when all went well. Which of the process's sockets is Spark's no
interface tells: it is one of those that were open before the first row. If another one of them was
closed meanwhile, the task is repeated for nothing.
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
    """Of one task; made before its first row is read."""

    def __init__(self) -> None:
        sockets = _sockets()
        self._open = {each for each, closed in sockets.items() if not closed}

    def expect_whole(self) -> None:
        """The rows have come to an end. Raises ConnectionLost if that was not the partition's."""
        sockets = _sockets()
        if not all(each in sockets and not sockets[each] for each in self._open):
            raise ConnectionLost(
                "Spark broke off the rows of this task: what makes them has failed. The error is "
                "told with the task's failure, or by the other attempts"
            )


def _sockets() -> dict[int, bool]:
    """The sockets of this process by their inode, and whether the other end has closed."""
    poll = select.poll()
    inodes: dict[int, int] = {}
    for name in os.listdir(_SOCKETS):
        descriptor = int(name)
        try:
            status = os.fstat(descriptor)
        except OSError:  # that of the directory itself
            continue
        if stat.S_ISSOCK(status.st_mode):
            inodes[descriptor] = status.st_ino
            poll.register(descriptor, _CLOSED)
    closed = {descriptor for descriptor, events in poll.poll(0) if events & _CLOSED}
    return {inode: descriptor in closed for descriptor, inode in inodes.items()}
