"""Backups of a journal during writes, and data directories restored from them."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluicemq.journal import FileJournal, JournalOptions, stored_backup
from sluicemq.journal import backup as backup_module
from sluicemq.journal.backup import (
    LEASE_MS,
    NO_LIMIT,
    SLOT_PREFIX,
    BackupCancelled,
    CopyProgress,
    create,
)
from sluicemq.journal.files import DURABLE_NAME, DurableEnd, read_durable
from sluicemq.journal.inspect import check, dump
from sluicemq.journal.segment import TRAILER_BYTES, encode_trailer
from sluicemq.journal.slots import Slots
from sluicemq.journal.space import ignore
from sluicemq.journal.stored_backup import (
    MANIFEST_NAME,
    PARTIAL_JOURNAL,
    RESTORE_GAP,
    Manifest,
    find_backups,
    read_manifest,
    restore,
    verify,
)
from sluicemq.model.errors import JournalDamaged, JournalError
from tests.journal.support import (
    TINY,
    crash,
    live_of,
    put,
    recover,
    reopen,
    segments_of,
    skipped_syncs,
    take,
)

BACKUP = "backup"


@pytest.fixture(scope="module", autouse=True)
def syncs() -> Iterator[None]:
    """Skip the syncs, of which the tests request more than ten thousand."""
    with skipped_syncs():
        yield


def open_journal(directory: Path) -> FileJournal:
    """Open a journal as a broker does, which removes segments."""
    journal = reopen(directory)
    journal.recovery.close()
    journal.set_snapshot_source(bytes)
    return journal


@pytest.fixture
def journal(tmp_path: Path) -> FileJournal:
    return open_journal(tmp_path / "journal")


def back_up(tmp_path: Path, name: str = BACKUP, **options: object) -> Path:
    create(tmp_path / "journal", tmp_path / name, **options)
    return tmp_path / name


def restore_and_read(backup: Path, *, keep_broker_id: bool = False) -> dict[int, bytes]:
    """Restore the backup, check the journal and return its live messages."""
    verdict = verify(backup)
    assert not verdict.problems
    target = backup.with_name(backup.name + "-restored")
    restore(backup, target, keep_broker_id=keep_broker_id)
    assert not check(target / "journal").problems
    journal = reopen(target / "journal")
    try:
        assert journal.recovery.report["lost_bytes"] == journal.recovery.report["torn_bytes"] == 0
        return live_of(journal)
    finally:
        journal.close()


def fill(journal: FileJournal, count: int = 30) -> list[int]:
    """Append `count` durable messages in several segments."""
    numbers = []
    for _ in range(count):
        numbers.append(put(journal, b"x" * 300))
        journal.sync()
    return numbers


@pytest.mark.parametrize("seed", range(20))
def test_backup_contains_records_durable_at_its_time(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    journal = open_journal(tmp_path / "journal")
    live: dict[int, bytes] = {}
    expected: list[tuple[Path, dict[int, bytes]]] = []
    previous = None
    for turn in range(200):
        draw = chance.random()
        if draw < 0.6:
            body = chance.randbytes(chance.randrange(400))
            live[put(journal, body)] = body
        elif draw < 0.85 and live:
            removed_numbers = chance.sample(sorted(live), min(len(live), chance.randint(1, 8)))
            take(journal, *removed_numbers)
            for number in removed_numbers:
                del live[number]
        elif draw < 0.9:
            journal.seal()
        elif draw < 0.96:
            journal.sync()
        else:
            journal.sync()
            before = dict(live)
            late_number = put(journal, b"not durable")
            previous = back_up(
                tmp_path,
                f"{turn:03d}",
                previous=previous if chance.random() < 0.5 else None,
                link=chance.random() < 0.5,
            )
            take(journal, late_number)
            expected.append((previous, before))
    journal.close()
    assert expected
    for backup, before in expected:
        assert restore_and_read(backup, keep_broker_id=chance.random() < 0.5) == before


def test_backup_during_writes_and_removals_is_complete(tmp_path: Path) -> None:
    """Without the slot, segments that are no longer live would be removed during the copy."""
    journal = open_journal(tmp_path / "journal")
    first = fill(journal, 40)
    before = set(segments_of(tmp_path / "journal"))
    writing, running = threading.Event(), threading.Event()

    def on_progress(progress: CopyProgress) -> None:
        writing.set()
        running.wait(60)

    failures: list[BaseException] = []

    def run() -> None:
        try:
            back_up(tmp_path, on_progress=on_progress)
        except BaseException as error:
            failures.append(error)
            writing.set()

    thread = threading.Thread(target=run)
    thread.start()
    writing.wait(60)
    take(journal, *first)
    journal.sync()
    fill(journal, 60)  # snapshots are taken meanwhile, and empty segments are removed
    assert before <= set(segments_of(tmp_path / "journal"))
    running.set()
    thread.join()
    assert not failures
    fill(journal, 20)
    assert not before <= set(segments_of(tmp_path / "journal"))
    journal.close()
    assert list(restore_and_read(tmp_path / BACKUP)) == first


def test_stopped_journal_is_backed_up_to_its_last_whole_unit(tmp_path: Path) -> None:
    """`durable`, which is never synced, may be behind after a loss of power."""
    journal = open_journal(tmp_path / "journal")
    numbers = fill(journal, 5)
    durable_content = (tmp_path / "journal" / DURABLE_NAME).read_bytes()
    numbers += fill(journal, 5)
    end = read_durable(tmp_path / "journal")
    crash(journal)
    (tmp_path / "journal" / DURABLE_NAME).write_bytes(durable_content)
    with segments_of(tmp_path / "journal")[-1].open("ab") as file:
        file.write(b"torn off")
    backup = back_up(tmp_path)
    assert end is not None
    assert read_manifest(backup).last_sequence == end.sequence
    assert list(restore_and_read(backup)) == numbers


def test_loss_of_durable_records_is_not_backed_up(tmp_path: Path) -> None:
    journal = reopen(tmp_path / "journal", JournalOptions(preallocate_bytes=0))
    for _ in range(5):
        put(journal)
        journal.sync()
    end = read_durable(tmp_path / "journal")
    assert end is not None
    crash(journal)
    (path,) = segments_of(tmp_path / "journal")
    os.truncate(path, end.offset - 1)
    with pytest.raises(JournalDamaged, match=f"{path.name}, .*but {end.offset} bytes of it were"):
        back_up(tmp_path)


def test_backup_omits_unsynced_groups(tmp_path: Path, journal: FileJournal) -> None:
    numbers = fill(journal, 3)
    put(journal, b"a crash of the machine could take it back")
    journal.commit(sync=False)
    while journal.written < journal.durable + 1:
        journal._writer.wait()
    backup = back_up(tmp_path)
    assert list(restore_and_read(backup)) == numbers
    journal.close()


def test_snapshot_of_backup_is_not_newer_than_its_end(
    tmp_path: Path, journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may write and remove segments between two reads of the backup."""
    numbers = fill(journal)
    find_end = backup_module._wait_for_end

    def find_end_and_continue(directory: Path, position: int) -> DurableEnd:
        end = find_end(directory, position)
        take(journal, *numbers)
        fill(journal, 20)
        return end

    monkeypatch.setattr(backup_module, "_wait_for_end", find_end_and_continue)
    backup = back_up(tmp_path)
    journal.close()
    assert list(restore_and_read(backup)) == numbers


