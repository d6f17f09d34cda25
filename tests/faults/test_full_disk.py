"""A disk that is full: the broker ends, says why and has confirmed nothing that is lost. Once there
is room again, everything that clients saw is served."""

from __future__ import annotations

import os
import re
import resource
import subprocess
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
NO_ROOM = re.compile("File too large|No space left on device")

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


@contextmanager
def small_filesystem(directory: Path) -> Iterator[Resize]:
    """A file system of its own under `directory`: ENOSPC. Needs the right to mount."""
    directory.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory], check=True)

    def resize(room: int) -> None:
        size_option = f"remount,size={'64m' if room == PLENTY else room}"
        subprocess.run(["mount", "-o", size_option, directory], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", directory], check=True)


def may_mount() -> bool:
    """Whether this process could mount a file system."""
    trial = ["unshare", "--mount", "true"]
    return os.geteuid() == 0 and subprocess.run(trial, capture_output=True).returncode == 0


LIMITS = ["files", "files and log", *(["journal", "everything"] if may_mount() else [])]
"""What has no room: each file of the journal; these, and the log has none either; the file system
of the journal; that of the journal and the log."""


@pytest.mark.parametrize("limit", LIMITS)
def test_a_full_disk(tmp_path: Path, limit: str) -> None:
    chance = repeatable()
    directory = tmp_path / "broker"
    broker = LocalBroker(directory, PHPMQ)
    recorder = Recorder()
    with ExitStack() as stack:
        if limit == "files and log":
            directory.mkdir()
            broker.log.symlink_to("/dev/full")
        if limit.startswith("files"):
            resize = stack.enter_context(limited_files())
        else:
            place = directory / "journal" if limit == "journal" else directory
            resize = stack.enter_context(small_filesystem(place))
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
            used = sum(file.stat().st_size for file in directory.rglob("*.s*"))
            resize(room if limit.startswith("files") else used + room)
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
            assert limit == "everything" or NO_ROOM.search(said)  # there may be no room to say it


def _start_without_room(broker: LocalBroker) -> None:
    """It starts, if what it has to write fits, or says that it cannot; and harms nothing."""
    try:
        broker.start()
    except ConnectionLost:
        assert broker.wait() in (REFUSED, JOURNAL_FAILED)
    else:
        time.sleep(0.1)
        broker.kill()
