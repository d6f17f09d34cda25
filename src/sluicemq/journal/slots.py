"""Retention slots: a reader's position that keeps segments from being removed.

One JSON file per slot, DIRECTORY/slots/NAME.json, replaced as a whole. The reader itself may
advance it from another process; the journal only reads it, and marks it lost when what is kept
for its sake alone exceeds its limit, or when it has held segments for longer than
`journal.slot_idle_limit` without a word from its reader. One with a lease holds nothing any more
when that is over, and is removed: whoever needed it for a while may have been killed.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from sluicemq.journal.writer import sync_directory, write_whole
from sluicemq.model.errors import JournalDamaged, JournalError, RecordNotFound

SLOTS_DIRECTORY: Final = "slots"
DEFAULT_SLOT_LIMIT: Final = 10 << 30
DEFAULT_IDLE_LIMIT: Final = 7 * 24 * 3_600_000
"""In ms."""
NOTE_MS: Final = 60_000
"""An acknowledgement that does not move the slot is recorded at most so often, in ms."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_SUFFIX: Final = ".json"
_LOCK: Final = ".lock"
"""In the directory of the slots; held by who changes one."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A reader has done everything up to `position`.

    limit_bytes  what may be kept for it alone
    created      ms since the epoch
    lost         it asked for more than that, and segments it had not read are gone
    until        ms since the epoch, when its lease ends; 0 = it has none
    moved        ms since the epoch, when its reader last acknowledged a position or renewed its
                 lease; 0 = never
    abandoned    it is lost because its reader has not done that for `journal.slot_idle_limit`
    """

    position: int
    limit_bytes: int
    created: int
    lost: bool = False
    until: int = 0
    moved: int = 0
    abandoned: bool = False

    def idle(self, since: int, now: int) -> int:
        """Return for how many ms it has kept segments without a word from its reader. `since`: when
        the oldest segment that it keeps was complete. Both in ms since the epoch."""
        return max(0, now - max(self.created, self.moved, since))

    def describe_loss(self, name: str) -> str:
        """Return why it is lost and what to do."""
        if self.abandoned:
            why = "its reader did not move it for longer than journal.slot_idle_limit"
        else:
            why = f"more than {self.limit_bytes} bytes were waiting for it"
        return (
            f"the slot {name} is lost: {why}, and segments it had not read may be gone. Drop it, "
            "and read from the earliest that is there"
        )

    def expired(self, now: int) -> bool:
        """Its lease is over; `now` in ms since the epoch."""
        return 0 < self.until <= now


def is_slot_name(name: str) -> bool:
    """Up to 63 characters of a-z 0-9 _ . - and no sign at the start."""
    return _NAME.fullmatch(name) is not None