def test_backup_omits_incomplete_unit(tmp_path: Path, journal: FileJournal) -> None:
    numbers = fill(journal, 3)
    following = journal.segments[-1].first + 100
    crash(journal)
    (tmp_path / "journal" / f"{following:020d}.segment").write_bytes(b"SLUICEMQ")
    backup = back_up(tmp_path)
    assert list(restore_and_read(backup)) == numbers


def test_damage_of_source_is_not_copied(tmp_path: Path, journal: FileJournal) -> None:
    fill(journal)
    damaged = segments_of(tmp_path / "journal")[1]
    data = bytearray(damaged.read_bytes())
    data[200] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(JournalDamaged, match=damaged.name):
        back_up(tmp_path)
    with pytest.raises(JournalError, match="unfinished"):
        read_manifest(tmp_path / BACKUP)
    journal.close()


def test_backup_detects_missing_segment(tmp_path: Path, journal: FileJournal) -> None:
    fill(journal)
    segments_of(tmp_path / "journal")[1].unlink()
    with pytest.raises(JournalDamaged, match="missing"):
        back_up(tmp_path)
    crash(journal)


def test_incremental_backup_shares_segments_and_is_complete(
    tmp_path: Path, journal: FileJournal
) -> None:
    numbers = fill(journal)
    first = back_up(tmp_path, "1")
    numbers += fill(journal, 3)
    second = back_up(tmp_path, "2", previous=first)
    journal.close()
    manifest = read_manifest(second)
    assert manifest.copied_bytes < manifest.bytes / 2
    assert manifest.incremental_from == str(first)
    shared_paths = [file.path for file in manifest.files if (first / file.path).exists()]
    inodes = [
        (first / path).stat().st_ino == (second / path).stat().st_ino for path in shared_paths
    ]
    assert inodes.count(True) > 3
    for path in sorted(first.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    first.rmdir()
    assert list(restore_and_read(second)) == numbers


def test_files_that_differ_from_earlier_backup_are_copied(
    tmp_path: Path, journal: FileJournal
) -> None:
    numbers = fill(journal)
    first = back_up(tmp_path, "1")
    segment = next(first.glob("journal/*.segment"))
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    second = back_up(tmp_path, "2", previous=first)
    journal.close()
    assert list(restore_and_read(second)) == numbers


def test_earlier_backup_of_another_journal_is_refused(tmp_path: Path, journal: FileJournal) -> None:
    other_journal = open_journal(tmp_path / "other" / "journal")
    backup = back_up(tmp_path / "other")
    with pytest.raises(JournalError, match="of another journal"):
        back_up(tmp_path, previous=backup)
    assert not (tmp_path / BACKUP).exists()
    other_journal.close()
    journal.close()


def test_linked_segments_stay_when_journal_removes_them(
    tmp_path: Path, journal: FileJournal
) -> None:
    numbers = fill(journal)
    backup = back_up(tmp_path, link=True)
    manifest = read_manifest(backup)
    assert manifest.copied_bytes < manifest.bytes / 2
    take(journal, *numbers)
    journal.sync()
    journal.compact()
    journal.close()
    assert list(restore_and_read(backup)) == numbers


def test_slot_is_dropped_after_success_and_failure(tmp_path: Path, journal: FileJournal) -> None:
    fill(journal)
    back_up(tmp_path)
    with pytest.raises(BackupCancelled):
        back_up(tmp_path, "given up", cancelled=lambda: True)
    assert not Slots(tmp_path / "journal").list()
    with pytest.raises(JournalError, match="not empty"):
        back_up(tmp_path, "given up")
    journal.close()


def test_segments_whose_removal_was_due_before_backup_may_vanish(
    tmp_path: Path, journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background thread may remove the segments later than planned."""
    journal.slots.create("reader", limit_bytes=10**9)
    take(journal, *fill(journal))
    numbers = fill(journal, 3)
    journal.seal()
    journal.sync()
    may_continue = threading.Event()
    journal._writer.defer(lambda: may_continue.wait(10), ignore)
    journal.slots.delete("reader")
    journal._compactor.remove_finished()
    plan = backup_module._plan
    count = len(segments_of(tmp_path / "journal"))

    def remove_after_plan(*arguments: object) -> object:
        planned = plan(*arguments)
        may_continue.set()
        journal.sync()
        return planned

    monkeypatch.setattr(backup_module, "_plan", remove_after_plan)
    backup = back_up(tmp_path)
    assert len(segments_of(backup / "journal")) < count
    journal.close()
    assert list(restore_and_read(backup)) == numbers


def test_vanished_segment_that_is_needed_fails_backup(
    tmp_path: Path, journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(journal)
    plan = backup_module._plan

    def remove_after_plan(*arguments: object) -> object:
        planned = plan(*arguments)
        segments_of(tmp_path / "journal")[2].unlink()
        return planned

    monkeypatch.setattr(backup_module, "_plan", remove_after_plan)
    with pytest.raises(JournalDamaged, match="missing"):
        back_up(tmp_path)
    journal.close()


def test_dropped_slot_ends_backup(tmp_path: Path, journal: FileJournal) -> None:
    fill(journal)
    slots = Slots(tmp_path / "journal")

    def on_progress(progress: CopyProgress) -> None:
        for name in slots.list():
            slots.delete(name)

    with pytest.raises(JournalError, match="repeat it"):
        back_up(tmp_path, on_progress=on_progress)
    assert not (tmp_path / BACKUP / MANIFEST_NAME).exists()
    journal.close()


def test_slot_of_killed_backup_ends_with_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = [1_000_000]
    for module in ("slots", "compaction", "backup"):
        monkeypatch.setattr(f"sluicemq.journal.{module}.now_ms", lambda: moment[0])
    journal = open_journal(tmp_path / "journal")
    slots = Slots(tmp_path / "journal")
    name = f"{SLOT_PREFIX}killed"
    slots.create(name, 0, NO_LIMIT, LEASE_MS)
    first = fill(journal)
    segment = segments_of(tmp_path / "journal")[0]
    take(journal, *first)
    fill(journal)
    assert segment.exists()
    moment[0] += LEASE_MS - 1
    slots.renew(name, LEASE_MS)
    moment[0] += LEASE_MS - 1
    fill(journal)
    assert segment.exists()
    assert list(slots.list()) == [name]
    moment[0] += 1
    fill(journal)
    assert not segment.exists()
    assert not slots.list()
    journal.close()
    slots.create(name, 0, NO_LIMIT, LEASE_MS)
    moment[0] += LEASE_MS
    back_up(tmp_path)
    assert not slots.list()


def test_backup_of_directory_without_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(JournalError, match="there is no journal"):
        back_up(tmp_path)
    assert not list((tmp_path / "journal").rglob("*.json"))


def test_further_files_are_kept_and_readable_by_their_owner_only(
    tmp_path: Path, journal: FileJournal
) -> None:
    backup = back_up(tmp_path, read_extras=lambda: {"users.json": b"{}"})
    journal.close()
    target = tmp_path / "restored"
    restore(backup, target)
    assert (target / "users.json").read_bytes() == b"{}"
    for path in (*backup.rglob("*"), target / "users.json", backup):
        assert path.stat().st_mode & 0o077 == 0


# --- verifying -----------------------------------------------------------------------------------


@pytest.fixture
def backup(tmp_path: Path, journal: FileJournal) -> Path:
    fill(journal)
    directory = back_up(tmp_path, read_extras=lambda: {"users.json": b"{}"})
    journal.close()
    return directory


def test_every_file_is_compared(backup: Path) -> None:
    for path in [path for path in backup.rglob("*") if path.is_file()]:
        if path.name == MANIFEST_NAME:
            continue
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert any(path.name in problem for problem in verify(backup).problems)
        path.write_bytes(data + b"x")
        assert any("bytes, not" in problem for problem in verify(backup).problems)
        path.unlink()
        assert any("missing" in problem for problem in verify(backup).problems)
        path.write_bytes(data)
    (backup / "journal" / f"{1 << 50:020d}.segment").write_bytes(b"")
    assert any("not part of" in problem for problem in verify(backup).problems)


def test_verification_covers_records(backup: Path) -> None:
    """The checksums are right, but the backed-up files are not a journal."""
    manifest = read_manifest(backup)
    missing = next(file for file in manifest.files if file.sealed)
    (backup / missing.path).unlink()
    files = [file for file in manifest.files if file is not missing]
    changed_manifest = msgspec.structs.replace(manifest, files=files)
    (backup / MANIFEST_NAME).write_bytes(msgspec.json.encode(changed_manifest))
    assert not verify(backup, records=False).problems
    assert verify(backup).problems


def test_directory_without_read_permission_is_not_listed(
    tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example lost+found, if the backup directory is the root of a file system."""
    (tmp_path / "lost+found").mkdir()

    def read(path: Path) -> Manifest:
        if path.name == "lost+found":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_manifest(path)

    monkeypatch.setattr(stored_backup, "read_manifest", read)
    assert [view.name for view in find_backups(tmp_path)] == [backup.name]


def test_the_list_contains_directories_whose_names_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "\udcff" / "journal").mkdir(parents=True)
    [view] = find_backups(tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(view))["name"] == "\\xff"


@pytest.mark.parametrize("path", ["../elsewhere", "/etc/passwd", "journal/../../elsewhere", ""])
def test_manifest_cannot_name_files_elsewhere(backup: Path, path: str) -> None:
    manifest = read_manifest(backup)
    changed_files = [msgspec.structs.replace(manifest.files[0], path=path)]
    data = msgspec.json.encode(msgspec.structs.replace(manifest, files=changed_files))
    (backup / MANIFEST_NAME).write_bytes(data)
    with pytest.raises(JournalError, match="not in the backup"):
        read_manifest(backup)


def test_damaged_or_newer_manifest_is_refused(backup: Path) -> None:
    path = backup / MANIFEST_NAME
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(JournalError, match="this release reads only 1"):
        verify(backup)
    path.write_bytes(data[:100])
    with pytest.raises(JournalError, match="cannot be read"):
        verify(backup)


# --- restoring -----------------------------------------------------------------------------------


def test_restore_into_directory_that_is_not_empty_is_refused(tmp_path: Path, backup: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "lost+found").mkdir()
    (target / "file").touch()
    with pytest.raises(JournalError, match=r"not empty \(file\)"):
        restore(backup, target)
    (target / "file").unlink()
    restore(backup, target)
    with pytest.raises(JournalError, match="not empty"):
        restore(backup, target)


def test_interrupted_restore_leaves_no_journal_and_can_be_repeated(
    tmp_path: Path, backup: Path
) -> None:
    target = tmp_path / "target"
    calls = 0

    def interrupt(count: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(backup, target, advance=interrupt)
    assert [path.name for path in target.iterdir()] == [PARTIAL_JOURNAL]
    restore(backup, target)
    assert not check(target / "journal").problems


def test_restore_interrupted_among_other_files_can_be_repeated(
    tmp_path: Path, journal: FileJournal
) -> None:
    backup = back_up(
        tmp_path, read_extras=lambda: {"users.json": b"{}", "configuration.toml": b"x"}
    )
    journal.close()
    (backup / "configuration.toml").write_bytes(b"y")
    with pytest.raises(JournalDamaged, match="checksum differs"):
        restore(backup, tmp_path / "target")
    (backup / "configuration.toml").write_bytes(b"x")
    restore(backup, tmp_path / "target")
    assert (tmp_path / "target" / "configuration.toml").read_bytes() == b"x"
    with pytest.raises(JournalError, match="not empty"):
        restore(backup, tmp_path / "target")


def test_damaged_backup_is_not_restored(tmp_path: Path, backup: Path) -> None:
    segment = next(backup.glob("journal/*.segment"))
    data = bytearray(segment.read_bytes())
    data[300] ^= 1
    segment.write_bytes(data)
    with pytest.raises(JournalDamaged, match="checksum differs"):
        restore(backup, tmp_path / "target")
    assert not (tmp_path / "target" / "journal").exists()


def test_sequences_are_not_reused_and_identity_is_new(tmp_path: Path, backup: Path) -> None:
    old_identity = bytes.fromhex(read_manifest(backup).identity)[:8]
    for name, keep in (("same", True), ("new", False)):
        result = restore(backup, tmp_path / name, keep_broker_id=keep)
        journal = FileJournal.open(tmp_path / name / "journal", JournalOptions())
        assert (journal.identity == old_identity) == keep
        assert result.identity[:16] == journal.identity.hex()
        assert put(journal) > read_manifest(backup).last_sequence + RESTORE_GAP
        journal.close()


def test_restored_journal_is_readable_before_its_broker_starts(
    tmp_path: Path, backup: Path
) -> None:
    restore(backup, tmp_path / "new")
    original = [entry.record.sequence for entry in dump(backup / "journal")]
    next_sequence = original[-1] + RESTORE_GAP
    restored = [entry.record.sequence for entry in dump(tmp_path / "new" / "journal")]
    assert restored == [*original, next_sequence]


def test_files_that_name_journal_name_restored_one(tmp_path: Path, journal: FileJournal) -> None:
    """Messages that `sluicemq migrate` has transferred are not transferred again."""
    old_identity = journal.identity.hex()
    backup = back_up(
        tmp_path, read_extras=lambda: {"log": b'{"journal": "%s"}' % old_identity.encode()}
    )
    journal.close()
    result = restore(backup, tmp_path / "new")
    log = (tmp_path / "new" / "log").read_bytes()
    assert log == b'{"journal": "%s"}' % result.identity[:16].encode()
    assert result.identity[:16] != old_identity


def test_restores_body_that_looks_like_end_of_segment(tmp_path: Path) -> None:
    """An unsealed segment has no checksum that could be adapted."""
    journal = open_journal(tmp_path / "journal")
    body = bytes(8) + encode_trailer(64, 1, 12345)
    assert len(body) % 8 == 0
    assert len(body) > TRAILER_BYTES
    number = put(journal, body)
    journal.sync()
    backup = back_up(tmp_path)
    crash(journal)
    assert restore_and_read(backup) == {number: body}


def test_restore_reads_no_whole_segment_into_memory(
    tmp_path: Path, journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment can have 16 GiB. The last one is sealed if the broker ended while it started."""
    numbers = fill(journal, 3)
    crash(journal)
    recover(tmp_path / "journal").close()
    backup = back_up(tmp_path)
    assert all(file.sealed for file in read_manifest(backup).files if "segment" in file.path)
    read_bytes = Path.read_bytes

    def read_small_file(path: Path) -> bytes:
        assert path.suffix != ".segment"
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_small_file)
    assert list(restore_and_read(backup)) == numbers


def test_restored_journal_can_be_backed_up_and_restored(tmp_path: Path, backup: Path) -> None:
    target = tmp_path / "a" / "b"
    restore(backup, target)
    second_backup = tmp_path / "again"
    create(target / "journal", second_backup)
    assert len(restore_and_read(second_backup)) == 30
    assert TINY.segment_bytes < verify(second_backup).bytes
