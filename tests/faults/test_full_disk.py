"""A write that the system refuses for another reason than want of space: the broker ends, says why
and has confirmed nothing that is lost. When the reason is gone, everything that clients saw is
served. For a full disk, which does not end it, see test_low_space.py."""

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
from tests.faults.load import AHEAD, Load, drain
from tests.faults.plan import repeatable, size
from tests.faults.recorder import Recorder

PHPMQ = ["phpmq://127.0.0.1:0"]
JOURNAL_FAILED = 74
REFUSED = 1
ROOM = 400_000
"""Bytes that the load fills in less than a second."""
PLENTY = 1 << 40
NO_ROOM = re.compile("File too large")

Resize = Callable[[int], None]
"""Set how much room there is; `PLENTY` = enough."""


@contextmanager
def limited_files() -> Iterator[Resize]:
    """No file may grow beyond the room: the kernel refuses with EFBIG. Needs no rights."""

    def resize(room: int) -> None:
        # the broker inherits it, and a running one is not told of more room
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        soft = hard if room == PLENTY else room
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    try:
        yield resize
    finally:
        resize(PLENTY)


LIMITS = ["files", "files and log"]
"""What has no room: each file of the journal; these, and the log has none either."""


@pytest.mark.parametrize("limit", LIMITS)
def test_files_that_may_not_grow(tmp_path: Path, limit: str) -> None:
    chance = repeatable()
    directory = tmp_path / "broker"
    broker = LocalBroker(directory, PHPMQ)
    recorder = Recorder()
    with ExitStack() as stack:
        if limit == "files and log":
            directory.mkdir()
            broker.log.symlink_to("/dev/full")
        resize = stack.enter_context(limited_files())
        stack.callback(broker.stop)
        following = 0
        for turn in range(size(1, 10)):
            resize(PLENTY)
            if turn:
                broker.start()
                drain(broker.port("phpmq"), recorder)
                recorder.drained()
                assert broker.stop() == 0
            room = ROOM + chance.randrange(ROOM)
            resize(room)
            broker.start()
            ahead = AHEAD[turn % 2]
            load = Load(broker.port("phpmq"), following, recorder, chance, 1000, ahead)
            assert broker.wait() == JOURNAL_FAILED
            following = load.end()
            _start_without_room(broker)
        resize(PLENTY)
        broker.start()
        drain(broker.port("phpmq"), recorder)
        assert recorder.highest > 0
        recorder.drained()
        assert broker.stop() == 0
        if limit != "files and log":
            said = broker.log.read_text()
            assert "Traceback" not in said
            assert NO_ROOM.search(said)


def _start_without_room(broker: LocalBroker) -> None:
    """It starts, if what it has to write fits, or says that it cannot; and harms nothing."""
    try:
        broker.start()
    except ConnectionLost:
        assert broker.wait() in (REFUSED, JOURNAL_FAILED)
    else:
        time.sleep(0.1)
        broker.kill()
