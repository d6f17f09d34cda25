"""Retention slots: a reader's position that keeps segments from being removed.

One JSON file per slot, DIRECTORY/slots/NAME.json, replaced as a whole. The reader itself may
advance it from another process. The journal only reads it, and marks it lost if the bytes kept for
this slot alone exceed its limit, or if it has held segments for longer than
`journal.slot_idle_timeout` without an update by its reader. A slot with a lease holds no segments
after the lease expires, and the journal removes it, because its process may have been killed.
A slot with a lease and a holder also keeps other processes from the same work.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from sluicemq.journal.files import inherit_owner, lock_file, sync_directory, write_atomically
from sluicemq.model.errors import JournalDamaged, JournalError, RecordNotFound

SLOTS_DIRECTORY: Final = "slots"
DEFAULT_SLOT_LIMIT: Final = 10 << 30
DEFAULT_IDLE_TIMEOUT: Final = 7 * 24 * 3_600_000
"""Default of `journal.slot_idle_timeout`, in ms."""
MAX_POSITION: Final = (1 << 63) - 1
"""Maximum position, and maximum limit in bytes."""
MIN_UPDATE_INTERVAL_MS: Final = 60_000
"""Minimum interval between records of acknowledgements that do not move the slot, in ms."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_SUFFIX: Final = ".json"
_LOCK: Final = ".lock"
"""Lock file in the slots directory; a process holds it while it changes a slot."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A retention slot. Times are in ms since the epoch.

    position     its reader has processed all records up to this sequence number
    limit_bytes  maximum bytes retained for it alone; 0 = the broker's setting
    created      time of its creation
    lost         True if it held more than that, for too long, or while disk space was low; segments
                 that its reader has not read may be removed
    until        end of its lease; 0 = it has none
    moved        time of its reader's last acknowledgement or renewal of the lease; 0 = never
    abandoned    True if it is lost because `moved` is older than `journal.slot_idle_timeout`
    holder       process that claimed it until its lease ends; "" = it was not claimed
    """

    position: int
    limit_bytes: int
    created: int
    lost: bool = False
    until: int = 0
    moved: int = 0
    abandoned: bool = False
    holder: str = ""

    def idle_time(self, since: int, now: int) -> int:
        """Return for how many ms the slot has held segments without an update by its reader.

        `since` is the time at which the oldest segment that it holds was sealed. `since` and `now`
        are in ms since the epoch.
        """
        return max(0, now - max(self.created, self.moved, since))

    def describe_loss(self, name: str) -> str:
        """Return a message with the reason of the loss and the remedy."""
        if self.abandoned:
            reason = "its reader did not move it for longer than journal.slot_idle_timeout"
        else:
            reason = (
                f"it retained more than {self.limit_bytes} bytes, or segments while disk space was "
                "low (journal.invalidate_slots_on_low_disk_space)"
            )
        return (
            f"the slot {name} is lost: {reason}, and segments it had not read may be removed. "
            "Delete it, and read from the earliest record that remains"
        )

    def describe_holder(self, name: str) -> str:
        """Return a message for a process that cannot have the slot."""
        if not self.until:
            return f"the slot {name} belongs to a reader"
        lease_end = datetime.fromtimestamp(self.until / 1000, UTC)
        return f"the slot {name} is held by {self.holder or 'a reader'} until {lease_end:%F %T} UTC"

    def is_expired(self, now: int) -> bool:
        """Return True if the lease has expired; `now` is in ms since the epoch."""
        return 0 < self.until <= now


def is_slot_name(name: str) -> bool:
    """Return whether the name has 1-63 characters of a-z 0-9 _ . - and starts with a-z or 0-9."""
    return _NAME.fullmatch(name) is not None


