"""A repeated migration, also after an interrupted one, imports nothing twice."""

from __future__ import annotations

import json
from pathlib import Path
from struct import pack

import pytest

from sluicemq.broker import Broker, OfflineImport
from sluicemq.cli.local import LocalBroker
from sluicemq.journal import FileJournal, JournalOptions, Recovery
from sluicemq.journal.backup import create
from sluicemq.journal.stored_backup import restore
from sluicemq.migrate import transfer
from sluicemq.migrate.openmq import inspect_source
from sluicemq.migrate.source_files import ChangeDetector, SourceError
from sluicemq.security.records import UserStore
from sluicemq.server.configuration_reference import MIGRATIONS_NAME
from tests.cli.conftest import Run
from tests.migrate import openmq_store as store
from tests.migrate.conftest import Migrate, journaled_messages, restored_broker
from tests.migrate.openmq_store import Instance, packet, record, stored


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    instance = Instance(tmp_path / "var")
    instance.destinations(store.destination("orders"))
    fill(instance, 10)
    return instance


def fill(instance: Instance, count: int) -> None:
    """Fill the queue with messages 0 to count - 1."""
    records = [record(stored(packet("orders", f"{n}", n), {0: 0})) for n in range(count)]
    instance.messages("Qorders", *records)


def numbers(data: Path) -> list[int]:
    return [int(message.body) for message in journaled_messages(data)]


