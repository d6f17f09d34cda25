"""Lease of the only writer of a lake on a file system without atomic creation of files.

Delta's commits to plain S3 are safe with one writer at a time. Pipelines of one broker exclude each
other by a slot of its journal, writer-HASH, where HASH is that of the lake's location. The slot
holds no segments; it has the name of the process that claimed it, and a lease:

    claim ─▶ renew every LEASE_MS / 3 ─▶ end of the pipeline: the lease is ended
                 │ another process has the slot, or no renewal for 2/3 LEASE_MS
                 └▶ the pipeline stops with the error

After a process was killed, the next one can claim the slot when the lease has ended.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Final

from sluicemq.model.errors import JournalError, SluiceError
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.source.journal_storage import JournalStorage

LEASE_MS: Final = 60_000
SINGLE_WRITER: Final = ("s3a",)
"""Schemes of file systems whose default log store needs it."""
_LOG_STORE: Final = "spark.delta.logStore.{}.impl"


def needs_lease(lake: Lake, setting: Callable[[str, str], str | None]) -> bool:
    """Return True unless the store creates files atomically, or has a log store that does.

    `setting` returns a setting of Spark, or the default.
    """
    return lake.scheme in SINGLE_WRITER and not setting(_LOG_STORE.format(lake.scheme), "")


@contextmanager
def writer_lease(lake: Lake, storage: JournalStorage, stop: threading.Event) -> Iterator[None]:
    """Have the lease in this context; set `stop` if it is lost.

    Raises JournalError with the name of its holder if another process has it, and the error if it
    was lost.
    """
    slot = f"writer-{hashlib.sha256(lake.location.encode()).hexdigest()[:12]}"
    # Process numbers and host names of containers may be the same.
    holder = f"process {os.getpid()} on {socket.gethostname()} ({token_hex(4)})"
    _claim(storage, lake, slot, holder)
    ended = threading.Event()
    errors: list[SluiceError] = []

    def renew() -> None:
        renewed = time.monotonic()
        while not ended.wait(LEASE_MS / 3000):
            try:
                _claim(storage, lake, slot, holder)
                renewed = time.monotonic()
            except SluiceError as error:  # the broker may be out of reach for a moment
                if isinstance(error, JournalError) or time.monotonic() - renewed > LEASE_MS / 1500:
                    errors.append(error)
                    stop.set()
                    return

    renewal = threading.Thread(target=renew, name="lease", daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()
        with suppress(SluiceError):
            storage.claim(slot, holder, 0)
    if errors:
        raise errors[0]


def _claim(storage: JournalStorage, lake: Lake, slot: str, holder: str) -> None:
    try:
        storage.claim(slot, holder, LEASE_MS)
    except JournalError as error:
        raise JournalError(
            f"the lake {lake} has another writer, and its store allows one at a time: {error}"
        ) from error
