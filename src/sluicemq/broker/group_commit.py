"""Group commit: the end of an iteration, and the callbacks for what is written and durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from sluicemq.broker.pending.entry import DELAYED, READY

if TYPE_CHECKING:
    from sluicemq.broker.publishing import Publisher
    from sluicemq.broker.state import Core


class GroupCommit:
    """Commits the records of each iteration, and confirms what the journal has made durable."""

    def __init__(self, core: Core, publisher: Publisher) -> None:
        self._core = core
        self._journal = core.journal
        self._publisher = publisher
        self._confirmations: deque[tuple[int, Callable[[], None]]] = deque()
        self._settlements: list[Callable[[], None]] = []
        self._commit_callbacks: deque[tuple[int, Callable[[], None]]] = deque()
        self._committing = False
        self._syncing = False
        """True while a timer runs for records not yet synced, or held back for the next write."""
        self._overdue = False
        """True once the timer has expired: the next commit is synced."""

    def when_durable(self, sequence: int, callback: Callable[[], None]) -> None:
        """Call `callback` once all records up to `sequence` are on disk; immediately if they
        are.
        """
        if sequence <= self._journal.durable:
            callback()
        else:
            self._confirmations.append((sequence, callback))

    def when_completed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the acknowledgements made so far are written.

        The call follows after this event loop iteration. Written acknowledgements survive the end
        of this process; they are on disk within the journal's `flush_interval`.
        """
        self._settlements.append(callback)

    def commit(self) -> None:
        """End an iteration: commit the appended records to the journal.

        The journal syncs now if a message or a publisher waits for it, otherwise later.
        """
        journal = self._journal
        if self._settlements:
            settlements, self._settlements = self._settlements, []
            settled = self._core.settled
            for callback in settlements:
                if settled <= journal.written:
                    callback()
                else:
                    self._commit_callbacks.append((settled, callback))
        if self._core.event_recorder.end_iteration():
            if journal.pending or self._overdue or self._core.stopping:
                self._core.event_recorder.write()
            else:
                self._set_alarm()
        sync = bool(self._publisher.staged or self._confirmations or self._overdue)
        self._overdue = False
        self._committing = True
        try:
            journal.commit(sync)
        finally:
            self._committing = False

    def _set_alarm(self) -> None:
        """Set a timer to write and sync records for which no client waits."""
        if not self._syncing:
            self._syncing = True
            core = self._core
            core.timers.add(core.clock.steady + self._journal.flush_interval, self._sync, None)

    def _sync(self, argument: None) -> None:
        # not now: records of this iteration may precede acknowledgements that are not yet appended
        self._syncing = False
        self._overdue = True

    def on_written(self, sequence: int) -> None:
        """Confirm the acknowledgements up to `sequence`, which are written but not yet durable."""
        settled = self._commit_callbacks
        while settled and settled[0][0] <= sequence:
            settled.popleft()[1]()
        if sequence > self._journal.durable and not self._syncing:
            if not self._committing:
                self._core.wake()  # the event loop must recompute its deadline for the new timer
            self._set_alarm()

    def on_durable(self, sequence: int) -> None:
        """Make staged messages visible and confirm everything up to `sequence`."""
        core = self._core
        if core.observer is not None:
            core.observer.durable(sequence)
        self._publisher.show_durable(sequence)
        if core.unpaged:
            _page_out_until(core, sequence)
        confirmations = self._confirmations
        while confirmations and confirmations[0][0] <= sequence:
            confirmations.popleft()[1]()
        if not self._committing:
            core.wake()


def _page_out_until(core: Core, durable: int) -> None:
    """Page out bodies over the budget that have become durable."""
    unpaged = core.unpaged
    while unpaged and unpaged[0].sequence <= durable:
        delivery = unpaged.popleft()
        waits = delivery.state == READY or delivery.state == DELAYED
        if waits and delivery.message is not None and core.memory > core.memory_budget:
            core.page_out(delivery)
