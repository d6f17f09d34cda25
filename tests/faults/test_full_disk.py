"""A write that fails for a reason other than lack of space: the broker logs the reason and ends,
and no confirmed message is lost. After the reason is removed, it serves all messages that clients
have received. A full disk does not end the broker, see test_low_space.py."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ConnectionLost
from tests.faults.load import MAX_LEAD, Load, drain
from tests.faults.plan import seeded_random, size
from tests.faults.recorder import Recorder

PHPMQ = ["phpmq://127.0.0.1:0"]
JOURNAL_FAILED = 74
START_FAILED = 1
FILE_LIMIT = 400_000
"""Bytes that the load writes in less than a second."""
PLENTY = 1 << 40
TOO_LARGE = re.compile("File too large")

Resize = Callable[[int], None]
"""Set the maximum file size; `PLENTY` = enough."""


@contextmanager
def limited_files() -> Iterator[Resize]:
    """Limit the size of all files, beyond which writes fail with EFBIG; needs no privileges."""

    def resize(limit_bytes: int) -> None:
        # the broker inherits the limit; raising it does not affect a running broker
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        soft = hard if limit_bytes == PLENTY else limit_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    try:
        yield resize
    finally:
        resize(PLENTY)


LIMITS = ["files", "files and log"]
"""Files that are limited: those of the journal, with or without the log."""


@pytest.mark.parametrize("limit", LIMITS)
def test_broker_ends_if_files_cannot_grow(tmp_path: Path, limit: str) -> None:
    rng = seeded_random()
    directory = tmp_path / "broker"
    broker = LocalBroker(directory, PHPMQ)
    recorder = Recorder()
    with ExitStack() as stack:
        if limit == "files and log":
            directory.mkdir()
            broker.log.symlink_to("/dev/full")
        resize = stack.enter_context(limited_files())
        stack.callback(broker.stop)
        next_number = 0
        for iteration in range(size(1, 10)):
            resize(PLENTY)
            if iteration:
                broker.start()
                drain(broker.port("phpmq"), recorder)
                recorder.drained()
                assert broker.stop() == 0
            limit_bytes = FILE_LIMIT + rng.randrange(FILE_LIMIT)
            resize(limit_bytes)
            broker.start()
            max_lead = MAX_LEAD[iteration % 2]
            load = Load(broker.port("phpmq"), next_number, recorder, rng, 1000, max_lead)
            assert broker.wait() == JOURNAL_FAILED
            next_number = load.end()
            _start_with_full_disk(broker)
        resize(PLENTY)
        broker.start()
        drain(broker.port("phpmq"), recorder)
        assert recorder.highest > 0
        recorder.drained()
        assert broker.stop() == 0
        if limit != "files and log":
            log = broker.log.read_text()
            assert "Traceback" not in log
            assert TOO_LARGE.search(log)


def _start_with_full_disk(broker: LocalBroker) -> None:
    """Start the broker, which succeeds or reports an error, depending on its writes."""
    try:
        broker.start()
    except ConnectionLost:
        assert broker.wait() in (START_FAILED, JOURNAL_FAILED)
    else:
        time.sleep(0.1)
        broker.kill()