def test_second_run_imports_only_new_messages(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    assert migrate("openmq", instance.path)["messages"]["imported"] == 10
    report = migrate("openmq", instance.path)
    assert (report["messages"]["imported"], report["messages"]["imported_before"]) == (0, 10)
    fill(instance, 12)
    assert migrate("openmq", instance.path)["messages"]["imported"] == 2
    assert migrate("openmq", instance.path, "--dry-run")["messages"]["imported_before"] == 12
    assert numbers(tmp_path / "data") == list(range(12))


def test_source_may_be_moved_between_runs(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    migrate("openmq", instance.path)
    instance.path.rename(tmp_path / "elsewhere")
    assert migrate("openmq", tmp_path / "elsewhere")["messages"]["imported"] == 0


class Crash(BaseException):
    """Simulated crash of the process."""


@pytest.mark.parametrize("moment", ["before", "behind", "at the end"])
def test_interrupted_run_is_completed(
    instance: Instance,
    migrate: Migrate,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """Before: the ledger announces a part that the journal does not contain. Behind: the journal
    contains the part, and the ledger does not confirm it."""
    end_unit = OfflineImport.end_unit

    def cut(self: OfflineImport, number: int, messages: int) -> None:
        if number == 3 and moment == "before":
            raise Crash
        end_unit(self, number, messages)
        if number == 3:
            raise Crash

    def never(*ignored: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "PART_MESSAGES", 2)
        if moment == "at the end":
            patch.setattr(transfer.Ledger, "finish", never)
        else:
            patch.setattr(OfflineImport, "end_unit", cut)
        with pytest.raises(Crash):
            run("migrate", "openmq", str(instance.path), "--to", str(tmp_path / "data"))
    # the journal was closed properly; recovery truncates a unit without its end
    report = migrate("openmq", instance.path)
    before = {"before": 4, "behind": 6, "at the end": 10}[moment]
    assert report["messages"]["imported_before"] == before
    assert numbers(tmp_path / "data") == list(range(10))


def test_messages_of_run_that_ended_twice_in_one_unit_are_imported(
    instance: Instance, migrate: Migrate, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: each run announces the unit in the ledger and cannot write it."""

    def fail(*ignored: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(OfflineImport, "end_unit", fail)
        for _ in range(2):
            with pytest.raises(Crash):
                run("migrate", "openmq", str(instance.path), "--to", str(tmp_path / "data"))
    assert migrate("openmq", instance.path)["messages"]["imported"] == 10
    assert numbers(tmp_path / "data") == list(range(10))


begin_part = transfer.Ledger.begin_part


def begin_three_parts(ledger: transfer.Ledger, keys: list[bytes]) -> int:
    """Interrupt the run after its third part."""
    if ledger.part == 3:
        raise transfer.Interrupted
    return begin_part(ledger, keys)


def test_interrupted_run_is_completed_after_broker_has_forgotten_it(
    instance: Instance, migrate: Migrate, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after 30 days in which other batches were written."""
    recover = transfer.recover

    def recover_without_writers(broker: Broker, recovery: Recovery) -> None:
        recover(broker, recovery)
        broker.batches.writers.clear()

    monkeypatch.setattr(transfer, "PART_MESSAGES", 2)
    with monkeypatch.context() as patch:
        patch.setattr(transfer.Ledger, "begin_part", begin_three_parts)
        result = run("migrate", "openmq", str(instance.path), "--to", str(tmp_path / "data"))
        assert result.code == 130
        monkeypatch.setattr(transfer, "recover", recover_without_writers)
        result = run("migrate", "openmq", str(instance.path), "--to", str(tmp_path / "data"))
        assert result.code == 130
    assert migrate("openmq", instance.path)["messages"]["imported_before"] == 6
    assert numbers(tmp_path / "data") == list(range(10))


def test_restored_backup_of_unfinished_run_is_completed(
    instance: Instance, migrate: Migrate, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run continues after the backup has copied the journal, and before it reads the ledger."""
    data = tmp_path / "data"

    def finish_run() -> dict[str, bytes]:
        migrate("openmq", instance.path)
        return {MIGRATIONS_NAME: (data / MIGRATIONS_NAME).read_bytes()}

    monkeypatch.setattr(transfer, "PART_MESSAGES", 2)
    with monkeypatch.context() as patch:
        patch.setattr(transfer.Ledger, "begin_part", begin_three_parts)
        assert run("migrate", "openmq", str(instance.path), "--to", str(data)).code == 130
    create(data / "journal", tmp_path / "backup", read_extras=finish_run)
    data.rename(tmp_path / "lost")
    restore(tmp_path / "backup", data)
    assert migrate("openmq", instance.path)["messages"]["imported_before"] == 6
    assert numbers(data) == list(range(10))


def test_prepared_transactions_are_imported_once(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    work = store.work([packet("orders", "77", 77)], [store.ack("Q:orders", store.sysid(0))])
    event = b"\x01\x01" + store.details(5, 5, store.xid(b"g", b"b")) + work
    instance.write("fs370/txnlog", store.log(event))
    migrate("openmq", instance.path)
    report = migrate("openmq", instance.path)
    assert report["messages"]["imported_before"] == 10
    with restored_broker(tmp_path / "data") as broker:
        assert len(broker.transactions.prepared) == 1


def test_run_that_ends_while_another_one_starts_is_taken_into_account(
    instance: Instance, migrate: Migrate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run ends before this one locks the journal."""
    open_journal = FileJournal.open

    def finish_other_run(directory: Path, options: JournalOptions) -> FileJournal:
        monkeypatch.setattr(FileJournal, "open", open_journal)
        assert migrate("openmq", instance.path)["messages"]["imported"] == 10
        return open_journal(directory, options)

    monkeypatch.setattr(FileJournal, "open", finish_other_run)
    assert migrate("openmq", instance.path)["messages"]["imported"] == 0
    assert numbers(tmp_path / "data") == list(range(10))


def test_topic_message_without_subscription_does_not_count_as_imported(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    sent = packet("prices", "1", 20, queue=False)
    instance.write("fs370/txnlog", store.log(b"\x04\x00" + sent + pack(">i", 0)))
    counted = ("imported", "imported_before", "unwanted")
    reports = [migrate("openmq", instance.path)["messages"] for _ in range(2)]
    assert [[report[name] for name in counted] for report in reports] == [[10, 0, 1], [0, 10, 1]]
    instance.interests(store.interest(5, "prices", "desk", "news"))
    assert migrate("openmq", instance.path)["messages"]["imported"] == 1


def test_incomplete_line_of_ledger_is_ignored(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    migrate("openmq", instance.path)
    with (tmp_path / "data" / MIGRATIONS_NAME).open("ab") as file:
        file.write(b'{"part": 2, "keys": "QUFB')
    fill(instance, 11)
    assert migrate("openmq", instance.path)["messages"]["imported"] == 1
    assert migrate("openmq", instance.path)["messages"]["imported"] == 0


def test_damaged_ledger_stops_run(
    instance: Instance, migrate: Migrate, run: Run, tmp_path: Path
) -> None:
    migrate("openmq", instance.path)
    file = tmp_path / "data" / MIGRATIONS_NAME
    file.write_bytes(file.read_bytes().replace(b'"keys":"', b'"keys":"!'))
    result = run("migrate", "openmq", str(instance.path), "--to", "data")
    assert result.code == 1
    assert "migrations.log, byte" in result.err
    assert numbers(tmp_path / "data") == list(range(10))


def test_ledger_of_another_journal_is_ignored(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    migrate("openmq", instance.path)
    (tmp_path / "data" / "journal").rename(tmp_path / "old")
    assert migrate("openmq", instance.path)["messages"]["imported"] == 10
    assert migrate("openmq", instance.path)["messages"]["imported"] == 0


def test_journal_of_running_broker_is_not_changed(
    instance: Instance, run: Run, tmp_path: Path
) -> None:
    with LocalBroker(tmp_path / "data", ["phpmq://127.0.0.1:0"]):
        result = run("migrate", "openmq", str(instance.path), "--to", "data")
    assert result.code == 1
    assert result.err.endswith(". Stop it, or choose another directory.\n")


def test_existing_settings_and_users_are_kept(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    """Settings of a destination, the password of a user, the configuration file."""
    migrate("openmq", instance.path)
    config = tmp_path / "data" / "sluicemq.toml"
    config.write_text("# mine\n")
    users = (tmp_path / "data" / "users.json").read_bytes()
    instance.destinations(store.destination("orders", messages=7))
    instance.write("etc/passwd", b"admin:-1:admin:1\n")
    report = migrate("openmq", instance.path)
    assert report["config"]["written"] is False
    assert config.read_text() == "# mine\n"
    assert json.loads((tmp_path / "data" / "users.json").read_bytes()) == json.loads(users)
    assert [destination["kept"] for destination in report["destinations"]] == [True]
    with restored_broker(tmp_path / "data") as broker:
        (queue,) = broker.destinations.values()
        assert queue.settings.max_messages == 100_000


def test_settings_for_an_existing_configuration_are_reported(
    instance: Instance, run: Run, tmp_path: Path
) -> None:
    configuration = tmp_path / "sluicemq.toml"
    configuration.write_text("# of another broker\n")
    arguments = ("migrate", "openmq", str(instance.path), "--to", "data", "--config")
    result = run(*arguments, str(configuration))
    assert result.code == 0
    assert "exists and is not changed; add what it lacks:" in result.out
    assert '\n  url = "jmq://' in result.out
    serve = f"sluicemq serve --config {configuration} --data-dir {tmp_path}/data"
    assert f"Next: {serve}" in result.err


def test_users_are_added_to_the_configured_database(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    configuration = tmp_path / "sluicemq.toml"
    configuration.write_text("[auth]\nusers_file = 'own.json'\n")
    instance.write("etc/passwd", b"admin:-1:admin:1\n")
    migrate("openmq", instance.path, "--config", str(configuration))
    assert set(UserStore(tmp_path / "own.json").read().users) == {"admin"}
    assert not (tmp_path / "data" / "users.json").exists()


def test_source_written_during_run_is_reported(
    instance: Instance, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChangeDetector, "changed", lambda self: [instance.store / "destination"])
    result = run("migrate", "openmq", str(instance.path), "--to", "data")
    assert result.code == 1
    assert "has changed while it was read" in result.err
    monkeypatch.undo()


@pytest.mark.parametrize("name", ["txnlog", "message/Qorders/7"])
def test_new_file_of_running_broker_is_reported(
    instance: Instance, tmp_path: Path, name: str
) -> None:
    plan = inspect_source(instance.path, ignore_lock=False, skip_damaged=False)
    (instance.store / name).touch()
    with pytest.raises(SourceError, match="has changed while it was read"):
        transfer.transfer(plan, tmp_path / "data")


def test_new_file_in_linked_directory_of_store_is_reported(
    instance: Instance, tmp_path: Path
) -> None:
    messages = instance.store / "message"
    messages.rename(tmp_path / "another_disk")
    messages.symlink_to(tmp_path / "another_disk")
    plan = inspect_source(instance.path, ignore_lock=False, skip_damaged=False)
    (messages / "Qorders" / "7").touch()
    with pytest.raises(SourceError, match="has changed while it was read"):
        transfer.transfer(plan, tmp_path / "data")


def test_change_detector_sees_writes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")
    change_detector = ChangeDetector()
    change_detector.record_state(file)
    change_detector.record_state(tmp_path / "none")
    assert change_detector.changed() == []
    file.write_bytes(b"three")
    assert change_detector.changed() == [file]