class Slots:
    """The slots of one data directory. Holds no state: the files are the truth."""

    def __init__(self, directory: Path, limit_bytes: int = DEFAULT_SLOT_LIMIT) -> None:
        """`limit_bytes` is for slots that are created without one."""
        self._directory = directory / SLOTS_DIRECTORY
        self._limit_bytes = limit_bytes

    def _path(self, name: str) -> Path:
        if not is_slot_name(name):
            raise JournalError(
                f"{name!r} is no name for a slot: up to 63 characters of a-z 0-9 _ . - "
                "and no sign at the start"
            )
        return self._directory / f"{name}{_SUFFIX}"

    def _read(self, path: Path) -> Slot:
        try:
            return _decoder.decode(path.read_bytes())
        except msgspec.MsgspecError as error:
            raise JournalDamaged(
                f"{path} is not a slot: {error}. Drop the slot or restore the file."
            ) from error

    def get(self, name: str) -> Slot:
        """Raises RecordNotFound, JournalDamaged."""
        path = self._path(name)
        try:
            return self._read(path)
        except FileNotFoundError:
            raise RecordNotFound(f"there is no slot named {name}") from None

    def list(self) -> dict[str, Slot]:
        """All slots by name. Raises JournalDamaged."""
        found = {}
        if self._directory.is_dir():
            for path in sorted(self._directory.iterdir()):
                name = path.name.removesuffix(_SUFFIX)
                if name != path.name and is_slot_name(name):
                    try:
                        found[name] = self._read(path)
                    except FileNotFoundError:
                        continue  # dropped by somebody else
        return found

    def create(
        self, name: str, position: int = 0, limit_bytes: int | None = None, lease: int = 0
    ) -> Slot:
        """Create a slot. Raises JournalError if the name exists or a number is invalid.

        `lease` in ms, 0 = none: after that, unless it is renewed, the slot holds nothing.
        """
        path = self._path(name)
        if limit_bytes is None:
            limit_bytes = self._limit_bytes
        if position < 0 or limit_bytes <= 0:
            raise JournalError("a slot's position is at least 0 and its limit at least 1 byte")
        now = wall()
        slot = Slot(
            position=position,
            limit_bytes=limit_bytes,
            created=now,
            until=now + lease if lease else 0,
        )
        if not self._directory.is_dir():
            self._directory.mkdir(exist_ok=True)
            owner = self._owner()
            if owner is not None:
                os.chown(self._directory, *owner)
        with self._alone():
            if path.exists():
                raise JournalError(f"there is a slot named {name} already")
            self._write(path, slot)
        return slot

    def advance(self, name: str, position: int) -> Slot:
        """JournalError if the slot is lost or would go back; RecordNotFound."""
        with self._alone():
            slot = self._kept(name)
            if position < slot.position:
                raise JournalError(f"the slot {name} is at {slot.position} and cannot go back")
            return self._move(name, slot, position)

    def reach(self, name: str, position: int) -> Slot:
        """As `advance`, but a slot that is ahead stays: several may move it for one reader."""
        with self._alone():
            slot = self._kept(name)
            return self._move(name, slot, max(position, slot.position))

    def renew(self, name: str, lease: int) -> None:
        """Hold on for so many ms from now. JournalError if the slot is lost; RecordNotFound if it
        is gone, as it may be when its lease was over."""
        with self._alone():
            now = wall()
            slot = msgspec.structs.replace(self._kept(name), until=now + lease, moved=now)
            self._write(self._path(name), slot)

    def _kept(self, name: str) -> Slot:
        slot = self.get(name)
        if slot.lost:
            raise JournalError(slot.describe_loss(name))
        return slot

    def _move(self, name: str, slot: Slot, position: int) -> Slot:
        now = wall()
        if position == slot.position and 0 <= now - slot.moved < NOTE_MS:
            return slot
        slot = msgspec.structs.replace(slot, position=position, moved=now)
        self._write(self._path(name), slot)
        return slot

    def lose(self, name: str, abandoned: bool = False) -> None:
        """Let the slot hold nothing any more; `abandoned` as in Slot."""
        with self._alone():
            slot = msgspec.structs.replace(self.get(name), lost=True, abandoned=abandoned)
            self._write(self._path(name), slot)

    def drop(self, name: str) -> None:
        """Raises RecordNotFound."""
        path = self._path(name)
        with self._alone():
            try:
                path.unlink()
            except FileNotFoundError:
                raise RecordNotFound(f"there is no slot named {name}") from None
            sync_directory(self._directory)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Whatever process changes a slot meanwhile waits: readers, the broker, commands. What was
        read of a slot still holds when it is written, above all that it is lost."""
        try:
            fd = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except FileNotFoundError:
            yield  # without the directory there is no slot: whoever asks for one is told
            return
        try:
            owner = self._owner()
            if owner is not None:
                os.fchown(fd, *owner)
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _write(self, path: Path, slot: Slot) -> None:
        write_whole(path, msgspec.json.encode(slot) + b"\n", owner=self._owner())

    def _owner(self) -> tuple[int, int] | None:
        """Whose the journal is: what root makes here, the broker's own user has to read."""
        if os.geteuid() != 0:
            return None
        status = self._directory.parent.stat()
        return status.st_uid, status.st_gid


def wall() -> int:
    """ms since the epoch."""
    return time.time_ns() // 1_000_000


_decoder: Final = msgspec.json.Decoder(Slot)