class Slots:
    """Slots of one data directory. The object holds no state; every call reads the files."""

    def __init__(self, directory: Path, limit_bytes: int = DEFAULT_SLOT_LIMIT) -> None:
        """Use `limit_bytes` as the limit of slots that have none; 0 = leave it to the broker."""
        self._directory = directory / SLOTS_DIRECTORY
        self._limit_bytes = limit_bytes

    def _path(self, name: str) -> Path:
        if not is_slot_name(name):
            raise JournalError(
                f"{name!r} is not a valid slot name: up to 63 characters of a-z 0-9 _ . - "
                "beginning with a letter or digit"
            )
        return self._directory / f"{name}{_SUFFIX}"

    def _read(self, path: Path) -> Slot:
        try:
            slot = _decoder.decode(path.read_bytes())
            limit_bytes = slot.limit_bytes or self._limit_bytes
            return msgspec.structs.replace(slot, limit_bytes=limit_bytes)
        except msgspec.MsgspecError as error:
            raise JournalDamaged(
                f"{path} is not a slot file: {error}. Delete the slot, or restore the file."
            ) from error

    def get(self, name: str) -> Slot:
        """Return the slot of that name. Raises RecordNotFound, JournalDamaged."""
        path = self._path(name)
        try:
            return self._read(path)
        except FileNotFoundError:
            raise RecordNotFound(f"the slot {name} does not exist") from None

    def list(self) -> dict[str, Slot]:
        """Return all slots by name. Raises JournalDamaged."""
        slots, errors = self.readable()
        for error in errors:
            raise error
        return slots

    def readable(self) -> tuple[dict[str, Slot], Sequence[JournalDamaged]]:
        """Return the slots that can be read, by name, and the errors of the others."""
        slots = {}
        errors = []
        if self._directory.is_dir():
            for path in sorted(self._directory.iterdir()):
                name = path.name.removesuffix(_SUFFIX)
                if name != path.name and is_slot_name(name):
                    try:
                        slots[name] = self._read(path)
                    except FileNotFoundError:
                        continue  # deleted by another process
                    except JournalDamaged as error:
                        errors.append(error)
        return slots, errors

    def create(
        self, name: str, position: int = 0, limit_bytes: int | None = None, lease: int = 0
    ) -> Slot:
        """Create a slot. Raises JournalError if the name exists or an argument is invalid.

        `lease` is in ms, 0 = none: the slot holds no segments after it expires without renewal.
        """
        path = self._path(name)
        is_limit_valid = limit_bytes is None or 0 < limit_bytes <= MAX_POSITION
        if not (0 <= position <= MAX_POSITION and is_limit_valid):
            raise JournalError(
                "a slot's position is at least 0, its limit at least 1 byte, and both are less "
                "than 2^63"
            )
        now = now_ms()
        slot = Slot(
            position=position,
            limit_bytes=limit_bytes or self._limit_bytes,
            created=now,
            until=now + lease if lease else 0,
        )
        with self._lock():
            if path.exists():
                raise JournalError(f"the slot {name} exists already")
            self._write(path, slot)
        return slot

    def advance(self, name: str, position: int, *, shared: bool = False) -> Slot:
        """Move the slot to `position` and return it.

        With `shared`, several processes may move the slot for one reader: it stays where it is if
        it is already ahead. Raises JournalError if the slot is lost or would move back,
        RecordNotFound.
        """
        with self._lock():
            slot = self._get_usable(name)
            if shared:
                position = max(position, slot.position)
            if position < slot.position:
                raise JournalError(f"the slot {name} is at {slot.position} and cannot go back")
            now = now_ms()
            if position > slot.position or not 0 <= now - slot.moved < MIN_UPDATE_INTERVAL_MS:
                slot = msgspec.structs.replace(slot, position=position, moved=now)
                self._write(self._path(name), slot)
            return slot

    def renew(self, name: str, lease: int) -> None:
        """Set the lease to expire `lease` ms from now.

        Raises JournalError if the slot is lost, RecordNotFound if it does not exist, for example
        because its lease has expired.
        """
        with self._lock():
            now = now_ms()
            slot = msgspec.structs.replace(self._get_usable(name), until=now + lease, moved=now)
            self._write(self._path(name), slot)

    def claim(self, name: str, holder: str, position: int, lease: int) -> Slot:
        """Create a slot for `holder`, or set its position and extend its lease to `lease` ms from
        now; 0 ends it.

        Raises JournalError with the name of the holder if another process has the slot.
        """
        path = self._path(name)
        with self._lock():
            now = now_ms()
            with suppress(FileNotFoundError):
                existing = self._read(path)
                if existing.holder != holder and not existing.is_expired(now):
                    raise JournalError(existing.describe_holder(name))
            slot = Slot(
                position=position,
                limit_bytes=self._limit_bytes,
                created=now,
                until=now + lease,
                moved=now,
                holder=holder,
            )
            self._write(path, slot)
        return slot

    def _get_usable(self, name: str) -> Slot:
        slot = self.get(name)
        if slot.lost:
            raise JournalError(slot.describe_loss(name))
        return slot

    def mark_lost(
        self, name: str, expected: Slot, removed: int = 0, *, abandoned: bool = False
    ) -> None:
        """Mark the slot lost, so that it holds no segments; `abandoned` as in Slot.

        `expected` is the slot on which the decision was based. If it has changed since then, it is
        lost only if its reader has not read up to `removed`, the last sequence number of the
        removed segments; another slot of that name is not lost. Raises RecordNotFound.
        """
        with self._lock():
            slot = self.get(name)
            has_gap = slot.created == expected.created and slot.position < removed
            if slot == expected or has_gap:
                slot = msgspec.structs.replace(slot, lost=True, abandoned=abandoned)
                self._write(self._path(name), slot)

    def delete(self, name: str) -> None:
        """Delete the slot. Raises RecordNotFound."""
        with self._lock():
            self._delete(name)

    def delete_expired(self, name: str) -> None:
        """Delete the slot if its lease has expired, unless a client has renewed or claimed it."""
        with self._lock(), suppress(RecordNotFound, JournalDamaged):
            if self.get(name).is_expired(now_ms()):
                self._delete(name)

    def _delete(self, name: str) -> None:
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            raise RecordNotFound(f"the slot {name} does not exist") from None
        sync_directory(self._directory)

    def _lock(self) -> AbstractContextManager[None]:
        """Lock the slots against changes by other processes: readers, the broker, commands.

        A slot that was read inside the context is still current when it is written; in particular,
        a concurrent loss is not overwritten.
        """
        if not self._directory.is_dir():
            self._directory.mkdir(exist_ok=True)
            inherit_owner(self._directory, self._directory.parent)
        return lock_file(self._directory / _LOCK, mode=0o640)

    def _write(self, path: Path, slot: Slot) -> None:
        data = msgspec.json.encode(slot) + b"\n"
        write_atomically(path, data)


def now_ms() -> int:
    """Return the wall clock in ms since the epoch."""
    return time.time_ns() // 1_000_000


_decoder: Final = msgspec.json.Decoder(Slot)
